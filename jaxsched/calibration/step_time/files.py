"""Fitted models of the step time in folders (see `jaxsched.io.cards`)."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxsched.calibration.folders import read_folder
from jaxsched.calibration.step_time.model import START, StepTimeModel
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE
from jaxsched.io.schema import Count, Size, Text, converted

WHAT = "placement"


def save_model(folder: Path, fitted: StepTimeModel, means: dict[str, float], card: dict[str, Any]) -> None:
    """Writes the model and the reference `means` of the same rows."""
    named = {"models": fitted.models, "batches": fitted.batches, "means": means}
    cards.write(folder, WHAT, fitted.parameters, named | card)


def load_model(name: str | Path) -> tuple[StepTimeModel, dict[str, float], dict[str, Any]]:
    """Model, reference means and card of a folder, or of the shipped one (`fitted`). UserError if there is none."""
    parameters, card = read_folder(name, WHAT)
    read: Card = converted(Card, card, f"{WHAT} {name}: {CARD_FILE}")
    rows = {parameter: len(read.models) for parameter in START} | {"compute": len(read.batches)}
    found = {name: np.shape(leaf) for name, leaf in parameters.items()} if isinstance(parameters, dict) else {}
    if found != {parameter: (count,) for parameter, count in rows.items()}:
        raise UserError(f"{WHAT} {name}: {WEIGHTS_FILE} has shapes {found}, should have lengths {rows}")
    if any(model not in read.models for model, _ in read.batches):
        raise UserError(f"{WHAT} {name}: {CARD_FILE}: batches names a model that is not among models")
    return StepTimeModel(tuple(read.models), tuple(read.batches), parameters), read.means, card


class Card(msgspec.Struct):
    """What the card of a fitted model holds."""

    models: list[Text]
    batches: list[tuple[Text, Size]]
    means: dict[str, float]
    data: list[dict[str, Text]] = []
    rows: Count = 0
    command: Text = ""
