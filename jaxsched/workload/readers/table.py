"""Any log as a table: names of columns, and its rows in pieces, all cells text. Which source it is of is decided here.

Lines are read as `io.csv_file` reads them, but for the separator (a comma, a semicolon, a tab, or the bar of Slurm's
`sacct -P`), and a line with too many or too few cells is one mistake among others.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.csv_file import HIDDEN, LONGEST_CELL, SEPARATORS, check_header, check_text, split_line
from jaxsched.io.files import shorten
from jaxsched.io.json_file import parse_json
from jaxsched.workload.readers.cells import Findings, Piece, Source
from jaxsched.workload.readers.opening import PARQUET, ParquetTable, as_text, read_log_bytes

PIECE = 1 << 16  # rows that are looked at together
_TEXT_BYTES = bytes(sorted({9, 10, *range(32, 127), *range(128, 256)}))


class LogTable(NamedTuple):
    """A log as a table, and the source it is of."""

    source: Source
    header: tuple[str, ...]
    found: Findings
    pieces: Iterator[Piece]


def read_log_table(path: Path, sources: Sequence[Source], name: str | None, strict: bool) -> LogTable:
    """The table of a log, recognised as one of `sources`, or as the one called `name`.

    UserError if it cannot be read, is of none, or of several among which only the user can choose.
    """
    if name is not None:
        sources = [source for source in sources if source.name == name] or unknown_source(name, sources)
    content = read_log_bytes(path)
    if content.startswith(PARQUET):
        parquet, found = ParquetTable(path, content), Findings(path, "row", strict)
        check_header(path, 1, parquet.names)
        source = _of_header(path, parquet.names, sources)
        columns = {name: parquet.cells(name) for name in parquet.names if name in (*source.needs, *source.uses)}
        return LogTable(source, parquet.names, found, _columns_in_pieces(found, columns, source))
    text = as_text(path, content)
    if text.lstrip()[:1] in ("[", "{"):
        return _of_json(path, parse_json(text, str(path)), sources, strict)
    if content.translate(None, _TEXT_BYTES) or not text.isascii():  # searching is slow where there is nothing
        check_text(path, 1, text)
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip(" \t\r")), None)
    if start is None:
        raise UserError(f"{path}: the file is empty, should start with a line of column names")
    if lines[-1].strip() and start < len(lines) - 1:
        warnings.warn(
            f"{path}, line {len(lines)}: the last line has no newline; if the file was cut, its last row is wrong",
            DoubtfulFile,
            stacklevel=4,
        )
    found = Findings(path, strict=strict)
    for source in sources:
        if header := _bare_header(lines, start, source, sure=name is not None):
            return LogTable(source, header, found, _lines_in_pieces(found, lines, start, header, source))
    separator = max(SEPARATORS, key=lambda mark: (lines[start].count(mark), mark == ","))
    if separator == "|" and lines[start].endswith("|"):  # `sacct -p` ends lines with a bar, `sacct -P` does not
        lines[start:] = [line.removesuffix("|") for line in lines[start:]]
    header = tuple(cell.strip() for cell in split_line(path, start + 1, lines[start], separator))
    check_header(path, start + 1, header)
    source = _of_header(path, header, sources, start + 1)
    return LogTable(source, header, found, _lines_in_pieces(found, lines, start + 1, header, None, separator))


def first_cells(path: Path) -> tuple[str, ...]:
    """The names of a CSV file's columns, or whatever else stands in its first line. UserError if it is no text."""
    lines = as_text(path, read_log_bytes(path)).split("\n", 64)
    first = next((line for line in lines if line.strip(" \t\r")), "")
    return tuple(cell.strip().strip('"') for cell in first.split(","))


def unknown_source(name: str, sources: Sequence[Source]) -> list[Source]:
    """UserError with the known names."""
    known = ", ".join(source.name for source in sources)
    raise UserError(f"--format: unknown {shorten(name)!r}, should be one of {known}")


def _of_header(path: Path, header: tuple[str, ...], sources: Sequence[Source], line: int = 1) -> Source:
    """The source whose columns these are."""
    fitting = [source for source in sources if source.needs and set(source.needs) <= set(header)]
    if len(fitting) > 1:
        sure = [
            source
            for source in fitting
            if set(source.marks) <= set(header) <= {*source.needs, *source.uses, *source.passes}
        ]
        if len(sure) != 1:
            choice = " or ".join(f"--format {source.name} ({source.about})" for source in fitting)
            raise UserError(
                f"{path}, line {line}: the columns may be those of {' and '.join(s.name for s in fitting)}; say which, "
                f"with {choice} of `jaxsched check` and `jaxsched import`"
            )
        fitting = sure
    if not fitting and len(sources) == 1:
        missing = [name for name in sources[0].needs if name not in header]
        lacks = f"has no column {', '.join(missing)}" if missing else "is no line of cells"
        wanted = " or ".join(",".join(names) for names in ((sources[0].needs,) if missing else sources[0].bare))
        raise UserError(f"{path}, line {line}: {lacks} as {sources[0].about} has them ({wanted or 'JSON'})")
    if not fitting:
        found = shorten(",".join(header), 200)
        raise UserError(
            f"{path}, line {line}: the header {found!r} is of no known trace format{_nearest(header, sources)}"
        )
    source = fitting[0]
    unknown = sorted(set(header) - {*source.needs, *source.uses}) if source.closed else []
    if unknown:
        raise UserError(
            f"{path}, line {line}: unknown column {shorten(unknown[0])!r} in a {source.name} trace, should be one of "
            f"{', '.join((*source.needs, *source.uses))}"
        )
    return source


def _nearest(header: tuple[str, ...], sources: Sequence[Source]) -> str:
    """What is said of a header that is no source's: what the nearest one lacks, or else what the known ones have."""
    near = max(sources, key=lambda source: len({*source.needs, source.names} & set(header)))
    if near.export and near.names in header:
        return f"; {near.export}"
    missing = [name for name in near.needs if name not in header]
    if len(near.needs) - len(missing) >= 2:
        return f"; nearest is {near.name} ({near.about}), which has {', '.join(missing)}, too"
    return ": " + "; ".join(f"{source.name} ({','.join(source.needs)})" for source in sources if source.needs)


def _of_json(path: Path, value: Any, sources: Sequence[Source], strict: bool) -> LogTable:
    for source in sources:
        rows = None if source.rows is None else source.rows(value)
        if rows is not None:
            listed = list(rows)
            names = dict.fromkeys(name for row in listed for name in row)
            columns = {name: [row.get(name, "") for row in listed] for name in names}
            if not listed:
                raise UserError(f"{path}: no job in the file, should have at least one")
            check_header(path, 1, tuple(columns))
            found = Findings(path, "job", strict)
            return LogTable(source, tuple(columns), found, _columns_in_pieces(found, columns, source))
    known = " or ".join(f"{source.name} ({source.about})" for source in sources if source.rows is not None)
    raise UserError(f"{path}: is JSON, but no job log that is read: {known or 'none of that format is JSON'}")


def _bare_header(lines: list[str], start: int, source: Source, *, sure: bool) -> tuple[str, ...]:
    """The columns of a file without a header, if it is one of `source` (`sure`: the user says so); else nothing."""
    if not source.bare:
        return ()
    first = next((line for line in lines[start:] if line.strip() and not _is_comment(line, source)), "")
    cells = first.split(None if source.separator == " " else source.separator)
    return next((names for names in source.bare if len(names) == len(cells) and (sure or source.fits(cells))), ())


def _is_comment(line: str, source: Source) -> bool:
    return bool(source.comment) and line.lstrip().startswith(source.comment)


def _columns_in_pieces(found: Findings, columns: dict[str, list[str]], source: Source) -> Iterator[Piece]:
    """The rows; a cell that is read, and that no line of a CSV file could hold, is a mistake."""
    for name in (*source.needs, *source.uses):
        for number, cell in enumerate(columns.get(name, ()), 1):
            if not cell.isprintable() and ("\n" in cell or HIDDEN.search(cell)):
                place = f"{found.path}, {found.unit} {number}, {name}"
                found.wrong(number, UserError(f"{place}: {shorten(cell)!r} should be text without control characters"))
    rows = len(next(iter(columns.values()), []))
    for at in range(0, rows, PIECE):
        end = min(at + PIECE, rows)
        yield Piece(range(at + 1, end + 1), {name: column[at:end] for name, column in columns.items()})


def _lines_in_pieces(
    found: Findings, lines: list[str], start: int, header: tuple[str, ...], bare: Source | None, separator: str = ","
) -> Iterator[Piece]:
    """The rows from line `start` on (counted from 0); a line that is no row of the table is a mistake, and left out."""
    width = len(header)
    for at in range(start, len(lines), PIECE):
        some = lines[at : at + PIECE]
        lines[at : at + PIECE] = [""] * len(some)  # what has been read need not stay
        numbers: Sequence[int] = range(at + 1, at + 1 + len(some))
        text = separator.join(some)
        plain = bare is None and '"' not in text and "" not in some and max(map(len, some)) <= LONGEST_CELL
        if plain and {line.count(separator) for line in some} == {width - 1}:
            cells = text.split(separator)  # at once: a list for every line would be slow
            yield Piece(numbers, {name: cells[i::width] for i, name in enumerate(header)})
            continue
        numbers, rows = _careful(found, numbers, some, bare, separator)
        numbers, rows = _of_width(found, numbers, rows, header)
        if rows:
            yield Piece(numbers, dict(zip(header, zip(*rows))))


def _careful(
    found: Findings, numbers: Iterable[int], lines: list[str], bare: Source | None, separator: str
) -> tuple[list[int], list[list[str]]]:
    """Lines one by one: blank ones and comments left out, quotes understood."""
    kept: list[int] = []
    rows: list[list[str]] = []
    for number, line in zip(numbers, lines):
        if not line.strip(" \t\r") or (bare is not None and _is_comment(line, bare)):
            continue
        try:
            if bare is None:
                row = split_line(found.path, number, line, separator, quotes=separator != "|")
            elif bare.separator == " ":
                row = line.split()
            else:
                row = split_line(found.path, number, line, bare.separator, quotes=False)
        except UserError as error:
            found.wrong(number, error)
            continue
        kept.append(number)
        rows.append(row)
    return kept, rows


def _of_width(
    found: Findings, numbers: Sequence[int], rows: list[list[str]], header: tuple[str, ...]
) -> tuple[list[int], list[list[str]]]:
    """The rows that have as many cells as the header; any other is a mistake."""
    columns = shorten(",".join(header), 200)
    for number, row in zip(numbers, rows):
        if len(row) != len(header):
            wanted = f"{found.path}, line {number}: {len(row)} cells, should be {len(header)} ({columns})"
            found.wrong(number, UserError(wanted))
    fitting = [(number, row) for number, row in zip(numbers, rows) if len(row) == len(header)]
    return [number for number, _ in fitting], [row for _, row in fitting]
