"""Validation of fitted models: folds, and errors by group."""

from collections.abc import Callable

import numpy as np

Errors = dict[str, dict[str, float]]  # {name of a figure: {group or "all": value}}
MODEL = "model"  # the fitted model, beside the references' names


def folds(unit: np.ndarray, count: int, seed: int) -> np.ndarray:
    """int[D]: the fold, 0 to `count` - 1, of every measurement; those of one `unit: int[D]` are in the same one."""
    return (np.random.default_rng(seed).permutation(int(unit.max()) + 1) % count)[unit]


def by_group(
    group: np.ndarray, values: np.ndarray, figure: Callable[[np.ndarray], float] = np.mean
) -> dict[str, float]:
    """{group or "all": figure of its `values: float[D]`}; `group: str[D]`."""
    groups = {str(name): float(figure(values[group == name])) for name in np.unique(group)}
    return groups | {"all": float(figure(values))}
