"""What does tasks: the contract, the executor of this process, and what happens around a task on another machine."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxsched.errors import UserError
from jaxsched.machine import THREADS_VARIABLE, allow_whole_loops, enable_cache, memory_bytes

RETRIES = 3  # of a task whose worker was lost
POLL_S = 0.5

Tell = Callable[[Any], None]  # how far a task is, any value that can be pickled
Report = Callable[[int, Any], None]  # the number of a task, and what it told last
Work = Callable[[Any, Any, Tell], Any]  # of what is common to all tasks, of the task's own argument, and `Tell`


class Task(NamedTuple):
    """One piece of work. `work` is a function of a module, and `argument` can be pickled."""

    name: str
    work: Work
    argument: Any


class Executor(Protocol):
    """Does tasks, in any order."""

    def memory_bytes(self) -> int | None:
        """What the worker with most memory has; None where that is not known."""
        ...

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """Numbers and results of tasks as they end, each task once.

        A task whose worker is lost is done again, `RETRIES` times at most. A task may so be begun more than once, and
        two of them may overlap where a worker only seems to be lost. UserError: what a task raised, or a task that
        loses its worker each time. Tasks that go on when the iterator is closed are ended.
        """
        ...


class LocalExecutor:
    """See `Executor`. Nothing is pickled, and no worker can be lost."""

    def memory_bytes(self) -> int | None:
        """Of the accelerator, else of this machine."""
        import jax

        if jax.default_backend() == "cpu":
            return memory_bytes()
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """In the order of the tasks."""
        for number, task in enumerate(tasks):

            def tell(value: Any, number: int = number) -> None:
                if report is not None:
                    report(number, value)

            yield number, task.work(common, task.argument, tell)


class Attempt(NamedTuple):
    """What came of a task on another machine."""

    refused: str | None  # the message of a UserError
    result: Any


def attempt(common: Any, task: Task, tell: Tell, folder: Path) -> Attempt:
    """Does a task on another machine, in `folder` where that is there, set up as the command line is."""
    allow_whole_loops()
    enable_cache()
    os.environ.setdefault(THREADS_VARIABLE, _cores_asked_for())
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        return Attempt(None, task.work(common, task.argument, tell))
    except UserError as error:
        return Attempt(str(error), None)


def _cores_asked_for() -> str:
    """Of a worker: as Slurm says, or Ray by this variable; 2 where nobody does, for there may be one per core."""
    asked = (os.environ.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"))
    return next((cores for cores in asked if cores.isdecimal()), "2")


def result_of(attempt: Attempt) -> Any:
    """The result. UserError if the task raised one."""
    if attempt.refused is not None:
        raise UserError(attempt.refused)
    return attempt.result


def lost_worker_error(task: Task, why: str) -> UserError:
    """What to say of a task that loses its worker each time."""
    reason = " ".join(why.split())[:200]
    return UserError(f"{task.name}: its worker was lost {RETRIES + 1} times, last: {reason}; what is finished is kept")
