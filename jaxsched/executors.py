"""Tasks in this process, on a Ray cluster (extra `ray`), or as Slurm jobs through submitit (extra `slurm`).

Slurm's jobs, which may be processes of this machine, and this process talk through files of a folder that all of them
must see.
"""

import logging
import os
import pickle
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxsched.errors import UserError
from jaxsched.io.files import LOCK_FILE, locked, write_bytes
from jaxsched.machine import THREADS_VARIABLE, allow_whole_loops, cores, enable_cache, memory_bytes

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
    with suppress(OSError):
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


LOCAL, RAY, SLURM = KINDS = ("local", "ray", "slurm")


@contextmanager
def choose_executor(on: str, asks: Sequence[str], folder: Path) -> Iterator[Executor]:
    """The executor of `--on` for the time of the block: local, ray[:ADDRESS] or slurm[:local].

    Args:
        on: as on the command line.
        asks: KEY=VALUE, what each task asks for: num_cpus, num_gpus and memory_gib of Ray, submitit's parameters of
            Slurm.
        folder: where Slurm's jobs keep their files; all machines must see it.

    UserError if it cannot be used, before anything is run.
    """
    kind, colon, place = on.partition(":")
    empty = " nothing follows the colon;" if colon and not place else ""
    if kind not in KINDS or empty or (kind == LOCAL and place):
        raise UserError(f"--on {on.removesuffix(':')}:{empty} should be local, ray, ray:ADDRESS, slurm or slurm:local")
    wanted = _read_asks(asks)
    if kind == LOCAL:
        if wanted:
            raise UserError("--ask: is for --on ray and --on slurm; in this process there is nothing to ask for")
        yield LocalExecutor()
    elif kind == RAY:
        for name, value in wanted.items():
            if name not in RAY_ASKS or not isinstance(value, int | float) or value < 0:
                raise UserError(f"--ask {name}={value}: should be a number of {', '.join(RAY_ASKS)}")
        with connect_ray(place, wanted) as executor:
            yield executor
    else:
        with open_slurm(place or SLURM, wanted, folder) as executor:
            yield executor


def _read_asks(asks: Sequence[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for ask in asks:
        name, is_one, value = ask.partition("=")
        if not (name and is_one and value):
            raise UserError(f"--ask {ask}: should be KEY=VALUE, for instance num_cpus=4 or timeout_min=600")
        if name in wanted:
            raise UserError(f"--ask {ask}: {name} stands twice")
        wanted[name] = _number(value)
    return wanted


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


RAY_ASKS = {"num_cpus": "num_cpus", "num_gpus": "num_gpus", "memory_gib": "memory"}
_CONNECT_S = 5.0
_TAKE_S = 10.0


class _Mailbox:
    """An actor that keeps what each task told last, until it is asked."""

    def __init__(self) -> None:
        self._told: dict[int, Any] = {}

    def tell(self, number: int, value: Any) -> None:
        self._told[number] = value

    def take(self) -> dict[int, Any]:
        told, self._told = self._told, {}
        return told


def _attempt_on_ray(common: Any, task: Task, number: int, mailbox: Any, folder: Path) -> Attempt:
    def tell(value: Any) -> None:
        mailbox.tell.remote(number, value)

    return attempt(common, task, tell, folder)


class RayExecutor:
    """See `Executor`. Ray itself does again what a lost worker or machine had begun."""

    def __init__(self, asks: Mapping[str, float]) -> None:
        self._asks = {RAY_ASKS[name]: value * 2**30 if name == "memory_gib" else value for name, value in asks.items()}

    def memory_bytes(self) -> int | None:
        """Of the roomiest machine of the cluster."""
        import ray

        machines = [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]
        return int(max(machines, default=0.0)) or None

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """Tasks wait until the cluster has what they ask for."""
        import ray

        mailbox: Any = ray.remote(_Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        remote: Any = ray.remote(_attempt_on_ray).options(max_retries=RETRIES, **self._asks)
        shared, folder = ray.put(common), Path.cwd()
        numbers = {remote.remote(shared, task, i, mailbox, folder): i for i, task in enumerate(tasks)}
        try:
            while numbers:
                done, _ = ray.wait(list(numbers), timeout=POLL_S)
                if report is not None:
                    for number, value in _take_reports(mailbox).items():
                        report(number, value)
                for reference in done:
                    number = numbers.pop(reference)
                    yield number, result_of(_fetch_from_ray(reference, tasks[number]))
        finally:
            for reference in numbers:
                ray.cancel(reference, force=True)
            ray.kill(mailbox)


def _take_reports(mailbox: Any) -> dict[int, Any]:
    """What is in the mailbox; nothing while it is started anew, because its machine was lost."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        return ray.get(mailbox.take.remote(), timeout=_TAKE_S)
    except (RayActorError, GetTimeoutError):
        return {}


def _fetch_from_ray(reference: Any, task: Task) -> Attempt:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            raise UserError(f"ray: a worker lacks a package ({error.cause}); install jaxsched there") from None
        raise
    except RayError as error:
        raise lost_worker_error(task, str(error)) from None


@contextmanager
def connect_ray(address: str, asks: Mapping[str, float]) -> Iterator[RayExecutor]:
    """An executor on the cluster at `address`, HOST:PORT or ray://HOST:PORT.

    Without an address it is the cluster that `RAY_ADDRESS` names, else one that runs on this machine, else one that is
    started here and ended with the block. UserError if the cluster does not answer, or has not what a task asks for.
    """
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError:
        raise UserError("--on ray: needs Ray, which is not installed: pip install 'jaxsched[ray]'") from None
    where = address or os.environ.get("RAY_ADDRESS", "")
    _check_answers(where)
    quiet: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=where or None, **quiet)
    except (ConnectionError, RuntimeError, ValueError, SystemExit, RayError) as error:  # the last one without a token
        reason = " ".join(str(error).split())[:200]
        hint = "where a cluster wants tokens, set RAY_AUTH_MODE=token here as well"
        if os.environ.get("RAY_AUTH_MODE") == "token":
            hint = "the cluster's token is needed in ~/.ray/auth_token here; `ray get-auth-token --generate` makes one"
        raise UserError(f"--on ray: no cluster at {where or 'this machine'}: {reason}; {hint}") from None
    try:
        executor = RayExecutor(asks)
        _check_asks(executor, ray.cluster_resources())
        yield executor
    finally:
        ray.shutdown()


def _check_answers(where: str) -> None:
    """Ray itself tries for a minute."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if not where or where == "auto":
        return
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--on ray:{where}: should be ray:HOST:PORT or ray:ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"--on ray:{where}: no cluster answers there ({error.strerror or error}); start one with `ray start --head`"
        ) from None


def _check_asks(executor: RayExecutor, there: Mapping[str, float]) -> None:
    short = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    for name, value in executor._asks.items():
        if value > there.get(short[name], 0.0):
            raise UserError(f"--ask: {name} {value:g} is more than the cluster has, {there.get(short[name], 0.0):g}")


COMMON_FILE, TOLD_SUFFIX = "common", ".told"
AT_ONCE = "slurm_array_parallelism"
_TELL_EVERY_S = 1.0
_DAY_MIN, _FOREVER_MIN = 24 * 60, 10 * 365 * 24 * 60


def _attempt_in_job(folder: Path, number: int, task: Task, here: Path) -> Attempt:
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
                    outcome = _fetch_from_job(jobs.pop(number))
                    if isinstance(outcome, Attempt):
                        yield number, result_of(outcome)
                    elif begun[number] > RETRIES:
                        raise lost_worker_error(tasks[number], outcome)
                    else:
                        waiting.append(number)
        finally:
            for job in jobs.values():
                _end_job(self._kind, job.job_id, self._folder)

    def _submit(self, numbers: Sequence[int], tasks: Sequence[Task]) -> dict[int, Any]:
        if not numbers:
            return {}
        here = Path.cwd()
        with self._submitter.batch():
            return {
                number: self._submitter.submit(_attempt_in_job, self._folder, number, tasks[number], here)
                for number in numbers
            }

    def _take_reports(self) -> Iterator[tuple[int, Any]]:
        for path in self._folder.glob(f"[0-9]*{TOLD_SUFFIX}"):
            yield int(path.name.removesuffix(TOLD_SUFFIX)), pickle.loads(path.read_bytes())
            path.unlink(missing_ok=True)


def _fetch_from_job(job: Any) -> Attempt | str:
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
        _end_job(kind, path.name.removesuffix("_submitted.pkl"), folder)


def _end_job(kind: str, number: str, folder: Path) -> None:
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
