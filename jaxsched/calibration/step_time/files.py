"""Fitted placement models in folders (see `jaxsched.fitted`)."""

from pathlib import Path
from typing import Any

from jaxsched.calibration.step_time.model import PlacementModel
from jaxsched.errors import UserError
from jaxsched.fitted import read_folder, write_folder

WHAT = "placement"


def save_model(folder: Path, fitted: PlacementModel, means: dict[str, float], card: dict[str, Any]) -> None:
    """Writes the model and the reference `means` of the same rows."""
    named = {"models": fitted.models, "batches": fitted.batches, "means": means}
    write_folder(folder, WHAT, fitted.parameters, named | card)


def load_model(name: str | Path) -> tuple[PlacementModel, dict[str, float], dict[str, Any]]:
    """Model, reference means and card of a folder, or of the shipped one (`fitted`). UserError if there is none."""
    parameters, card = read_folder(name, WHAT)
    try:
        fitted = PlacementModel(tuple(card["models"]), tuple(map(tuple, card["batches"])), parameters)
        return fitted, card["means"], card
    except (KeyError, TypeError) as error:
        raise UserError(f"placement {name}: not a readable fitted model ({error})") from None
