"""A fitted model against measurements: its errors, and those of the references that were fitted to the same rows."""

import numpy as np

from jaxsched.calibration.interference.files import FittedModel
from jaxsched.calibration.interference.fit import predict_ratios
from jaxsched.calibration.interference.measurements import Measurements
from jaxsched.calibration.interference.references import NAMES
from jaxsched.calibration.interference.validate import by_model, errors
from jaxsched.errors import UserError


def evaluate(model: FittedModel, measured: Measurements) -> dict:
    """{"kind", "rows", "ratios", "mae", "mape", "models", "references"}; UserError on hardware it does not know."""
    if measured.kind not in model.parts:
        raise UserError(
            f"the model knows {', '.join(model.parts)} sharing only, the data are of {measured.kind} sharing"
        )
    fitted, references = model.parts[measured.kind], model.references[measured.kind]
    known = {item.hardware for item in fitted.items}
    for hardware in sorted({item.hardware for item in measured.items}):
        if hardware not in known:
            raise UserError(f"the model has no measurement on {hardware!r}, only on {', '.join(sorted(known))}")
    predicted = predict_ratios(fitted.settings, fitted.vocabulary, fitted.parameters, measured)
    index = {item.key: i for i, item in enumerate(fitted.items)}
    place = np.array([index.get(item.key, -1) for item in measured.items])
    victim, aggressor = place[measured.victim], place[measured.aggressor]
    compared = {
        name: errors(measured, references.predict(name, measured.hardware, victim, aggressor)) for name in NAMES
    }
    return {
        "kind": measured.kind,
        "rows": measured.rows,
        "ratios": len(measured.ratio),
        **errors(measured, predicted),
        "models": by_model(measured, predicted),
        "references": compared,
    }
