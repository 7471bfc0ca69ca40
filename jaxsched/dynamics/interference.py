"""Interference models: how much a resource's co-runners stretch a job's use of it.

A model is a law and its weights (`Interference`). One signature for all laws,
`law(weights, channel, model, own, others) -> stretch`:

- `weights`: any pytree; its leaves are parameters of the environment, to be swept, vmapped and differentiated;
- `channel`: a plain int, index into `resources.CHANNELS`: a law may branch on it;
- `model`: the job's row in the catalogue; `own`, `others`: utilisation of a resource of this channel by the job and by
  all its co-runners; the three broadcast against each other. On the channel `gpu`, which only concerns jobs that share
  a GPU, each job uses its GPU by 1: `own` is 1 and `others` the number of co-runners;
- result: of the broadcast shape, at least 1, exactly 1 where `others` is 0, never falling in `others`.

A user's own law is any function of this signature. Where GPU sharing was fitted to measurements (`sharing`), what was
fitted replaces the channel `gpu`. What it adds to a job's time may have a factor for each pair of models (`pairs`).
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int32, PyTree

from jaxsched.dynamics.resources import CHANNELS, CPU, GPU
from jaxsched.dynamics.sharing import SharingTable
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree, on_device, static
from jaxsched.user_code import call, check_shape, is_ours, name_of

Model = Int32[Array, "*#jobs"]
Use = Float[Array, "*#jobs"]
Stretch = Float[Array, "*#jobs"]


class StretchLaw(Protocol):
    """The signature above."""

    def __call__(self, weights: PyTree, channel: int, model: Model, own: Use, others: Use) -> Stretch: ...


class Interference(Pytree):
    """An interference model: which law, and its numbers."""

    law: StretchLaw = static()
    weights: PyTree
    sharing: SharingTable | None = None  # what was fitted of jobs on one GPU; None: the law's channel `gpu`
    pairs: Float32[Array, "models models"] | None = None  # factors of model and co-runner's model; None: all are 1

    def __call__(self, channel: int, model: Model, own: Use, others: Use) -> Stretch:
        """The stretch, see the module."""
        return self.law(self.weights, channel, model, own, others)


class Strengths(Pytree):
    """Weights of the analytic model: one factor per channel, 1 = as derived, 0 = off."""

    kappa: Float32[Array, "channels"]


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
# The strength of least mean absolute error over all pairs; the range is that of the best ones of each GPU type.
_ONE_GPU = Calibrated(0.72, 0.5, 0.87, "Gavel: jaxsched interference calibrate")
CALIBRATION: dict[str, Calibrated] = {
    "cpu": _ASSUMED,
    "pcie": _ASSUMED,
    "qpi": _ASSUMED,
    "nic": _NETWORK,
    "link": _NETWORK,
    "gpu": _ONE_GPU,
}
LEVELS = ("default", "low", "high")


def default_strengths(level: str = "default") -> Strengths:
    """The calibrated strength of every channel, or the `low` or `high` end of its range."""
    return Strengths(kappa=on_device([getattr(CALIBRATION[channel], level) for channel in CHANNELS], np.float32))


def _strength(kappa: Float32[Array, "channels"], channel: int) -> Float32[Array, ""]:
    """The strength of a channel. ValueError on weights without the channel `gpu`: JAX would clamp it."""
    if channel == GPU and kappa.shape[-1] <= GPU:
        raise ValueError(f"kappa: has {kappa.shape[-1]} channels, should have {len(CHANNELS)}: {', '.join(CHANNELS)}")
    return kappa[channel]


def none(weights: PyTree, channel: int, model: Model, own: Use, others: Use) -> Stretch:
    """Co-runners never matter; placement still decides what is communicated over what."""
    return jnp.ones(jnp.broadcast_shapes(own.shape, others.shape), jnp.float32)


def analytic(weights: Strengths, channel: int, model: Model, own: Use, others: Use) -> Stretch:
    """Cores stretch once oversubscribed; bandwidth and GPUs by the time a co-runner is met (docs/semantics.md, 5)."""
    if channel == CPU:
        full = jnp.maximum(own, 1.0)
        excess = jnp.maximum(own + others, full) / full - 1.0
    else:
        excess = others
    return 1.0 + _strength(weights.kappa, channel) * excess


class FittedStrengths(Pytree):
    """Weights of the fitted model, by channel; the power, at least 1, is not used for CPU and GPU."""

    kappa: Float32[Array, "channels"]
    power: Float32[Array, "channels"]


def fitted(weights: FittedStrengths, channel: int, model: Model, own: Use, others: Use) -> Stretch:
    """As `analytic`, but bandwidth stretches with a power of the others' use, fitted where there are measurements."""
    if channel in (CPU, GPU):
        return analytic(Strengths(kappa=weights.kappa), channel, model, own, others)
    stretch = 1.0 + weights.kappa[channel] * others ** weights.power[channel]
    return jnp.broadcast_to(stretch, jnp.broadcast_shapes(own.shape, others.shape))


LAWS: dict[str, StretchLaw] = {"none": none, "analytic": analytic}


def default_interference() -> Interference:
    """The analytic law at its calibrated strengths."""
    return Interference(law=analytic, weights=default_strengths())


_OWN, _OTHERS = np.array([[0.0], [0.5], [1.0]], np.float32), np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0], np.float32)


def check_law(model: Interference) -> None:
    """UserError, which names it, if a user's law fails, or does not hold on a few values what every law must."""
    if is_ours(model.law):
        return
    who = f"law {name_of(model.law)}"

    @jax.jit
    def stretches(weights: PyTree) -> list[Array]:
        found = []
        for channel in range(len(CHANNELS)):
            args = jnp.zeros(_OWN.shape, jnp.int32), jnp.asarray(_OWN), jnp.asarray(_OTHERS)
            stretch = call(who, model.law, weights, channel, *args)
            shape = jnp.broadcast_shapes(_OWN.shape, _OTHERS.shape)
            check_shape(who, stretch, shape, "a stretch for each pair of `own` and `others`")
            found.append(stretch)
        return found

    for name, stretch in zip(CHANNELS, map(np.asarray, stretches(model.weights)), strict=True):
        wrong = {
            "is no finite number of at least 1": not (np.isfinite(stretch) & (stretch >= 1.0)).all(),
            "is not 1 where others use nothing": (stretch[:, 0] != 1.0).any(),
            "falls where others use more": (np.diff(stretch, axis=-1) < 0).any(),
        }
        for what, holds in wrong.items():
            if holds:
                raise UserError(f"{who}: its stretch on the channel {name!r} {what}: {stretch[-1].tolist()}")
