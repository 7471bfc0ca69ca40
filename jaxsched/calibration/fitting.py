"""What all laws share when they are fitted: the descent, folds of rows, and errors by group."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Float32, Int, Int64, PyTree, Shaped


def minimize(
    loss: Callable[[PyTree, Array], Float32[Array, ""]],
    start: PyTree,
    *,
    steps: int,
    learning_rate: float,
    trained: PyTree = None,
) -> PyTree:
    """The parameters after so many steps from `start` down `loss(parameters, step)`.

    Where given, `trained` has 1 for what is fitted and 0 for what stays, in the structure of `start`.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def step(carry, index: Array):
        parameters, state = carry
        slope = jax.grad(loss)(parameters, index)
        if trained is not None:
            slope = jax.tree.map(jnp.multiply, slope, trained)
        change, state = optimizer.update(slope, state)
        return (optax.apply_updates(parameters, change), state), None

    (parameters, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), jnp.arange(steps))
    return parameters


Errors = dict[str, dict[str, float]]  # {name of a figure: {group or "all": value}}
MODEL = "model"  # the fitted model, beside the references' names


def folds(unit: Int[np.ndarray, "D"], count: int, seed: int) -> Int64[np.ndarray, "D"]:
    """The fold, 0 to `count` - 1, of every measurement; those of one `unit` are in the same one."""
    return (np.random.default_rng(seed).permutation(int(unit.max()) + 1) % count)[unit]


def figures_by_group(
    group: Shaped[np.ndarray, "D"], values: Float[np.ndarray, "D"], figure: Callable[[np.ndarray], float] = np.mean
) -> dict[str, float]:
    """{group or "all": figure of its `values`}; `group` holds names."""
    groups = {str(name): float(figure(values[group == name])) for name in np.unique(group)}
    return groups | {"all": float(figure(values))}
