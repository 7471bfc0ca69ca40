"""Pollux (Qiao et al., OSDI 2021): the best power mean of speedups, by marginal gain."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64, Int

from jaxsched.adaptive.choosing import by_gain
from jaxsched.adaptive.tables import widths
from jaxsched.adaptive.view import Allocation, View

LEAST_SPEEDUP, NOTHING = 1e-3, -1e3  # the lowest speedup that counts, and the value of no GPUs


def pollux(view: View) -> Allocation:
    """Qiao et al., OSDI 2021: the best power mean (exponent -1) of speedups over the fair share, by marginal gain.

    A change counts as the speedup times (age - restarts) / (age + a restart), unless the job holds no GPUs. A job at
    most doubles the most that it has had. The same objective as theirs; their optimiser is a genetic algorithm.
    """
    choices = whole_choices(view)
    return Allocation(gpus=choices[by_gain(harm(view, choices), choices, view.total[:1])])


def whole_choices(view: View) -> Int[Array, "C"]:
    """Nothing, and the numbers of GPUs that `whole_nodes` places."""
    return jnp.asarray([0, *widths(view.widths[0], view.of_plans.shape[-1] - 1)], jnp.int32)


def harm(view: View, choices: Int[Array, "C"]) -> Float64[Array, "J C"]:
    """Minus one over the speedup of every choice, as `pollux` counts it."""
    goodput = view.goodput_at(choices)
    share = view.total[0] // jnp.maximum(view.active.sum(), 1)
    fair = view.goodput_at(jnp.clip(share, view.least_gpus, view.most_gpus)[:, None])[:, 0]
    spent_s = view.restarts * view.restart_s
    kept = jnp.maximum(view.age_s - spent_s, 0.0) / (view.age_s + view.restart_s)
    changes = (view.gpus > 0)[:, None] & (choices != view.gpus[:, None])
    speedup = over(goodput, fair) * jnp.where(changes, kept[:, None], 1.0)
    most = jnp.minimum(view.most_gpus, jnp.maximum(2 * view.widest, view.least_gpus))
    may = (choices >= view.least_gpus[:, None]) & (choices <= most[:, None]) & (goodput > 0)
    value = jnp.where(may & view.active[:, None], -1.0 / jnp.maximum(speedup, LEAST_SPEEDUP), -jnp.inf)
    return jnp.where(choices == 0, NOTHING, value)


def over(goodput: Float64[Array, "J C"], base: Float64[Array, "J"]) -> Float64[Array, "J C"]:
    """Quotients that are rounded once. Over a column XLA multiplies by its inverse; equal jobs would then differ."""
    return goodput / jax.lax.optimization_barrier(jnp.broadcast_to(base[:, None], goodput.shape))
