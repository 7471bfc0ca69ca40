"""A sweep on three workers of which one is killed, and comparisons elsewhere: the tables are those of one process."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml

from jaxsched.cli.main import main
from jaxsched.executors import choose_executor
from jaxsched.io.json_file import read_rows
from jaxsched.sweeps import run as sweep
from jaxsched.sweeps.plan import Sweep, load_sweep
from tests.executors.conftest import MARK, needs
from tests.support.cases import TIMES
from tests.sweeps.test_sweep import BASE, TESTS, Killed

PATIENCE_S = 600.0
TIMED = ("training", "measuring", "folder")


def planned(folder: Path) -> Sweep:
    folder.mkdir()
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    content = {"base": "base.yaml", "out": str(folder / "out"), "evaluate": TESTS, "runs_at_once": 1}
    content |= {"axes": {"ppo.learning_rate": [0.001, 0.01]}, "seeds": [0, 1, 2]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    return load_sweep(folder / "sweep.yaml")


def untimed(plan: Sweep) -> dict[str, dict]:
    """The rows by their ids, each of which stands once, without seconds."""
    rows = read_rows(plan.out / "rows.jsonl")
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        for test in row["tests"].values():
            del test["run_s_per_job"]
    return {row["id"]: {key: value for key, value in row.items() if key not in TIMED} for row in rows}


def working() -> list[int]:
    """Processes that have a task, of workers that these tests have started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        ours = f"{MARK}={os.environ[MARK]}".encode() in variables.split(b"\0")
        if ours and (words.startswith(b"ray::_attempt") or b"submitit.core._submit" in words):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The table of one process."""
    plan = planned(tmp_path_factory.mktemp("alone") / "sweep")
    sweep.run(plan)
    return untimed(plan)


@pytest.mark.long
@pytest.mark.skipif(TIMES == 1, reason="two minutes of CPU for each kind of worker: CASES=2 make test-long")
def test_a_sweep_that_loses_its_driver_and_a_worker_has_the_table_of_one_process(alone, on, tmp_path):
    plan = planned(tmp_path / "sweep")
    asks = ["slurm_array_parallelism=3"] if on == "slurm:local" else ["num_cpus=1"]
    rows = plan.out / "rows.jsonl"

    def stop(*progress: object) -> None:
        if rows.exists():
            raise Killed

    with choose_executor(on, asks, plan.out / "jobs") as executor, pytest.raises(Killed):
        sweep.run(plan, stop, executor)
    first = untimed(plan)
    assert 0 < len(first) < 6
    killed, told = [], []

    def kill() -> None:
        """One of the workers, as soon as there are runs under way."""
        late = time.monotonic() + PATIENCE_S
        while not (told and working()):
            assert time.monotonic() < late
            time.sleep(0.05)
        killed.append(working()[0])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with choose_executor(on, asks, plan.out / "jobs") as executor:
        killer.start()
        sweep.run(plan, lambda *progress: told.append(progress), executor)
    killer.join()
    assert killed and untimed(plan) == alone
    done = {row["point"] for row in first.values()}
    assert told and not done & {name for name, *_ in told}  # finished rows are not run again
    assert len(read_rows(plan.out / "baselines.jsonl")) == 1
    assert {path.name for path in plan.out.iterdir()} == {"rows.jsonl", "baselines.jsonl", "points"}


@pytest.mark.long
def test_a_comparison_by_jobs_is_that_of_one_process(environment, tmp_path, monkeypatch):
    needs("submitit")
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    command = ["evaluate", "--cluster", "leaf-spine-2", "--num-jobs", "30", "--seeds", "2", "--policies", "pack"]
    found = []
    for on in ("local", "slurm:local"):
        path = tmp_path / f"{on}.json"
        monkeypatch.chdir(tmp_path)
        main([*command, "--on", on, "--json", str(path)])
        result = json.loads(path.read_text())
        for run in result["config"]["runs"].values():
            for seed in run["seeds"]:
                del seed["wall_s"], seed["compile_s"]
        found.append(result)
    assert found[0] == found[1]
    assert {path.name for path in tmp_path.iterdir()} == {"local.json", "slurm:local.json"}
