"""Output files: refused before the long run when they cannot be written, never half-written, and never lost.

A file is written beside its place and takes it in one step. A link stays a link: what it points to is replaced. Into a
device or a pipe, and into what standard output goes to, the content is written as it is.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.io.inputs import unreadable
from jaxsched.machine import home

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
