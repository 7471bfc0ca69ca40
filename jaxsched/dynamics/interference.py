"""Interference models: how much a resource's co-runners stretch a job's use of it.

One signature for all of them, `stretch(weights, channel, model, own, others) -> stretch`:

- `weights`: any pytree, a leaf of the environment's parameters, so that it can be swept, vmapped and differentiated;
- `channel`: a plain int, index into `resources.CHANNELS`: a model may branch on it;
- `model`: int32, the job's row in the catalogue; `own`, `others`: float32, utilisation of a resource of this channel by
  the job and by all its co-runners; the three broadcast against each other;
- result: float32 of the broadcast shape, at least 1, exactly 1 where `others` is 0, never falling in `others`.

A user's own model is any function of this signature.
"""

import dataclasses
from typing import Protocol

import chex
import jax.numpy as jnp
from jax import Array

from jaxsched.dynamics.resources import CHANNELS, CPU


class Interference(Protocol):
    """The signature above."""

    def __call__(self, weights: chex.ArrayTree, channel: int, model: Array, own: Array, others: Array) -> Array: ...


@chex.dataclass(frozen=True)
class Strengths:
    """Weights of the analytic model: `kappa` float32[5], one factor per channel, 1 = as derived, 0 = off."""

    kappa: Array


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """A channel's strength, the range that is plausible, and what says so."""

    default: float
    low: float
    high: float
    source: str


# Nobody has published measurements of jobs on different GPUs of one server contending for CPU cores, PCIe or QPI.
_ASSUMED = Calibrated(1.0, 0.5, 2.0, "assumption: the fair share, within a factor of 2")
# The weakest strength that explains DeepShare's cells within 1% of the best one's error; at 0.8 it is 3% higher.
# Above 2 the shares of communication that explain them contradict the jobs' own scaling (docs/interference.md).
_NETWORK = Calibrated(1.0, 0.8, 2.0, "DeepShare: jaxsched interference calibrate")
CALIBRATION: dict[str, Calibrated] = {
    "cpu": _ASSUMED,
    "pcie": _ASSUMED,
    "qpi": _ASSUMED,
    "nic": _NETWORK,
    "link": _NETWORK,
}
LEVELS = ("default", "low", "high")


def default_strengths(level: str = "default") -> Strengths:
    """The calibrated strength of every channel, or the `low` or `high` end of its range."""
    return Strengths(kappa=jnp.array([getattr(CALIBRATION[channel], level) for channel in CHANNELS], jnp.float32))


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


@chex.dataclass(frozen=True)
class FittedStrengths:
    """Weights of the fitted model: float32[5] each, by channel; the power is at least 1 and not used for the CPU."""

    kappa: Array
    power: Array


def fitted(weights: FittedStrengths, channel: int, model: Array, own: Array, others: Array) -> Array:
    """As `analytic`, but bandwidth stretches with a power of the others' use, fitted where there are measurements."""
    if channel == CPU:
        return analytic(Strengths(kappa=weights.kappa), channel, model, own, others)
    stretch = 1.0 + weights.kappa[channel] * others ** weights.power[channel]
    return jnp.broadcast_to(stretch, jnp.broadcast_shapes(own.shape, others.shape))


MODELS: dict[str, Interference] = {"none": none, "analytic": analytic}
