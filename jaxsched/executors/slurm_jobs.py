"""Tasks as Slurm jobs, through submitit; or the same as processes of this machine. Needs the extra `slurm`.

Jobs and this process talk through files of a folder, which all of them must see.
"""

import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.executors.executor import POLL_S, RETRIES, Attempt, Report, Task, attempt, lost_worker_error, result_of
from jaxsched.io.files import write_bytes
from jaxsched.io.locks import LOCK_FILE, locked
from jaxsched.machine import cores, memory_bytes

LOCAL, SLURM = "local", "slurm"
COMMON_FILE, TOLD_SUFFIX = "common", ".told"
AT_ONCE = "slurm_array_parallelism"
_TELL_EVERY_S = 1.0
_DAY_MIN, _FOREVER_MIN = 24 * 60, 10 * 365 * 24 * 60


def _attempt(folder: Path, number: int, task: Task, here: Path) -> Attempt:
    """In a job: what a task tells goes into a file."""
    last = -_TELL_EVERY_S

    def tell(value: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= _TELL_EVERY_S:
            last = time.monotonic()
            write_bytes(folder / f"{number}{TOLD_SUFFIX}", pickle.dumps(value))

    return attempt(pickle.loads((folder / COMMON_FILE).read_bytes()), task, tell, here)


class SlurmExecutor:
    """See `Executor`. Jobs that end without a result, killed or out of time, are submitted again."""

    def __init__(self, kind: str, submitter: Any, folder: Path, at_once: int | None, memory: int | None) -> None:
        self._kind, self._submitter, self._folder = kind, submitter, folder
        self._at_once, self._memory = at_once, memory

    def memory_bytes(self) -> int | None:
        """What jobs ask for, if they say it."""
        return self._memory

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """All tasks are submitted as one array; on this machine only so many as run at once."""
        write_bytes(self._folder / COMMON_FILE, pickle.dumps(common))
        waiting, jobs, begun = list(range(len(tasks))), {}, [0] * len(tasks)
        try:
            while waiting or jobs:
                free = len(waiting) if self._at_once is None else self._at_once - len(jobs)
                now, waiting = waiting[:free], waiting[free:]
                jobs |= self._submit(now, tasks)
                for number in now:
                    begun[number] += 1
                time.sleep(POLL_S)
                if report is not None:
                    for number, value in self._take_reports():
                        report(number, value)
                for number in [number for number, job in jobs.items() if job.done()]:
                    outcome = _fetch(jobs.pop(number))
                    if isinstance(outcome, Attempt):
                        yield number, result_of(outcome)
                    elif begun[number] > RETRIES:
                        raise lost_worker_error(tasks[number], outcome)
                    else:
                        waiting.append(number)
        finally:
            for job in jobs.values():
                _end(self._kind, job.job_id, self._folder)

    def _submit(self, numbers: Sequence[int], tasks: Sequence[Task]) -> dict[int, Any]:
        if not numbers:
            return {}
        here = Path.cwd()
        with self._submitter.batch():
            return {
                number: self._submitter.submit(_attempt, self._folder, number, tasks[number], here)
                for number in numbers
            }

    def _take_reports(self) -> Iterator[tuple[int, Any]]:
        for path in self._folder.glob(f"[0-9]*{TOLD_SUFFIX}"):
            yield int(path.name.removesuffix(TOLD_SUFFIX)), pickle.loads(path.read_bytes())
            path.unlink(missing_ok=True)


def _fetch(job: Any) -> Attempt | str:
    """What came of a job that has ended, or why nothing came."""
    from submitit.core.utils import UncompletedJobError

    job._results_timeout_s = 5
    try:
        return job.result()
    except UncompletedJobError as error:
        return str(error)


@contextmanager
def open_slurm(kind: str, asks: Mapping[str, Any], folder: Path) -> Iterator[SlurmExecutor]:
    """An executor whose jobs keep their files in `folder` until the block ends.

    `kind` is slurm or local; `asks` are submitit's parameters. Jobs that an earlier process has left in the folder are
    ended first. UserError where there is no Slurm, or no such parameter.
    """
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # else it writes to stdout, and closes others' handlers
    try:
        import_module("submitit")
    except ImportError:
        raise UserError("--on slurm: needs submitit, which is not installed: pip install 'jaxsched[slurm]'") from None
    if kind not in (SLURM, LOCAL):
        raise UserError(f"--on slurm:{kind}: should be slurm, or slurm:local for processes of this machine")
    if kind == SLURM and (missing := [name for name in ("sbatch", "srun") if shutil.which(name) is None]):
        raise UserError(f"--on slurm: this machine has no {missing[0]}; start this where Slurm's commands are")
    with tempfile.TemporaryDirectory() as elsewhere:  # what it refuses leaves no folder behind
        _submitter(kind, asks, Path(elsewhere))
    folder = folder.resolve()
    with locked(folder):
        _end_leftovers(kind, folder)
        _clear(folder)
        submitter = _submitter(kind, asks, folder)
        memory = int(asks["mem_gb"] * 2**30) if "mem_gb" in asks else None if kind == SLURM else memory_bytes()
        at_once = int(asks.get(AT_ONCE, cores())) if kind == LOCAL else None
        try:
            yield SlurmExecutor(kind, submitter, folder, at_once, memory)
        finally:
            _clear(folder)
    with suppress(OSError):
        folder.rmdir()


def _submitter(kind: str, asks: Mapping[str, Any], folder: Path) -> Any:
    import submitit

    default = {"timeout_min": _DAY_MIN if kind == SLURM else _FOREVER_MIN, "name": "jaxsched"}
    submitter = submitit.AutoExecutor(folder, cluster=kind)
    try:
        submitter.update_parameters(**{**default, **asks})
    except (NameError, AssertionError, ValueError, TypeError) as error:
        raise UserError(f"--ask: {' '.join(str(error).split())[:300]}") from None
    return submitter


def _clear(folder: Path) -> None:
    """Removes all files but the lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK_FILE:
            path.unlink(missing_ok=True)


def _end_leftovers(kind: str, folder: Path) -> None:
    """Ends the jobs of a process that was killed: they would train what is submitted anew."""
    for path in folder.glob("*_submitted.pkl"):
        _end(kind, path.name.removesuffix("_submitted.pkl"), folder)


def _end(kind: str, number: str, folder: Path) -> None:
    """Ends a job of this folder, if it still runs.

    On this machine a job is submitit's controller, and the task its child, which lets SIGTERM pass. When that is gone,
    the controller ends by itself; a signal to the controller would have it print where it was.
    """
    if kind == SLURM:
        import submitit

        submitit.SlurmJob(folder, number).cancel(check=False)
        return
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        children = Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    if os.fsencode(folder) not in words:  # another process has the number by now
        return
    for pid in map(int, children or [number]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
