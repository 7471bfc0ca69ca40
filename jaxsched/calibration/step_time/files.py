"""Fitted models of the step time in folders (see `jaxsched.cards`)."""

from pathlib import Path
from typing import Any

from jaxsched import cards
from jaxsched.calibration.folders import read_folder
from jaxsched.calibration.step_time.model import StepTimeModel
from jaxsched.errors import UserError

WHAT = "placement"


def save_model(folder: Path, fitted: StepTimeModel, means: dict[str, float], card: dict[str, Any]) -> None:
    """Writes the model and the reference `means` of the same rows."""
    named = {"models": fitted.models, "batches": fitted.batches, "means": means}
    cards.write(folder, WHAT, fitted.parameters, named | card)


def load_model(name: str | Path) -> tuple[StepTimeModel, dict[str, float], dict[str, Any]]:
    """Model, reference means and card of a folder, or of the shipped one (`fitted`). UserError if there is none."""
    parameters, card = read_folder(name, WHAT)
    try:
        fitted = StepTimeModel(tuple(card["models"]), tuple(map(tuple, card["batches"])), parameters)
        return fitted, card["means"], card
    except (KeyError, TypeError) as error:
        raise UserError(f"placement {name}: not a readable fitted model ({error})") from None
