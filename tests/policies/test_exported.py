"""A checkpoint as a StableHLO program: the same decisions, without the libraries that it was trained with."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from jaxsched.cli.check import what_is
from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.policies.exported import CARD_FILE, PROGRAM_FILE, export_policy, load_exported
from jaxsched.policies.registry import parse
from jaxsched.shipped import CHECKPOINTS, find
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate

pytest.importorskip("flatbuffers")

PLAY = """
import sys
from jaxsched.policies.registry import parse
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate

on = load_scenario("leaf-spine-2", "distributed", schedulers=2, num_jobs=30, load=1.2, seeds=2)
(runs,) = simulate([parse(sys.argv[1])], on.cluster, on.jobs, Settings()).values()
print(*(float(run.finish_s.mean()) for run in runs))
print(*(name for name in ("jaxsched.learning", "jaxsched.networks", "jraph", "optax") if name in sys.modules))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    checkpoint = find(CHECKPOINTS, "quickstart")
    assert checkpoint is not None
    path = tmp_path_factory.mktemp("exported") / "quickstart"
    export_policy(checkpoint, get_cluster("leaf-spine-2", 2), path)
    return path


@pytest.mark.slower
def test_the_program_decides_as_the_checkpoint_does_without_its_libraries(folder):
    on = load_scenario("leaf-spine-2", "distributed", schedulers=2, num_jobs=30, load=1.2, seeds=2)
    (theirs,) = simulate([parse("quickstart")], on.cluster, on.jobs, Settings()).values()
    command = [sys.executable, "-c", PLAY, str(folder)]
    means, loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert loaded == ""
    np.testing.assert_array_equal([float(mean) for mean in means.split()], [run.finish_s.mean() for run in theirs])
    assert all((run.queue_s > 0).any() for run in theirs), "nobody had to choose"


def test_a_cluster_of_other_sizes_is_refused(folder):
    assert what_is(folder) == "an exported policy"
    on = load_scenario("leaf-spine-4", "distributed", schedulers=2, num_jobs=5)
    with pytest.raises(UserError, match=r"is for observation.group float32\[2, 1, 2, 8\], this cluster has .*2, 2, 2"):
        simulate([load_exported(folder)], on.cluster, on.jobs, Settings())


def test_a_folder_that_is_wrong_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / PROGRAM_FILE).write_bytes((folder / PROGRAM_FILE).read_bytes()[:100])
    with pytest.raises(UserError, match=f"{PROGRAM_FILE} is not readable"):
        load_exported(tmp_path / "cut")
    (tmp_path / "cut" / PROGRAM_FILE).unlink()
    with pytest.raises(UserError, match="no such file"):
        load_exported(tmp_path / "cut")
    (tmp_path / "cut" / CARD_FILE).write_text('{"what": "exported policy", "schema": 1, "versions": {}}')
    with pytest.raises(UserError, match="inputs"):
        load_exported(tmp_path / "cut")


def test_an_unknown_platform_is_refused(tmp_path):
    with pytest.raises(UserError, match="platforms: nowhere should each be one of cpu, cuda"):
        export_policy(find(CHECKPOINTS, "quickstart"), get_cluster("leaf-spine-2", 2), tmp_path, ("nowhere",))  # pyright: ignore[reportArgumentType]
