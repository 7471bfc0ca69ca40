"""Rows of a CSV file whose cells are checked as they are read: every error says file, line, field and what is right."""

import csv
import dataclasses
import datetime
import math
from collections.abc import Iterator
from pathlib import Path

from jaxsched.errors import UserError

_EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of a CSV file. The accessors raise a UserError of one line on a cell that is not as it should be."""

    path: Path
    line: int
    cells: dict[str, str]

    def text(self, field: str) -> str:
        """The cell without surrounding blanks; '' where the file has no such column."""
        return self.cells.get(field, "").strip()

    def fail(self, field: str, wanted: str) -> UserError:
        """The error to raise for `field`."""
        return UserError(f"{self.path}, line {self.line}, {field}: {self.text(field)!r} should be {wanted}")

    def number(self, field: str, *, minimum: float = -math.inf, exclusive: bool = False) -> float:
        """The cell as a finite number >= `minimum` (> with `exclusive`)."""
        limit = "" if minimum == -math.inf else f" {'>' if exclusive else '>='} {minimum:g}"
        text = self.text(field)
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
            raise self.fail(field, f"a finite number{limit}")
        return value

    def whole(self, field: str, *, minimum: int) -> int:
        """The cell as a whole number in [minimum, 2^31)."""
        try:
            value = self.number(field, minimum=minimum)
        except UserError:
            value = math.nan
        if not value.is_integer():
            raise self.fail(field, f"a whole number >= {minimum}")
        if value >= 2**31:
            raise self.fail(field, f"a whole number < {2**31}")
        return int(value)

    def timestamp_s(self, field: str) -> float:
        """The cell, a date and time like 2017-10-03 12:00:00 (UTC where it names no zone), as seconds since 1970."""
        try:
            moment = datetime.datetime.fromisoformat(self.text(field))
        except ValueError:
            raise self.fail(field, "a date and time like 2017-10-03 12:00:00") from None
        if moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        return (moment - _EPOCH).total_seconds()


def read_header(path: Path) -> list[str]:
    """Column names of a CSV file. UserError if it is missing, a directory, empty or not text."""
    for header, _ in _lines(path):
        return header
    raise UserError(f"{path}: the file is empty, should start with a line of column names")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows after the header; blank lines are passed over. UserError on a line with too few or too many cells."""
    header = read_header(path)
    for cells, line in _lines(path):
        if line == 1 or not cells:
            continue
        if len(cells) != len(header):
            raise UserError(f"{path}, line {line}: {len(cells)} cells, should be {len(header)} ({','.join(header)})")
        yield Row(path, line, dict(zip(header, cells, strict=True)))


def _lines(path: Path) -> Iterator[tuple[list[str], int]]:
    """(cells, line number) of each line of a CSV file."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, should be a CSV file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for cells in reader:
                yield [cell.strip() for cell in cells] if reader.line_num == 1 else cells, reader.line_num
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file in UTF-8, should be CSV") from None
    except (OSError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}") from None
