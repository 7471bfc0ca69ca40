"""Interference models: how much a resource's co-runners stretch a job's use of it.

One signature for all of them, `stretch(weights, channel, model, own, others) -> stretch`:

- `weights`: any pytree, a leaf of the environment's parameters, so that it can be swept, vmapped and differentiated;
- `channel`: a plain int, index into `resources.CHANNELS`: a model may branch on it;
- `model`: int32, the job's row in the catalogue; `own`, `others`: float32, utilisation of a resource of this channel by
  the job and by all its co-runners; the three broadcast against each other;
- result: float32 of the broadcast shape, at least 1, exactly 1 where `others` is 0, never falling in `others`.

A user's own model is any function of this signature.
"""

from typing import Protocol

import chex
import jax.numpy as jnp
from jax import Array

from jaxsched.dynamics.resources import CPU


class Interference(Protocol):
    """The signature above."""

    def __call__(self, weights: chex.ArrayTree, channel: int, model: Array, own: Array, others: Array) -> Array: ...


@chex.dataclass(frozen=True)
class Strengths:
    """Weights of the analytic model: `kappa` float32[5], one factor per channel, 1 = as derived, 0 = off."""

    kappa: Array


def default_strengths() -> Strengths:
    """Strength 1 in every channel: an assumption until it is fitted to measurements."""
    return Strengths(kappa=jnp.ones(5, jnp.float32))


def none(weights: chex.ArrayTree, channel: int, model: Array, own: Array, others: Array) -> Array:
    """Co-runners never matter; placement still decides what is communicated over what."""
    return jnp.ones(jnp.broadcast_shapes(own.shape, others.shape), jnp.float32)


def analytic(weights: Strengths, channel: int, model: Array, own: Array, others: Array) -> Array:
    """Cores stretch once oversubscribed; bandwidth by the time a co-runner is met on it (docs/semantics.md, 5)."""
    if channel == CPU:
        full = jnp.maximum(own, 1.0)
        excess = jnp.maximum(own + others, full) / full - 1.0
    else:
        excess = others
    return 1.0 + weights.kappa[channel] * excess


MODELS: dict[str, Interference] = {"none": none, "analytic": analytic}
