"""Folders of fitted models: `weights.msgpack` (arrays, no pickle) and `card.json` (everything else)."""

import dataclasses
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
from jaxsched.interference.design import Vocabulary
from jaxsched.interference.fit import Fitted
from jaxsched.interference.measurements import Item
from jaxsched.interference.model import Settings
from jaxsched.interference.references import References
from jaxsched.machine import cpu_kind
from jaxsched.workload.datasets import DATASETS

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
SCHEMA = 1
SHIPPED = "fitted"  # the name of the folder that comes with the package


@dataclasses.dataclass(frozen=True)
class FittedModel:
    """What a folder holds: by kind of sharing, the ensemble and the references of the same rows."""

    parts: dict[str, Fitted]
    references: dict[str, References]
    card: dict[str, Any]


def shipped_folder(name: str = "interference") -> Path:
    """The folder `checkpoints/NAME`, which comes with the package; UserError if this copy has none."""
    for root in (Path(str(resources.files("jaxsched"))), Path(__file__).parents[2]):
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


def write_folder(folder: Path, weights: Any, card: dict[str, Any]) -> None:
    """Writes both files, each at once and whole; the same content gives the same bytes."""
    text = json.dumps(card, indent=1, sort_keys=True) + "\n"
    contents = {WEIGHTS_FILE: serialization.msgpack_serialize(weights), CARD_FILE: text.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            partial = folder / f".{name}.{os.getpid()}.partial"
            partial.write_bytes(content)
            partial.replace(folder / name)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None


def read_folder(folder: Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`. UserError if it does not hold one."""
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


def save_model(folder: Path, parts: Sequence[tuple[Fitted, References]], card: dict[str, Any]) -> None:
    """Writes fitted parts with their references."""
    weights, described = {}, {}
    for fitted, references in parts:
        weights[fitted.kind] = {
            "parameters": {name: np.asarray(leaf) for name, leaf in fitted.parameters.items()},
            "references": {name: value for name, value in vars(references).items() if isinstance(value, np.ndarray)},
        }
        described[fitted.kind] = {
            "settings": dataclasses.asdict(fitted.settings),
            "vocabulary": dataclasses.asdict(fitted.vocabulary),
            "items": [dataclasses.asdict(item) for item in fitted.items],
            "references": {name: value for name, value in vars(references).items() if isinstance(value, dict)},
        }
    write_folder(folder, weights, {"what": "interference", "schema": SCHEMA, "parts": described} | card)


def load_model(name: str | Path) -> FittedModel:
    """The fitted model of a folder, or the shipped one (`fitted`). UserError if there is none."""
    folder = shipped_folder() if str(name) == SHIPPED else Path(name)
    weights, card = read_folder(folder, "interference")
    try:
        parts = {kind: _part(kind, row, weights[kind]["parameters"]) for kind, row in card["parts"].items()}
        references = {
            kind: References(**row["references"], **weights[kind]["references"]) for kind, row in card["parts"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"interference {folder}: not a readable fitted model ({error})") from None
    return FittedModel(parts, references, card)


def _part(kind: str, row: dict[str, Any], parameters: dict[str, np.ndarray]) -> Fitted:
    settings = dict(row["settings"], precisions=tuple(map(tuple, row["settings"]["precisions"])))
    words = row["vocabulary"]
    return Fitted(
        kind=kind,
        settings=Settings(**settings),
        vocabulary=Vocabulary(
            columns=tuple(map(tuple, words["columns"])),
            centers={family: tuple(center) for family, center in words["centers"].items()},
            profile_mean=tuple(words["profile_mean"]),
            profile_std=tuple(words["profile_std"]),
        ),
        items=tuple(
            Item(**dict(item, scale=tuple(item["scale"]), profile=tuple(item["profile"]))) for item in row["items"]
        ),
        parameters=parameters,
    )
