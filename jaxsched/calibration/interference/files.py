"""Fitted models of interference in folders (see `jaxsched.cards`)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsched import cards
from jaxsched.calibration.folders import read_folder
from jaxsched.calibration.interference.design import Vocabulary
from jaxsched.calibration.interference.fit import Fitted
from jaxsched.calibration.interference.measurements import NETWORK, Item
from jaxsched.calibration.interference.model import FitSettings
from jaxsched.calibration.interference.references import References
from jaxsched.dynamics.interference import CALIBRATION, FittedStrengths
from jaxsched.dynamics.resources import CHANNELS, LINK, NIC
from jaxsched.errors import UserError

WHAT = "interference"


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
    try:
        if NETWORK in card["parts"] and not card["curve"]["power"] >= 1.0 <= 1.0 + card["curve"]["kappa"]:
            raise ValueError(f"curve {card['curve']}: kappa should be >= 0 and power >= 1")
        parts = {kind: _part(kind, row, weights[kind]["parameters"]) for kind, row in card["parts"].items()}
        references = {
            kind: References(**row["references"], **weights[kind]["references"]) for kind, row in card["parts"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"interference {name}: not a readable fitted model ({error})") from None
    return FittedModel(parts, references, card)


def _part(kind: str, row: dict[str, Any], parameters: dict[str, np.ndarray]) -> Fitted:
    settings = dict(row["settings"], precisions=tuple(map(tuple, row["settings"]["precisions"])))
    vocabulary = row["vocabulary"]
    return Fitted(
        kind=kind,
        settings=FitSettings(**settings),
        vocabulary=Vocabulary(
            columns=tuple(map(tuple, vocabulary["columns"])),
            centers={family: tuple(center) for family, center in vocabulary["centers"].items()},
            profile_mean=tuple(vocabulary["profile_mean"]),
            profile_std=tuple(vocabulary["profile_std"]),
        ),
        items=tuple(
            Item(**dict(item, scale=tuple(item["scale"]), profile=tuple(item["profile"]))) for item in row["items"]
        ),
        parameters=parameters,
    )
