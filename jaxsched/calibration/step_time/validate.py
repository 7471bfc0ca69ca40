"""Errors of predicted step times, and validation: folds over placements, and few nodes for many."""

import numpy as np
from jaxtyping import Float, Shaped

from jaxsched.calibration.step_time.measurements import StepTimes
from jaxsched.calibration.step_time.model import StepTimeModel, compute_s, fit_subsets, predict_step_s
from jaxsched.calibration.validation import MODEL, Errors, by_group, folds

COMPUTE, MEAN = "compute only", "mean"  # the references
FEW_NODES = 2


def errors(times: StepTimes, predicted: Float[np.ndarray, "D"]) -> Errors:
    """{"median": {model or "all": x}, "mape": {...}, "mae": {...}}: relative errors, as fractions, and seconds."""
    off = np.abs(predicted - times.step_s)
    relative = off / times.step_s
    return {
        "median": by_group(times.model, relative, np.median),
        "mape": by_group(times.model, relative),
        "mae": by_group(times.model, off),
    }


def mean_step_s(times: StepTimes) -> dict[str, float]:
    """{"MODEL BATCH": mean seconds per step}: the reference that ignores the placement."""
    keys = _keys(times)
    return {str(key): float(times.step_s[keys == key].mean()) for key in np.unique(keys)}


def compare(fitted: StepTimeModel, means: dict[str, float], times: StepTimes) -> dict[str, Errors]:
    """Errors of the model, of its computation alone, and of the mean (where there is none: the computation)."""
    compute = compute_s(fitted, times)
    mean = np.array([means.get(str(key), alone) for key, alone in zip(_keys(times), compute)])
    predicted = {MODEL: predict_step_s(fitted, times), COMPUTE: compute, MEAN: mean}
    return {name: errors(times, values) for name, values in predicted.items()}


def cross_validate(times: StepTimes, count: int = 5, seed: int = 0) -> dict[str, Errors]:
    """Every row predicted by a fit without the rows of its placement, and of others of its fold."""
    fold = folds(np.unique(times.placement, return_inverse=True)[1], count, seed)
    weight = np.array([fold != number for number in range(count)])
    predicted = {name: np.zeros(len(fold)) for name in (MODEL, COMPUTE, MEAN)}
    for number, fitted in enumerate(fit_subsets(times, weight)):
        out = ~weight[number]
        rows, means = times.pick(out), mean_step_s(times.pick(weight[number]))
        compute = compute_s(fitted, rows)
        predicted[MODEL][out] = predict_step_s(fitted, rows)
        predicted[COMPUTE][out] = compute
        predicted[MEAN][out] = [means.get(str(key), alone) for key, alone in zip(_keys(rows), compute)]
    return {name: errors(times, values) for name, values in predicted.items()}


def extrapolate(times: StepTimes, nodes: int = FEW_NODES) -> dict[str, Errors]:
    """Fit on placements of at most `nodes` nodes, errors on all others."""
    near = times.spread[0] <= nodes
    fitted = fit_subsets(times, near[None].astype(float))[0]
    return compare(fitted, mean_step_s(times.pick(near)), times.pick(~near))


def _keys(times: StepTimes) -> Shaped[np.ndarray, "D"]:
    return np.char.add(np.char.add(times.model, " "), times.batch.astype(str))
