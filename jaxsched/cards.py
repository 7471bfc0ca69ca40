"""Folders of a model: `weights.msgpack` (arrays, no pickle) and `card.json` (all else that is known of it).

Every card says `what` the folder holds, the `schema` and the `versions` that it was made with. The same content gives
the same bytes.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsched.errors import UserError
from jaxsched.files import write_bytes, write_text
from jaxsched.versions import versions

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
SCHEMA = 1
REQUIRED = ("what", "schema", "versions")


def write(folder: Path, what: str, weights: Any, card: dict[str, Any]) -> None:
    """Make `folder` one that holds a `what`: dicts of arrays, and a card. UserError if it cannot be written."""
    try:
        from flax import serialization  # an eighth of a second, which names of models do not need

        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / WEIGHTS_FILE, serialization.msgpack_serialize(weights))
        _write_card(folder, {"what": what, "schema": SCHEMA, "versions": versions()} | card)
    except OSError as error:
        raise UserError(f"{what} {folder}: cannot be written: {error.strerror}") from None


def update(folder: Path, what: str, **entries: Any) -> None:
    """Put `entries` into the card of `folder`, in place of those of the same name."""
    _write_card(folder, read_card(folder, what) | entries)


def read(folder: Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`. UserError if it does not hold one, or weights that are not finite."""
    from flax import serialization

    card = read_card(folder, what)
    try:
        weights = serialization.msgpack_restore((folder / WEIGHTS_FILE).read_bytes())
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights))
    except OSError:
        raise _missing(folder, what, WEIGHTS_FILE) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} is not readable ({_one_line(error)})") from None
    if not finite:
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} holds weights that are not finite numbers")
    return weights, card


def read_card(folder: Path, what: str) -> dict[str, Any]:
    """The card of a folder of `what`. UserError if there is none, or one of something else or of another schema."""
    try:
        card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
        held, schema, _ = (card[name] for name in REQUIRED)
    except OSError:
        raise _missing(folder, what, CARD_FILE) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{what} {folder}: {CARD_FILE} is not a readable card ({_one_line(error)})") from None
    if held != what:
        raise UserError(f"{what} {folder}: {CARD_FILE} is of {held!r}, should be of {what!r}")
    if schema != SCHEMA:
        raise UserError(f"{what} {folder}: schema {schema}, this version reads schema {SCHEMA}")
    return card


def _write_card(folder: Path, card: dict[str, Any]) -> None:
    write_text(folder / CARD_FILE, json.dumps(card, indent=1, sort_keys=True) + "\n")


def _missing(folder: Path, what: str, name: str) -> UserError:
    return UserError(f"{what} {folder}: no file {name}; name a folder that holds {CARD_FILE} and {WEIGHTS_FILE}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
