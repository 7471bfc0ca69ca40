"""Folders of fitted models: `weights.msgpack` (arrays, no pickle) and `card.json` (everything else)."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
from flax import serialization

import jaxsched
from jaxsched.errors import UserError
from jaxsched.machine import cpu_kind
from jaxsched.workload.datasets import DATASETS

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
SCHEMA = 1
SHIPPED = "fitted"  # names the folder that comes with the package


def shipped_folder(name: str) -> Path:
    """The folder `checkpoints/NAME`, which comes with the package; UserError if this copy has none."""
    for root in (Path(str(resources.files("jaxsched"))), Path(__file__).parents[1]):
        if (root / "checkpoints" / name / CARD_FILE).is_file():
            return root / "checkpoints" / name
    raise UserError(f"the fitted model {name!r} does not come with this copy of jaxsched; fit one and name its folder")


def provenance(paths: Sequence[str | Path]) -> list[dict[str, str]]:
    """Name, sha256, upstream and licence of data files; the latter two of files with a registered name."""
    known = {Path(dataset.file).name: dataset for dataset in DATASETS.values()}
    rows = []
    for path in map(Path, paths):
        row = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        if path.name in known:
            dataset = known[path.name]
            row |= {"upstream": dataset.url, "licence": dataset.licence, "note": dataset.note}
        rows.append(row)
    return rows


def versions() -> dict[str, str]:
    """What the last bits of a fit depend on."""
    return {
        "jaxsched": jaxsched.__version__,
        "jax": jax.__version__,
        "flax": flax.__version__,
        "numpy": np.__version__,
        "device": jax.devices()[0].device_kind,
        "cpu": cpu_kind(),
    }


def write_folder(folder: Path, what: str, weights: Any, card: dict[str, Any]) -> None:
    """Writes both files, each at once and whole; the same content gives the same bytes."""
    text = json.dumps({"what": what, "schema": SCHEMA} | card, indent=1, sort_keys=True) + "\n"
    contents = {WEIGHTS_FILE: serialization.msgpack_serialize(weights), CARD_FILE: text.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            partial = folder / f".{name}.{os.getpid()}.partial"
            partial.write_bytes(content)
            partial.replace(folder / name)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None


def read_folder(name: str | Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`, or of the shipped one (`fitted`). UserError if it does not hold one."""
    folder = shipped_folder(what) if str(name) == SHIPPED else Path(name)
    for name in (CARD_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise UserError(f"{what} {folder}: no file {name}; a fitted model holds {CARD_FILE} and {WEIGHTS_FILE}")
    try:
        card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
        weights = serialization.msgpack_restore((folder / WEIGHTS_FILE).read_bytes())
        if (card["what"], card["schema"]) != (what, SCHEMA):
            raise UserError(
                f"{what} {folder}: holds {card['what']!r} of schema {card['schema']}, should be {what!r} of {SCHEMA}"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{what} {folder}: not a readable fitted model ({error})") from None
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} holds weights that are not finite numbers")
    return weights, card
