"""Fitted models of interference in folders (see `jaxsched.io.cards`)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from msgspec import Meta

from jaxsched.calibration.data import read_folder
from jaxsched.calibration.interference.fit import Fitted
from jaxsched.calibration.interference.measurements import NETWORK, Item
from jaxsched.calibration.interference.model import FitSettings, References, SharingModel, Vocabulary
from jaxsched.dynamics.interference import CALIBRATION, FittedStrengths
from jaxsched.dynamics.resources import CHANNELS, LINK, NIC
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.files import shorten
from jaxsched.io.schema import Count, Text, convert

WHAT = "interference"


class Means(msgspec.Struct, forbid_unknown_fields=True):
    """The references' means by hardware."""

    mean: dict[str, float]
    log_mean: dict[str, float]


class Part(msgspec.Struct):
    """What was fitted to one kind of sharing."""

    settings: FitSettings
    vocabulary: Vocabulary
    items: list[Item]
    references: Means


class Curve(msgspec.Struct):
    """The network's stretch, `1 + kappa others^power`."""

    kappa: Annotated[float, Meta(ge=0)]
    power: Annotated[float, Meta(ge=1)]
    mae: float = 0.0


class Card(msgspec.Struct):
    """What the card of a fitted model holds."""

    parts: dict[Literal["gpu", "network"], Part]
    data: list[dict[str, Text]] = []
    rows: dict[str, Count] = {}
    curve: Curve | None = None
    command: Text = ""
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class FittedModel:
    """What a folder holds: by kind of sharing, the ensemble and the references of the same rows."""

    parts: dict[str, Fitted]
    references: dict[str, References]
    card: dict[str, Any]

    @property
    def strengths(self) -> FittedStrengths:
        """What the simulator runs with: the network's curve where it was fitted, calibrated strengths elsewhere."""
        kappa = [CALIBRATION[channel].default for channel in CHANNELS]
        power = [1.0 for _ in CHANNELS]
        if NETWORK in self.parts:
            for channel in (NIC, LINK):
                kappa[channel] = self.card["curve"]["kappa"]
                power[channel] = self.card["curve"]["power"]
        return FittedStrengths(kappa=jnp.array(kappa, jnp.float32), power=jnp.array(power, jnp.float32))


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
    cards.write(folder, WHAT, weights, {"parts": described} | card)


def load_model(name: str | Path) -> FittedModel:
    """The fitted model of a folder, or the shipped one (`fitted`). UserError if there is none."""
    weights, card = read_folder(name, WHAT)
    where = f"{WHAT} {name}: {CARD_FILE}"
    read: Card = convert(Card, card, where)
    if NETWORK in read.parts and read.curve is None:
        raise UserError(f"{where}: curve is missing, the network's part needs one")
    try:
        parts = {kind: _part(kind, row, weights[kind]["parameters"]) for kind, row in read.parts.items()}
        references = {
            kind: References(row.references.mean, row.references.log_mean, **weights[kind]["references"])
            for kind, row in read.parts.items()
        }
        for kind in parts:
            _check_shapes(parts[kind], references[kind])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{WHAT} {name}: not a readable fitted model ({shorten(str(error), 200)})") from None
    return FittedModel(parts, references, card)


def _part(kind: str, row: Part, parameters: dict[str, np.ndarray]) -> Fitted:
    return Fitted(
        kind=kind, settings=row.settings, vocabulary=row.vocabulary, items=tuple(row.items), parameters=parameters
    )


def _check_shapes(part: Fitted, references: References) -> None:
    """ValueError unless the weights have the shapes that settings, columns and items ask for."""
    settings, items = part.settings, len(part.items)
    model = SharingModel(len(part.vocabulary.columns), settings.channels, settings.hidden)
    design, one = jnp.zeros((1, len(part.vocabulary.columns))), jnp.zeros(1, int)
    member = jax.eval_shape(model.init, jax.random.key(0), design, one, one)["params"]
    expected = {name: (settings.members, *leaf.shape) for name, leaf in member.items()}
    found = {name: np.shape(leaf) for name, leaf in part.parameters.items()}
    for name in {**expected, **found}:
        if expected.get(name) != found.get(name):
            raise ValueError(f"{name} has shape {found.get(name)}, should have {expected.get(name)}")
    for name, leaf in vars(references).items():
        if isinstance(leaf, np.ndarray) and (leaf.ndim not in (1, 2) or len(leaf) != items):
            raise ValueError(f"{name} has shape {leaf.shape}, should have one row for each of {items} items")
