"""Tables of measurements: CSV files that are told apart by their columns."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxsched.errors import UserError
from jaxsched.io import csv_file
from jaxsched.io.inputs import shortened
from jaxsched.workload.rows import Row, rows_of


class Format(NamedTuple):
    """Tables of these columns, in any order."""

    columns: tuple[str, ...]
    parse: Callable[[Row], Any]  # what a row says; UserError on a wrong cell
    about: str = ""  # what is measured, for the error that names all formats

    def __str__(self) -> str:
        return ",".join(self.columns) + (f" ({self.about})" if self.about else "")


def read_table(path: Path, formats: Sequence[Format]) -> tuple[Format, list[Any]]:
    """The format of a file and its rows, parsed. UserError on another header, on no row and on a wrong cell."""
    table = csv_file.read_table(path)
    for known in formats:
        if sorted(table.header) == sorted(known.columns):
            return known, some(path, map(known.parse, rows_of(table)))
    header = shortened(",".join(table.header), 200)
    raise UserError(f"{path}, line 1: the header {header!r} should be {' or '.join(map(str, formats))}")


def some(path: Path, rows: Iterable[Any]) -> list[Any]:
    """All of `rows`, read from `path`; UserError if there are none."""
    found = list(rows)
    if not found:
        raise UserError(f"{path}: no measurement in the file, should have at least one")
    return found


def model_name(row: Row, field: str) -> str:
    """The cell as the name of a model; UserError if it is empty."""
    return row.name(field)
