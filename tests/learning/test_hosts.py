"""One run in two processes, which meet on loopback (gloo): as in one, and each resumes what the other has saved."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.io.json_file import read_rows
from jaxsched.learning import devices as hosts
from jaxsched.learning.config import TrainConfig, to_dict
from jaxsched.learning.loop import METRICS_FILE, POLICY_FOLDER, Programs, programs_of, train
from jaxsched.learning.setting import make_setting
from jaxsched.policies.checkpoint import CARD_FILE
from tests.support.cases import TIMES
from tests.support.kube.server import free_port

CHUNKS, HALF, PATIENCE_S = 4, 2, 600
CHILD = """
import json, sys
from pathlib import Path
import jax
from jaxsched.learning import devices as hosts
from jaxsched.learning.devices import make_mesh

jax.config.update("jax_num_cpu_devices", 1)
hosts.join(sys.argv[1])
from jaxsched.learning.config import TrainConfig, from_dict
from tests.learning import test_hosts

assert jax.process_count() == 2 and make_mesh(2).size == 2
test_hosts.whole_and_resumed(from_dict(TrainConfig, json.loads(sys.argv[2]), ""), *map(Path, sys.argv[3:]))
"""


def snapshots(programs: Programs, run: Path, half: Path) -> Programs:
    """Copies the run as it is when `HALF` of its chunks are saved."""

    def step(state):
        if int(state.chunk) == HALF and hosts.is_first() and not half.exists():
            shutil.copytree(run, half, ignore=shutil.ignore_patterns(".lock"))
        return programs.step(state)

    return programs._replace(step=step)


def whole_and_resumed(config: TrainConfig, run: Path, half: Path, other: Path) -> None:
    """A whole run, and one that goes on with half of another's, with the same programs."""
    programs = programs_of(make_setting(config))
    train(config, run, save_every=1, programs=snapshots(programs, run, half))
    train(config, other, save_every=1, resume=True, programs=programs)


def close(run: Path, other: Path) -> None:
    one, two = read_rows(run / METRICS_FILE), read_rows(other / METRICS_FILE)
    assert [row["chunk"] for row in one] == [row["chunk"] for row in two] == list(range(1, CHUNKS + 1))
    for row, same in zip(one, two, strict=True):
        assert row.keys() == same.keys() and row["decisions"] == same["decisions"]
        np.testing.assert_allclose(list(row.values()), list(same.values()), rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.skipif(TIMES == 1, reason="a minute of CPU: CASES=2 make test-long")
def test_two_processes_train_as_one_and_each_resumes_what_the_other_saved(config, tmp_path):
    flat = dataclasses.replace(config, network=dataclasses.replace(config.network, kind="flat"))  # compiles sooner
    config = dataclasses.replace(flat, ppo=dataclasses.replace(flat.ppo, shards=2, chunks=CHUNKS))
    one, half_of_one, two, half_of_two = (tmp_path / name for name in ("one", "half of one", "two", "half of two"))
    programs = programs_of(make_setting(config))
    train(config, one, save_every=1, programs=snapshots(programs, one, half_of_one))
    port, environment = free_port(), os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    children = []
    for number in range(2):
        folders = map(str, (two, half_of_two, half_of_one))
        command = [sys.executable, "-c", CHILD, f"127.0.0.1:{port},2,{number}", json.dumps(to_dict(config)), *folders]
        children.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    said = [child.communicate(timeout=PATIENCE_S)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    close(two, one)
    close(half_of_one, one)  # two processes went on with what one had saved
    train(config, half_of_two, save_every=1, resume=True, programs=programs)
    close(half_of_two, one)
    cards = [json.loads((run / POLICY_FOLDER / CARD_FILE).read_text()) for run in (one, two, half_of_two)]
    assert len({json.dumps(card["config"]) for card in cards}) == 1 and all(len(card["curve"]) == 2 for card in cards)


@pytest.mark.parametrize("where", ["head:1234", "head:1234,2,2", "head,2,0", "head:1234,two,0"])
def test_who_does_not_say_where_the_others_are_is_told(where):
    with pytest.raises(UserError, match=r"^--hosts: .* give HOST:PORT,COUNT,NUMBER"):
        hosts.join(where)


def test_one_process_is_the_first_and_waits_for_nobody():
    hosts.wait_for_all("here")
    hosts.check_shards(3)
    assert hosts.is_first()


def test_shards_are_shared_out_evenly(monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.local_device_count", lambda: 4)
    hosts.check_shards(2)
    hosts.check_shards(8)
    for shards in (1, 3, 10):
        with pytest.raises(UserError, match=f"^--shards {shards}: 2 processes of 4 devices each should have 2 to 8"):
            hosts.check_shards(shards)
