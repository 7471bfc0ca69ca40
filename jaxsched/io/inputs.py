"""Input files: read whole, never beyond a size, and never waited for in vain. Every fault is a one-line `UserError`."""

import contextlib
import math
import os
import re
import select
import stat
from pathlib import Path

from jaxsched.errors import UserError

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
        with contextlib.suppress(BlockingIOError):  # somebody holds the other end, and may take as long as needed
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
