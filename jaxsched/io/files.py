"""Files: inputs are read whole, within sizes, and never waited for in vain; outputs are written whole or not at all.

Every fault of an input is a one-line `UserError`. Outputs are refused before the long run when they cannot be written,
are written beside their place, and take it in one step. A link stays a link: what it points to is replaced. Into a
device or a pipe, and into what standard output goes to, the content is written as it is.

One process at a time works in a folder: a lock file says who holds it. The lock is the kernel's (`flock`), which ends
with the process, however it ends: a file left behind by one that was killed holds nobody up. On a file system without
such locks the file itself is the lock. There it is known to be left behind if its process ran on this host and is gone.
"""

import errno
import fcntl
import json
import math
import os
import platform
import re
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.machine import home

PATIENCE_S = 1.0  # for the first byte of a pipe that nobody has opened yet
_PIECE_BYTES = 1 << 20
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DIGIT = re.compile("[1-9]")
_MOST_DIGITS = 400
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def read_bytes(path: str | Path, most_bytes: int, wanted: str = "a file") -> bytes:
    """The content of a file or of a pipe.

    UserError if there is none, if it cannot be read, if it has more than `most_bytes`, and if nobody writes into the
    pipe. `wanted` says what it should be, for instance "a CSV file".
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer opens at once
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    try:
        about = os.fstat(handle)
        kind = _KINDS.get(stat.S_IFMT(about.st_mode))
        if kind is not None:
            raise UserError(f"{path}: is {kind}, should be {wanted}")
        if about.st_size > most_bytes:
            raise _too_large(path, most_bytes)
        first = _first_piece(path, handle, wanted) if stat.S_ISFIFO(about.st_mode) else None
        return _all_of(path, handle, first, most_bytes)
    except OSError as error:
        raise unreadable(path, error) from None
    finally:
        os.close(handle)


def read_text(path: str | Path, most_bytes: int, wanted: str = "a text file") -> str:
    """As `read_bytes`, in UTF-8; a byte order mark is left out."""
    try:
        return read_bytes(path, most_bytes, wanted).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not a text file in UTF-8 (byte {error.start}), should be {wanted}") from None


def unreadable(path: str | Path, error: Exception, what: str = "read") -> UserError:
    """The error for a file that the system does not let us read, or do what else is `what`."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    name = shorten(str(path), 200)
    return UserError(f"{name if name.isprintable() else repr(name)}: cannot be {what}: {reason}")


def shorten(text: str, most: int = 60) -> str:
    """`text`, cut in its middle if it is longer than `most` characters: what a message shows of a user's file."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 2 - 3) :]}"


def plain_number(text: str) -> float:
    """The number that `text` is in digits 0 to 9, with a point or an exponent; NaN if it is none, or has no end.

    What is too small for a float, such as 1e-400, is not taken for 0: it is NaN, too.
    """
    value = float(text) if len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text) else math.nan
    return value if value or not _DIGIT.search(text.lower().partition("e")[0]) else math.nan


def _first_piece(path: str | Path, handle: int, wanted: str) -> bytes:
    """What a pipe opened without waiting gives first; from then on reading waits. UserError if nobody writes."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(1000 * PATIENCE_S):  # neither something, nor a writer that came and went
        with suppress(BlockingIOError):  # somebody holds the other end, and may take as long as needed
            piece = os.read(handle, _PIECE_BYTES)
            if not piece:
                raise UserError(f"{path}: is a pipe that nobody writes to, should be {wanted}")
            os.set_blocking(handle, True)
            return piece
    os.set_blocking(handle, True)
    return os.read(handle, _PIECE_BYTES)


def _all_of(path: str | Path, handle: int, first: bytes | None, most_bytes: int) -> bytes:
    pieces, size, piece = [], 0, os.read(handle, _PIECE_BYTES) if first is None else first
    while piece:
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise _too_large(path, most_bytes)
        piece = os.read(handle, _PIECE_BYTES)
    return b"".join(pieces)


def _too_large(path: str | Path, most_bytes: int) -> UserError:
    return UserError(f"{path}: is larger than {most_bytes:,} bytes, the most that is read of such a file")


Write = Callable[[Path], object]  # writes a result into a file of that path

_PROBE_BYTES = 4096


def check_writable(path: str | Path, option: str) -> Path:
    """`path`, if a file can be written there; UserError naming the command line's `option` if not.

    It is tried: a small file beside it is written and deleted.
    """
    path = Path(path)
    try:
        _check(path, f"{option} {path}")
    except (OSError, ValueError) as error:
        raise unreadable(f"{option} {path}", error, "written") from None
    return path


def check_outputs(files: Mapping[str, Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Checks all files that a command is asked to write, by option: see `check_writable`.

    UserError also where two of them are one file, and where one is among `inputs` (names that are no files are passed
    over) or in a folder of them.
    """
    given = {option: path for option, path in files.items() if path is not None}
    for option, path in given.items():
        check_writable(path, option)
    known = [Path(one) for one in inputs if one is not None and _is_there(Path(one))]
    seen: dict[Path, str] = {}
    for option, path in given.items():
        if _is_stream(path):
            continue
        place = Path(os.path.realpath(path))
        if place in seen:
            raise UserError(f"{option} {path}: is the file of {seen[place]}, too; give every result its own name")
        seen[place] = option
        for one in known:
            if _same_file(place, one) or (place.exists() and one.is_dir() and one.resolve() in place.parents):
                raise UserError(f"{option} {path}: would replace a file that the command reads; name another one")


def check_ending(path: Path | None, *endings: str, option: str = "") -> None:
    """UserError if a file's name does not say one of the ways to write it; pipes and devices may have any name."""
    if path is not None and path.suffix.lower() not in endings and (path.is_file() or not path.exists()):
        raise UserError(f"{option} {path}: should end in {' or '.join(endings)}".strip())


def check_folder(path: str | Path, option: str, *, parents: bool = True) -> Path:
    """`path`, if it is a folder, or can become one, into which files can be written. Nothing is left behind.

    Without `parents` the folder that it would be in must be there.
    """
    path = Path(path)
    try:
        if _exists(path) and not path.is_dir():
            raise UserError(f"{option} {path}: is a file, should be a folder")
        if not parents and not path.parent.is_dir():
            raise UserError(f"{option} {path}: the folder {path.parent} does not exist, make it first or name another")
        there = path
        while not _exists(there):
            there = there.parent
        if not there.is_dir():
            raise UserError(f"{option} {path}: {there} is a file, should be a folder")
        _probe(there)
    except (OSError, ValueError) as error:
        raise unreadable(f"{option} {path}", error, "written") from None
    return path


def save_result(path: str | Path, write: Write) -> None:
    """Writes a result that was long in coming. What its place cannot take is kept elsewhere; UserError says where."""
    path = Path(path)
    try:
        _write_through(path, write)
        return
    except OSError as error:
        reason = error.strerror or str(error)
    for folder in (Path(tempfile.gettempdir()), home(), Path()):
        try:
            made = Path(tempfile.mkdtemp(prefix="jaxsched-", dir=folder))
        except OSError:
            continue
        kept = made / (path.name[-100:] or "result")
        try:
            write(kept)
        except BaseException as failure:
            shutil.rmtree(made, ignore_errors=True)  # half a result is none
            if isinstance(failure, OSError):
                continue
            raise
        raise UserError(f"{path}: could not be written: {reason}; the result is in {kept}")
    raise UserError(f"{path}: could not be written: {reason}; there was no other place for the result either")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and is gone when it does not."""
    path = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix[-16:], dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` as the whole of the file."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes `content` as the whole of the file."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _write_through(path: Path, write: Write) -> None:
    if not _is_stream(path):
        with atomic_path(path) as temporary:
            write(temporary)
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"result{path.suffix[-16:]}"
        write(made)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)  # fails where nobody reads the pipe
        os.set_blocking(handle, True)
        with open(handle, "wb") as stream:
            stream.write(made.read_bytes())


def _check(path: Path, shown: str) -> None:
    if path.is_dir():
        raise UserError(f"{shown}: is a folder, should be the name of a file")
    if _is_stream(path):
        if not path.is_fifo():  # who reads a pipe would take this for the end
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        return
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    if not place.parent.is_dir():
        raise UserError(f"{shown}: the folder {place.parent} does not exist, make it first or name another one")
    if not os.access(place.parent, os.W_OK):
        raise UserError(f"{shown}: the folder {place.parent} is not writable, name another one")
    if _exists(place) and not os.access(place, os.W_OK):
        raise UserError(f"{shown}: the file is there and may not be written, name another one")
    _probe(place.parent)


def _probe(folder: Path) -> None:
    """Writes a small file into `folder` and deletes it; OSError if that fails."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _is_stream(path: Path) -> bool:
    """`path` leads to a device, a pipe or a socket, or to where standard output or errors go."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return False
    if stat.S_ISDIR(about.st_mode):
        return False
    if not stat.S_ISREG(about.st_mode):
        return True
    return any(_is_open(handle, about) for handle in (1, 2))


def _is_open(handle: int, about: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), about)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    """There is such a file or folder; OSError and ValueError if there can be none of that name."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_there(path: Path) -> bool:
    try:
        return _exists(path)
    except (OSError, ValueError):
        return False


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
