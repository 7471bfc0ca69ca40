"""Tasks on a real Ray cluster and as submitit's processes: each once, whoever is killed; mistakes come back whole."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.executors import RETRIES, LocalExecutor, Task, choose_executor
from tests.executors import work
from tests.executors.conftest import needs

PATIENCE_S = 300.0
DRIVER = """
import sys
from pathlib import Path
from jaxsched.executors import choose_executor
from tests.executors import test_executors, work

with choose_executor("slurm:local", [], Path(sys.argv[1])) as executor:
    list(executor.run(Path(sys.argv[2]), test_executors.tasks_of(work.square, 1)))
"""


def tasks_of(function, count: int) -> list[Task]:
    return [Task(f"task {number}", function, number) for number in range(count)]


def begun(folder: Path, number: int | None = None) -> list[int]:
    """The processes that have begun a task, or any."""
    paths = folder.glob(f"begun-{'*' if number is None else number}-*")
    return [int(path.name.rpartition("-")[2]) for path in paths]


def wait_until(condition) -> None:
    late = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long
def test_a_task_whose_worker_is_killed_is_done_again_and_each_comes_once(executor, tmp_path):
    told, killed = [], []

    def kill() -> None:
        wait_until(lambda: len(begun(tmp_path)) == 3)  # three workers
        killed.extend(begun(tmp_path, 1))
        os.kill(killed[0], signal.SIGKILL)
        wait_until(lambda: not is_running(killed[0]))
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    report = lambda number, value: told.append((number, *value))
    came = list(executor.run(tmp_path, tasks_of(work.square, 5), report))
    killer.join()
    assert sorted(number for number, _ in came) == list(range(5))
    assert all(square == number**2 for number, (_, square) in came)
    assert killed and killed[0] not in [pid for _, (pid, _) in came] and len(begun(tmp_path, 1)) == 2
    assert {(number, argument) for number, argument, _ in told} >= {(0, 0), (1, 1)}
    assert os.getpid() not in [pid for _, (pid, _) in came]


@pytest.mark.long
def test_a_mistake_in_a_task_is_the_users(executor, tmp_path):
    with pytest.raises(UserError, match=r"^1: should be even$"):
        list(executor.run(tmp_path, [Task("odd", work.refused, 1)]))


@pytest.mark.long
def test_a_task_that_loses_every_worker_is_given_up(executor, tmp_path):
    with pytest.raises(UserError, match=rf"^deadly: its worker was lost {RETRIES + 1} times"):
        list(executor.run(tmp_path, [Task("deadly", work.die, 1)]))
    assert len(list(tmp_path.glob("died-*"))) == RETRIES + 1


@pytest.mark.long
def test_who_stops_listening_ends_the_tasks(executor, tmp_path):
    """As Ctrl-C does."""

    def interrupted(number: int, value: object) -> None:
        if len(begun(tmp_path)) == 2:
            raise KeyboardInterrupt

    running = executor.run(tmp_path, tasks_of(work.square, 2), interrupted)
    with closing(running), pytest.raises(KeyboardInterrupt):
        next(running)
    assert len(begun(tmp_path)) == 2
    wait_until(lambda: not any(map(is_running, begun(tmp_path))))


@pytest.mark.long
def test_jobs_of_a_driver_that_was_killed_are_ended(environment, tmp_path):
    needs("submitit")
    jobs = tmp_path / "jobs"
    child = subprocess.Popen([sys.executable, "-c", DRIVER, str(jobs), str(tmp_path)])
    wait_until(lambda: begun(tmp_path) or child.poll() is not None)
    child.kill()
    child.wait()
    (orphan,) = begun(tmp_path)
    assert is_running(orphan)
    with choose_executor("slurm:local", [], jobs):
        wait_until(lambda: not is_running(orphan))
    assert not jobs.exists()


def test_in_this_process_tasks_go_one_after_the_other(tmp_path):
    (tmp_path / "go").touch()
    told = []
    came = list(LocalExecutor().run(tmp_path, tasks_of(work.square, 3), lambda *about: told.append(about)))
    assert came == [(number, (os.getpid(), number**2)) for number in range(3)]
    assert told == [(number, (number, os.getpid())) for number in range(3)]
    assert (LocalExecutor().memory_bytes() or 0) > 2**28
    with pytest.raises(UserError, match="even"):
        list(LocalExecutor().run(tmp_path, tasks_of(work.refused, 1)))
