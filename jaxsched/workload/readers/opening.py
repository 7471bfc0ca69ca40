"""A log's content: from a file or standard input, unpacked if it is compressed, as text or as a Parquet table."""

import contextlib
import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.io.csv_file import MOST_BYTES
from jaxsched.io.files import read_bytes

STDIN = Path("-")
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # Parquet's units of durations
PACKED = (".gz", ".zst", ".zstd")  # endings; what a file is, its first bytes tell
_GZIP, _ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


def read_log_bytes(path: Path) -> bytes:
    """The unpacked content of a file, or of standard input where `path` is `-`.

    UserError if it cannot be read, is damaged, or has more than `MOST_BYTES`.
    """
    if path == STDIN:
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise _too_large(path)
    else:
        content = read_bytes(path, MOST_BYTES, "a job log")
    if content.startswith(_GZIP):
        return _unpacked(path, gzip.GzipFile(fileobj=io.BytesIO(content)), "gzip")
    if content.startswith(_ZSTD):
        return _unpacked(path, _zstd(path, content), "zstd")
    return content


def as_text(path: Path, content: bytes) -> str:
    """The text of a log in UTF-8, without a byte order mark, lines ending with a newline alone."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not a text file in UTF-8 (byte {error.start}), should be a job log") from None
    return text.replace("\r\n", "\n") if "\r" in text else text


class ParquetTable:
    """A Parquet file. Needs the extra `tables`; UserError if it is not there, or the file cannot be read."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._arrow = path, _pyarrow(path, "Parquet")
        with self._mistakes():
            self._table = importlib.import_module("pyarrow.parquet").read_table(
                io.BytesIO(content), page_checksum_verification=True
            )
        self.names: tuple[str, ...] = tuple(self._table.column_names)
        self.rows: int = self._table.num_rows

    def cells(self, name: str) -> list[str]:
        """A column as text; '' where there is nothing. Moments are in UTC, durations in seconds."""
        with self._mistakes(f", column {name}"):
            column = self._table.column(name)
            if self._arrow.types.is_timestamp(column.type):
                column = self._moments(column)
            if self._arrow.types.is_duration(column.type):
                parts = column.cast(self._arrow.int64()).to_pylist()
                return ["" if one is None else repr(one / PER_S[column.type.unit]) for one in parts]
            return column.cast(self._arrow.string()).fill_null("").to_pylist()

    def _moments(self, column: Any) -> Any:
        """In whole seconds where they are, which are read far quicker; else in millionths."""
        column = column.cast(self._arrow.timestamp(column.type.unit))  # the moments in UTC, whatever zone it has
        try:
            return column.cast(self._arrow.timestamp("s"))
        except self._arrow.ArrowInvalid:
            return column.cast(self._arrow.timestamp("us"), safe=False)

    @contextlib.contextmanager
    def _mistakes(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except (self._arrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
            said = " ".join(str(error).split())
            raise UserError(f"{self._path}{where}: is no Parquet that can be read as a table: {said}") from None


def _zstd(path: Path, content: bytes) -> Any:
    try:
        return importlib.import_module("compression.zstd").ZstdFile(io.BytesIO(content))  # from Python 3.14 on
    except ImportError:
        return _pyarrow(path, "zstd").CompressedInputStream(io.BytesIO(content), "zstd")


def _pyarrow(path: Path, what: str) -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise UserError(
            f"{path}: {what} needs pyarrow; install the extra, pip install 'jaxsched[tables]', or unpack it as CSV"
        ) from None


def _unpacked(path: Path, stream: Any, kind: str) -> bytes:
    try:
        content = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UserError(f"{path}: is damaged, {kind} says: {' '.join(str(error).split())}") from None
    except Exception as error:  # compression.zstd has an error of its own, which only it can name
        if type(error).__name__ != "ZstdError":
            raise
        raise UserError(f"{path}: is damaged, {kind} says: {error}") from None
    if len(content) > MOST_BYTES:
        raise _too_large(path)
    return content


def _too_large(path: Path) -> UserError:
    return UserError(f"{path}: is larger than {MOST_BYTES:,} bytes when unpacked, the most that is read of a log")
