"""The fit that all laws share: Adam with a learning rate that falls to 0 on a cosine, as one loop in the program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float32, PyTree


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
