"""Output files: refused before the long run when they cannot be written, never half-written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxsched.errors import UserError


def check_writable(path: str | Path, option: str) -> Path:
    """`path`, if a file can be made there; UserError naming the command line's `option` if not."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder, should be the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: the folder {path.parent} does not exist, make it first or name another one")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{option} {path}: the folder {path.parent} is not writable, name another one")
    return path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and is gone when it does not."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
