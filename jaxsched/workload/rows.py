"""Rows of a CSV file whose cells are checked as they are read: every error says file, line, field and what is right."""

import dataclasses
import datetime
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.io.csv_file import Table
from jaxsched.io.files import plain_number, shorten
from jaxsched.semantics import LONGEST_S, SHORTEST_S

LONGEST_NAME = 256  # characters: arrays of names take as much for every row
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of a table, or a job of a list. Its accessors raise a one-line UserError on a cell that is not right."""

    path: Path
    line: int
    cells: Mapping[str, str]
    unit: str = "line"  # what `line` counts

    def text(self, field: str) -> str:
        """The cell without surrounding blanks; '' where the file has no such column."""
        return self.cells.get(field, "").strip()

    def name(self, field: str) -> str:
        """The cell as a name: not empty, and not longer than `LONGEST_NAME`."""
        text = self.text(field)
        if not text:
            raise self.fail(field, "a name")
        if len(text) > LONGEST_NAME:
            raise self.fail(field, f"a name of at most {LONGEST_NAME} characters")
        return text

    def fail(self, field: str, wanted: str) -> UserError:
        """The error to raise for `field`."""
        found = shorten(self.text(field))
        return UserError(f"{self.path}, {self.unit} {self.line}, {field}: {found!r} should be {wanted}")

    def number(
        self, field: str, *, minimum: float = -math.inf, maximum: float = math.inf, exclusive: bool = False
    ) -> float:
        """The cell, in digits 0 to 9, as a finite number >= `minimum` (> with `exclusive`) and <= `maximum`."""
        limit = "" if minimum == -math.inf else f" {'>' if exclusive else '>='} {minimum:g}"
        text = self.text(field)
        value = plain_number(text)
        if not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
            raise self.fail(field, f"a finite number{limit}")
        if value > maximum:
            raise self.fail(field, f"a number <= {maximum:g}")
        return value

    def seconds(self, field: str, *, per_second: int = 1) -> float:
        """The cell, with so many units per second, as a run time in seconds that float32 holds."""
        value = self.number(field, minimum=0, exclusive=True) / per_second
        if not SHORTEST_S <= value <= LONGEST_S:
            raise self.fail(field, f"a run time from {SHORTEST_S:g} to {LONGEST_S:g} s")
        return value

    def whole(self, field: str, *, minimum: int, maximum: int = 2**31 - 1) -> int:
        """The cell as a whole number from `minimum` to `maximum`."""
        try:
            value = self.number(field, minimum=minimum)
        except UserError:
            value = math.nan
        if not value.is_integer():
            raise self.fail(field, f"a whole number >= {minimum}")
        if value > maximum:
            raise self.fail(field, f"a whole number < {maximum + 1}")
        return int(value)

    def timestamp_s(self, field: str) -> float:
        """The cell, a date and time like 2017-10-03 12:00:00 (UTC where it names no zone), as seconds since 1970."""
        text = self.text(field)
        try:
            moment = datetime.datetime.fromisoformat(text if _MOMENT.fullmatch(text) else "")
            if moment.tzinfo is not None:
                moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            raise self.fail(field, "a date and time like 2017-10-03 12:00:00") from None
        return (moment - _EPOCH).total_seconds()


def rows_of(table: Table) -> Iterator[Row]:
    """The rows of a table, by the names of its columns."""
    for line, cells in table.rows:
        yield Row(table.path, line, dict(zip(table.header, cells)))
