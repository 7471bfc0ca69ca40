"""Tasks on a Ray cluster, one that is there or one that is started on this machine. Needs the extra `ray`."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.executors.executor import POLL_S, RETRIES, Attempt, Report, Task, attempt, lost_worker_error, result_of

ASKS = {"num_cpus": "num_cpus", "num_gpus": "num_gpus", "memory_gib": "memory"}
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


def _attempt(common: Any, task: Task, number: int, mailbox: Any, folder: Path) -> Attempt:
    def tell(value: Any) -> None:
        mailbox.tell.remote(number, value)

    return attempt(common, task, tell, folder)


class RayExecutor:
    """See `Executor`. Ray itself does again what a lost worker or machine had begun."""

    def __init__(self, asks: Mapping[str, float]) -> None:
        self._asks = {ASKS[name]: value * 2**30 if name == "memory_gib" else value for name, value in asks.items()}

    def memory_bytes(self) -> int | None:
        """Of the roomiest machine of the cluster."""
        import ray

        machines = [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]
        return int(max(machines, default=0.0)) or None

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """Tasks wait until the cluster has what they ask for."""
        import ray

        mailbox: Any = ray.remote(_Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        remote: Any = ray.remote(_attempt).options(max_retries=RETRIES, **self._asks)
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
                    yield number, result_of(_fetch(reference, tasks[number]))
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


def _fetch(reference: Any, task: Task) -> Attempt:
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
