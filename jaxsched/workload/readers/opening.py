"""A log's content: from a file or standard input, unpacked if it is compressed, as text or as a Parquet table."""

import gzip
import importlib
import io
import sys
import zlib
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.io.csv_file import MOST_BYTES
from jaxsched.io.inputs import read_bytes

STDIN = Path("-")
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


def parquet_columns(path: Path, content: bytes) -> dict[str, list[str]]:
    """The columns of a Parquet file, every cell as text; '' where there is none. Needs the extra `tables`."""
    pyarrow = _pyarrow(path, "Parquet")
    try:
        table = importlib.import_module("pyarrow.parquet").read_table(io.BytesIO(content))
        return {
            name: ["" if value is None else str(value) for value in column.to_pylist()]
            for name, column in zip(table.column_names, table.columns)
        }
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: is not a Parquet file that can be read: {' '.join(str(error).split())}") from None


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
