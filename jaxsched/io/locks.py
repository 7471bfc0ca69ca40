"""One process at a time in a folder: a lock file that says who holds it, and is free when its holder is gone.

The lock is the kernel's (`flock`), which ends with the process, however it ends: a file left behind by one that was
killed holds nobody up. On a file system without such locks the file itself is the lock. There it is known to be left
behind if its process ran on this host and is gone.
"""

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxsched.errors import UserError

LOCK_FILE = ".lock"
_BUSY = (errno.EAGAIN, errno.EACCES)
_LONGEST_BYTES = 4096
_AGAIN_S = 0.05


@contextmanager
def locked(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Holds the lock of `folder`, which is made if it is not there.

    UserError naming the process that holds it, if that does not end within `wait_s`.
    """
    path, late = folder / LOCK_FILE, time.monotonic() + wait_s
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _opened(path, late)
    except OSError as error:
        raise UserError(f"{folder}: cannot be locked: {error.strerror}") from None
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"host": platform.node(), "pid": os.getpid()}).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _opened(path: Path, late: float) -> int:
    """The lock file, open and locked."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        held = False
        try:
            _take(path, handle)
            held = _still_there(path, handle)  # who held it before may have deleted it just now
            if held:
                return handle
        except UserError:
            if time.monotonic() >= late:
                raise
            time.sleep(_AGAIN_S)
        finally:
            if not held:
                os.close(handle)


def _take(path: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(handle)
        if error.errno in _BUSY:
            raise _taken(path, holder) from None
        if holder and not _gone(holder):  # a file system without locks
            raise _taken(path, holder) from None


def _still_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _holder(handle: int) -> dict[str, object]:
    """What the file says; empty if it says nothing that can be read."""
    try:
        said = json.loads(os.pread(handle, _LONGEST_BYTES, 0))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _gone(holder: dict[str, object]) -> bool:
    """The process ran on this host and does so no more."""
    pid = holder.get("pid")
    if holder.get("host") != platform.node() or not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _taken(path: Path, holder: dict[str, object]) -> UserError:
    pid, host = holder.get("pid", "unknown"), holder.get("host", "unknown")
    return UserError(
        f"{path.parent}: is in use by process {pid} on {host}; wait for it, or choose another folder (if that process "
        f"is gone for sure, delete {path})"
    )
