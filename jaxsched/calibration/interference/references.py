"""Four references, fitted to the same rows: no interference, a constant, an additive log model, matrix completion.

Each works per hardware. Items it has no row of count as average. Plain NumPy, closed forms.
"""

import dataclasses

import numpy as np
from jaxtyping import Float64, Int, Shaped

from jaxsched.calibration.interference.measurements import Measurements

NAMES = ("none", "constant", "additive", "completion")
RIDGE = 0.1  # of the additive effects, in rows
RANK, COMPLETION_RIDGE, SWEEPS = 3, 0.05, 30
LOWEST = 0.01  # of a predicted ratio


@dataclasses.dataclass(frozen=True)
class References:
    """What the references learned: `mean` and `log_mean` by hardware, the arrays by item."""

    mean: dict[str, float]
    log_mean: dict[str, float]
    log_victim: Float64[np.ndarray, "E"]
    log_aggressor: Float64[np.ndarray, "E"]
    left: Float64[np.ndarray, "E rank"]  # of what the additive model leaves over
    right: Float64[np.ndarray, "E rank"]

    def predict(
        self,
        name: str,
        hardware: Shaped[np.ndarray, "D"],
        victim: Int[np.ndarray, "D"],
        aggressor: Int[np.ndarray, "D"],
    ) -> Float64[np.ndarray, "D"]:
        """Ratios by the reference `name`; `hardware` holds names; items of index -1 are unknown."""
        if name == "none":
            return np.ones(len(victim))
        if name == "constant":
            return np.array([self.mean[key] for key in hardware])
        effect = lambda table, index: np.where((index < 0).reshape(-1, *[1] * (table.ndim - 1)), 0.0, table[index])
        base = np.array([self.log_mean[key] for key in hardware])
        base = np.exp(base + effect(self.log_victim, victim) + effect(self.log_aggressor, aggressor))
        if name == "completion":
            base = base + (effect(self.left, victim) * effect(self.right, aggressor)).sum(-1)
        return np.clip(base, LOWEST, 1.0)


def fit_references(measured: Measurements, weight: Shaped[np.ndarray, "D"] | None = None) -> References:
    """The references of the rows with `weight` > 0."""
    kept = np.ones(len(measured.ratio), bool) if weight is None else np.asarray(weight) > 0
    rows, hardware = measured.pick(kept), measured.hardware[kept]
    log = np.log(rows.ratio)
    mean = {str(key): float(rows.ratio[hardware == key].mean()) for key in np.unique(hardware)}
    log_mean = {str(key): float(log[hardware == key].mean()) for key in np.unique(hardware)}
    size = len(rows.items)
    rest = log - np.array([log_mean[key] for key in hardware])
    count = len(rest)
    design = np.zeros((count, 2 * size))
    design[np.arange(count), rows.victim] = 1.0
    design[np.arange(count), size + rows.aggressor] = 1.0
    effects = np.linalg.solve(design.T @ design + RIDGE * np.eye(2 * size), design.T @ rest)
    additive = np.exp(log - rest + design @ effects)
    left, right = _factors(rows, rows.ratio - additive)
    return References(mean, log_mean, effects[:size], effects[size:], left, right)


def _factors(rows: Measurements, residual: Float64[np.ndarray, "D"]) -> tuple[np.ndarray, np.ndarray]:
    """Low-rank factors of the residual by alternating ridge regressions (Koren et al., 2009)."""
    size = len(rows.items)
    rng = np.random.default_rng(0)
    left, right = rng.normal(0, 0.3, (2, size, RANK))

    def regress(own: np.ndarray, other: np.ndarray, factors: np.ndarray) -> np.ndarray:
        solved = np.zeros_like(factors)
        for item in np.unique(own):
            mine = own == item
            x = factors[other[mine]]
            solved[item] = np.linalg.solve(x.T @ x + COMPLETION_RIDGE * np.eye(RANK), x.T @ residual[mine])
        return solved

    for _ in range(SWEEPS):
        left = regress(rows.victim, rows.aggressor, right)
        right = regress(rows.aggressor, rows.victim, left)
    return left, right
