"""Folders of fitted models (see `io.cards`): those that come with the package, and what they were fitted to."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsched import shipped
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.csv_file import MOST_BYTES
from jaxsched.io.inputs import read_bytes
from jaxsched.workload.datasets import DATASETS

SHIPPED = "fitted"  # names the folder that comes with the package


def read_folder(name: str | Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`, or of the shipped one (`fitted`). UserError if it does not hold one."""
    return cards.read(shipped_folder(what) if str(name) == SHIPPED else Path(name), what)


def shipped_folder(what: str) -> Path:
    """The folder `checkpoints/WHAT`, which comes with the package; UserError if this copy has none."""
    found = shipped.find(shipped.CHECKPOINTS, what)
    if found is not None:
        return found
    raise UserError(f"the fitted model {what!r} does not come with this copy of jaxsched; fit one and name its folder")


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
