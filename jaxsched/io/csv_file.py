"""CSV files, read strictly: one line, one row. What could hide a row, or be read in two ways, is refused.

A cell may stand in quotes, with "" for a quote inside; no cell goes on over the end of a line. Lines end with a
newline, with or without a carriage return. Blank lines are passed over; a line of commas is not blank.
"""

import itertools
import re
import warnings
from pathlib import Path
from typing import NamedTuple

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.files import read_text, shorten

MOST_BYTES = 1 << 30
LONGEST_CELL = 4096  # characters
MOST_COLUMNS = 1024
SEPARATORS = ",;\t|"
_CELL = {mark: re.compile(rf'"((?:[^"]|"")*)"|([^"{mark}]*)') for mark in SEPARATORS}
# Control characters but for the tab, and what some programs take for the end of a line.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class Table(NamedTuple):
    """A file's header, and (line number, cells) of every row, as many cells as the header has."""

    path: Path
    header: tuple[str, ...]  # without surrounding blanks
    rows: list[tuple[int, list[str]]]


def read_table(path: str | Path, most_rows: int | None = None) -> Table:
    """The table of a CSV file in UTF-8.

    UserError with the line on what is no such file, a name that stands twice in the header, a row with more or fewer
    cells than it, quotes that do not match, control characters, and more than `most_rows`, if that is given. A last
    line without a newline, which may be half a line, gives the warning `DoubtfulFile`.
    """
    path = Path(path)
    text = read_text(path, MOST_BYTES, "a CSV file")
    lines = text.split("\n")
    whole = lines[-1].strip() == ""
    all_rows = ((number, split_line(path, number, line)) for number, line in enumerate(lines, 1) if line.strip(" \t\r"))
    found = list(itertools.islice(all_rows, None if most_rows is None else most_rows + 2))
    if not found:
        raise UserError(f"{path}: the file is empty, should start with a line of column names")
    if most_rows is not None and len(found) > most_rows + 1:
        raise UserError(f"{path}, line {found[-1][0]}: a row too many, at most {most_rows} are read from such a file")
    (line, names), rows = found[0], found[1:]
    header = tuple(name.strip() for name in names)
    check_header(path, line, header)
    for line, cells in rows:
        if len(cells) != len(header):
            columns = shorten(",".join(header), 200)
            raise UserError(f"{path}, line {line}: {len(cells)} cells, should be {len(header)} ({columns})")
    if not whole and rows:
        warnings.warn(
            f"{path}, line {rows[-1][0]}: the last line has no newline; if the file was cut, its last row is wrong",
            DoubtfulFile,
            stacklevel=2,
        )
    return Table(path, header, rows)


def split_line(path: Path, number: int, line: str, separator: str = ",", *, quotes: bool = True) -> list[str]:
    """The cells of one line. UserError on what could be read in two ways. Without `quotes` they mean themselves."""
    line = line.removesuffix("\r")
    check_text(path, number, line)
    cells = _quote(path, number, line, separator) if quotes and '"' in line else line.split(separator)
    if len(line) > LONGEST_CELL and any(len(cell) > LONGEST_CELL for cell in cells):
        raise UserError(f"{path}, line {number}: a cell of more than {LONGEST_CELL} characters, the most that is read")
    return cells


def _quote(path: Path, number: int, line: str, separator: str) -> list[str]:
    cells, place = [], 0
    while True:
        found = _CELL[separator].match(line, place)
        assert found is not None  # an empty cell matches anywhere
        place = found.end()
        if line[place : place + 1] not in ("", separator):
            raise UserError(
                f'{path}, line {number}: a quote (") that does not match another of its line, should stand around a '
                "whole cell, or twice inside one in quotes"
            )
        cells.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        if place == len(line):
            return cells
        place += 1


def check_text(path: Path, line: int, text: str) -> None:
    """UserError with its place on a control character in some lines, of which `line` is the number of the first."""
    if hidden := HIDDEN.search(text):
        before = text[: hidden.start()]
        line, place = line + before.count("\n"), hidden.start() - before.rfind("\n")
        raise UserError(
            f"{path}, line {line}, character {place}: is the control character U+{ord(hidden[0]):04X}, should be text"
        )


def check_header(path: Path, line: int, header: tuple[str, ...]) -> None:
    """UserError on more columns than are read, and on a name that stands there twice or that a line cannot show."""
    if len(header) > MOST_COLUMNS:
        raise UserError(f"{path}, line {line}: {len(header)} columns, at most {MOST_COLUMNS} are read")
    if hidden := [name for name in header if "\n" in name or HIDDEN.search(name)]:
        raise UserError(f"{path}, line {line}: the column {shorten(hidden[0])!r} has control characters in its name")
    if len(set(header)) < len(header):
        twice = next(name for i, name in enumerate(header) if name in header[:i])
        raise UserError(
            f"{path}, line {line}: the column {shorten(twice)!r} stands there twice, every name may only once"
        )
