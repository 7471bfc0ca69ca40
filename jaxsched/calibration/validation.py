"""Validation of fitted models: folds, and errors by group."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int, Int64, Shaped

Errors = dict[str, dict[str, float]]  # {name of a figure: {group or "all": value}}
MODEL = "model"  # the fitted model, beside the references' names


def folds(unit: Int[np.ndarray, "D"], count: int, seed: int) -> Int64[np.ndarray, "D"]:
    """The fold, 0 to `count` - 1, of every measurement; those of one `unit` are in the same one."""
    return (np.random.default_rng(seed).permutation(int(unit.max()) + 1) % count)[unit]


def by_group(
    group: Shaped[np.ndarray, "D"], values: Float[np.ndarray, "D"], figure: Callable[[np.ndarray], float] = np.mean
) -> dict[str, float]:
    """{group or "all": figure of its `values`}; `group` holds names."""
    groups = {str(name): float(figure(values[group == name])) for name in np.unique(group)}
    return groups | {"all": float(figure(values))}
