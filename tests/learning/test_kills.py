"""Real runs of `jaxsched train` that end at any instant, and go on as if they had not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import jaxsched
from jaxsched.errors import UserError
from jaxsched.io.files import LOCK_FILE, locked
from jaxsched.io.json_file import read_rows
from jaxsched.learning.config import to_dict
from jaxsched.learning.loop import METRICS_FILE, POLICY_FOLDER, STATE_FOLDER, programs_of, train
from jaxsched.learning.setting import make_setting
from jaxsched.learning.state import has_step, restore
from jaxsched.policies.checkpoint import CARD_FILE, WEIGHTS_FILE
from tests.learning.test_loop import assert_bitwise
from tests.support.cases import TIMES

INSTANTS, SEED = 4 * TIMES, 7
CHILD = """
import sys
from pathlib import Path
from jaxsched.cli import main, train
from jaxsched.learning import loop

loop.train.__kwdefaults__["save_every"] = 1  # so that most instants are inside a save
main.main(["train", *sys.argv[1:]])
"""
PATIENCE_S = 300


@pytest.fixture(scope="module")
def programs(config):
    return programs_of(make_setting(config))


@pytest.fixture(scope="module")
def expected(tmp_path_factory, config, programs) -> Path:
    """A run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(config, folder, save_every=1, programs=programs)
    return folder


def start(*arguments: object) -> subprocess.Popen:
    """`jaxsched train` in a process of its own, with a checkpoint after every chunk."""
    environment = os.environ | {"PYTHONPATH": str(Path(jaxsched.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, child: subprocess.Popen) -> None:
    """Until there is such a file, or the process has ended."""
    late = time.monotonic() + PATIENCE_S
    while not path.exists() and child.poll() is None:
        assert time.monotonic() < late, "the child is too slow"
        time.sleep(0.005)


def assert_same(run: Path, expected: Path, like) -> None:
    """Everything that two runs have written is the same, bit for bit, times apart."""
    names = [METRICS_FILE, *(f"{POLICY_FOLDER}/{name}" for name in (WEIGHTS_FILE, CARD_FILE))]
    for name in names:
        one, other = ((folder / name).read_bytes() for folder in (run, expected))
        if name.endswith(CARD_FILE):  # the command that started the run is the only difference
            one, other = ({**json.loads(text), "commands": None} for text in (one, other))
        assert one == other, name
    assert_bitwise(*(restore(folder / STATE_FOLDER, like) for folder in (run, expected)))
    assert not (run / LOCK_FILE).exists()


@pytest.mark.long
@pytest.mark.parametrize("instant", range(INSTANTS))
def test_a_run_that_ends_at_any_instant_goes_on_bit_for_bit(tmp_path, config, programs, expected, state, instant):
    """Killed or terminated at a random instant between its first file and its end, by turns."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    run = tmp_path / "run"
    rows = random.Random(SEED + instant)
    number = (signal.SIGKILL, signal.SIGTERM)[instant % 2]
    child = start("--config", tmp_path / "run.yaml", "--out", run)
    wait_for(run / STATE_FOLDER, child)
    time.sleep(rows.random() * 2.0 if instant else 0.0)
    child.send_signal(number)
    out, said = child.communicate(timeout=PATIENCE_S)
    if child.returncode != 0:  # it may have come to its end before
        assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 143)
        errors = [line for line in said.splitlines() if line.startswith("jaxsched: ")]
        assert "Traceback" not in said
        if number == signal.SIGTERM:
            hint = f"; go on with: jaxsched train --resume {run}" if has_step(run / STATE_FOLDER) else ""
            assert errors == [f"jaxsched: terminated{hint}"]
    resume = has_step(run / STATE_FOLDER)
    train(config, run, resume=resume, save_every=1, programs=programs)
    assert_same(run, expected, state)


@pytest.mark.long
def test_a_second_process_on_a_run_is_refused(tmp_path, config, programs, expected):
    with locked(tmp_path), pytest.raises(UserError, match=f"in use by process {os.getpid()} on "):
        train(config, tmp_path, programs=programs)
    assert list(tmp_path.iterdir()) == []
    with locked(expected), pytest.raises(UserError, match="in use by process"):
        train(config, expected, resume=True, programs=programs)


@pytest.mark.long
def test_two_that_resume_at_once_do_the_work_once(tmp_path, config, programs, expected, state):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    run = tmp_path / "run"
    first = start("--config", tmp_path / "run.yaml", "--out", run)
    wait_for(run / METRICS_FILE, first)
    first.kill()
    first.communicate()
    both = [start("--resume", run) for _ in range(2)]
    said = [child.communicate(timeout=PATIENCE_S)[1] for child in both]
    codes = [child.returncode for child in both]
    assert 0 in codes and set(codes) <= {0, 2} and "Traceback" not in "".join(said)
    for code, text in zip(codes, said):
        assert code == 0 or "is in use by process" in text
    assert [row["chunk"] for row in read_rows(run / METRICS_FILE)] == list(range(1, config.ppo.chunks + 1))
    assert_same(run, expected, state)


@pytest.mark.long
def test_a_damaged_step_is_one_line(tmp_path, config, programs, expected):
    import shutil

    for damage in ("empty", "cut"):
        run = tmp_path / damage
        shutil.copytree(expected, run)
        for path in sorted((run / STATE_FOLDER).rglob("*")):
            if path.is_file():
                path.write_bytes(b"" if damage == "empty" else path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(UserError, match=r"run .*") as error:
            train(config, run, resume=True, programs=programs)
        assert "\n" not in str(error.value)
