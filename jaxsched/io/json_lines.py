"""Logs of JSON lines, which a killed process may leave with half a line at their end."""

import json
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.io.files import write_text
from jaxsched.io.inputs import read_text, shorten
from jaxsched.io.schema import convert

MOST_BYTES = 1 << 30


def append(path: Path, row: dict[str, Any]) -> None:
    """Adds one row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path, kind: type = dict, what: str = "row") -> list[dict[str, Any]]:
    """All whole rows, each a `what`; none where there is no file. UserError with the line for what is no `kind`."""
    return [_row(line, kind, what, f"{path}, line {number}") for number, line in enumerate(_lines(path), 1)]


def _row(line: str, kind: type, what: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)  # NaN is written and read: a figure that a chunk does not have
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UserError(f"{where}: {shorten(line)!r} should be a row, one object of JSON")
    convert(kind, row, f"{where}: is no {what}", finite=False)
    return row


def truncate(path: Path, rows: int) -> None:
    """Keep the first `rows` rows; later ones, and a half-written last one, will be written again."""
    _rewrite(path, _lines(path)[:rows])


def mend(path: Path) -> None:
    """Drop a half-written last row, if there is one."""
    if path.exists():
        _rewrite(path, _lines(path))


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return read_text(path, MOST_BYTES).split("\n")[:-1]


def _rewrite(path: Path, lines: list[str]) -> None:
    write_text(path, "".join(line + "\n" for line in lines))
