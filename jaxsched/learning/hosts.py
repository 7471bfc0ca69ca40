"""One run in several processes, on one or more machines: they meet, share the shards, and the first of them writes.

Every process computes the same; what differs are the shards that its devices hold. All must see the run's folder: Orbax
writes every process' part of a step into it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental import multihost_utils

from jaxsched.errors import UserError
from jaxsched.io.locks import locked

AUTO = "auto"
MEET_S = 300


def join(where: str) -> None:
    """Meets the other processes; before JAX looks at its devices.

    `where` is HOST:PORT,COUNT,NUMBER: the address of the first process, how many there are, and which one this is; or
    auto, where JAX finds that out (Slurm, Open MPI). UserError if they cannot meet.
    """
    try:
        if where == AUTO:
            jax.distributed.initialize(initialization_timeout=MEET_S)
            return
        address, count, number = where.split(",")
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and 0 <= int(number) < int(count)):
            raise ValueError(where)
    except ValueError as error:
        what = "auto finds no other processes" if where == AUTO else f"{where!r} is not understood"
        raise UserError(f"--hosts: {what} ({error}); give HOST:PORT,COUNT,NUMBER, as in head:1234,2,0") from None
    except RuntimeError as error:
        raise _apart(error) from None
    try:
        jax.distributed.initialize(address, int(count), int(number), initialization_timeout=MEET_S)
    except RuntimeError as error:
        raise _apart(error) from None


def _apart(error: RuntimeError) -> UserError:
    return UserError(f"--hosts: the processes do not meet within {MEET_S} s: {' '.join(str(error).split())[:200]}")


def is_first() -> bool:
    """This process writes; True where there is only one."""
    return jax.process_index() == 0


def together(where: str) -> None:
    """Waits until all processes are at this place."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


@contextlib.contextmanager
def locked_by_first(folder: Path) -> Iterator[None]:
    """Holds the lock of `folder` for all processes. All enter and leave together."""
    with locked(folder) if is_first() else contextlib.nullcontext():
        together(f"enter {folder}")
        yield
        together(f"leave {folder}")


def check_shards(shards: int) -> None:
    """UserError if the shards cannot be shared out evenly among the devices of all processes."""
    count, each = jax.process_count(), jax.local_device_count()
    if count > 1 and (shards % count or shards > count * each):
        raise UserError(
            f"--shards {shards}: {count} processes of {each} devices each should have {count} to {count * each} "
            f"shards, a multiple of {count}"
        )
