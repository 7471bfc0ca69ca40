"""Logs of JSON lines, which a killed process may leave with half a line at their end."""

import json
from pathlib import Path
from typing import Any

from jaxsched.files import write_text


def append(path: Path, row: dict[str, Any]) -> None:
    """Adds one row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows; none where there is no file."""
    return [json.loads(line) for line in _lines(path)]


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
    return [line.removesuffix("\n") for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _rewrite(path: Path, lines: list[str]) -> None:
    write_text(path, "".join(line + "\n" for line in lines))
