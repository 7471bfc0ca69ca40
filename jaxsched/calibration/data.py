"""What laws are fitted to, CSV files told apart by their columns; and the folders of fitted ones (`io.cards`)."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxsched.errors import UserError
from jaxsched.io import cards, csv_file
from jaxsched.io.csv_file import MOST_BYTES
from jaxsched.io.files import check_folder, read_bytes, shorten
from jaxsched.workload.datasets import DATASETS
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
    header = shorten(",".join(table.header), 200)
    raise UserError(f"{path}, line 1: the header {header!r} should be {' or '.join(map(str, formats))}")


def some(path: Path, rows: Iterable[Any]) -> list[Any]:
    """All of `rows`, read from `path`; UserError if there are none."""
    found = list(rows)
    if not found:
        raise UserError(f"{path}: no measurement in the file, should have at least one")
    return found


def read_folder(name: str | Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`, or of the shipped one (`fitted`). UserError if it does not hold one."""
    return cards.read(cards.locate(name, what), what)


def check_out(folder: Path, what: str) -> None:
    """UserError unless `folder`, of an option `--out`, can be written as one of `what`."""
    check_folder(folder, "--out", parents=False)
    cards.check_free(folder, what, "--out")


def files_of_the_fit(rows: Sequence[Mapping[str, str]], paths: Sequence[str | Path]) -> list[str]:
    """Names of those files that a model was fitted to, by the `data` of its card."""
    fitted_to = {row["sha256"] for row in rows}
    return [row["file"] for row in provenance(paths) if row["sha256"] in fitted_to]


def provenance(paths: Sequence[str | Path]) -> list[dict[str, str]]:
    """Name, sha256, upstream and licence of data files; the latter two of files with a registered name."""
    known = {Path(dataset.file).name: dataset for dataset in DATASETS.values()}
    rows = []
    for path in map(Path, paths):
        row = {"file": path.name, "sha256": hashlib.sha256(read_bytes(path, MOST_BYTES)).hexdigest()}
        if path.name in known:
            dataset = known[path.name]
            row |= {"upstream": dataset.url, "licence": dataset.licence, "note": dataset.note}
        rows.append(row)
    return rows
