"""The trainable model: latent vectors of jobs from their design, and the law of sharing on top (flax)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int

from jaxsched.dynamics.sharing import Law, slowdown
from jaxsched.io.schema import Size


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """Sizes, priors and the fit's course. The defaults are those for GPUs; see `NETWORK_SETTINGS`.

    `precisions` of the latent parts are those of `design`, by kind of column; hardware has none, it is measured well.
    """

    channels: Size = 6  # C
    hidden: Size = 8  # H
    members: Size = 6  # of the ensemble
    steps: int = 1000
    learning_rate: float = 0.03  # falls to 0 on a cosine
    noise: float = 0.05  # standard deviation of the latent vectors while fitting: keeps solutions flat
    softness: float = 0.02  # of the ratio: errors below it count as squares, above as absolute values
    law_precision: float = 0.003
    precisions: tuple[tuple[str, float], ...] = (
        ("hardware", 0.0),
        ("family", 0.003),
        ("family@hardware", 0.01),
        ("scale", 0.003),
        ("scale@family@hardware", 0.05),
        ("profile", 0.003),
        ("item", 0.05),
    )


NETWORK_SETTINGS = FitSettings(
    channels=4,
    members=8,
    noise=0.2,
    softness=0.005,  # cells are noisier than pairs on a GPU, and many are exactly 1: nearly absolute errors
    precisions=(
        ("hardware", 0.0),
        ("family", 0.003),
        ("family@hardware", 0.01),
        ("scale", 0.003),
        ("scale@family@hardware", 0.3),
        ("profile", 0.003),
        ("item", 0.3),
    ),
)


def _around(mean: float, spread: float):
    """An initialiser: normal with this mean and standard deviation."""
    return lambda key, shape: mean + spread * jax.random.normal(key, shape)


class SharingModel(nn.Module):
    """Ratios from design rows; parameters `theta` float32[K, 2 C] and the law's."""

    columns: int
    channels: int
    hidden: int

    def setup(self) -> None:
        """Small latent vectors, and a law that is far from saturation."""
        shape = (self.channels, self.hidden)
        self.theta = self.param("theta", _around(0.0, 0.1), (self.columns, 2 * self.channels))
        self.mix = self.param("mix", _around(-1.0, 0.3), shape)
        self.gate = self.param("gate", _around(0.0, 0.3), shape)
        self.bias = self.param("bias", _around(0.0, 0.0), (self.hidden,))
        self.gain = self.param("gain", _around(-1.0, 0.0), (self.hidden,))

    def __call__(
        self,
        design: Float32[Array, "E K"],
        victim: Int[Array | np.ndarray, "D"],
        aggressor: Int[Array | np.ndarray, "D"],
        noise: Float32[Array, "E both"] | float = 0.0,
    ) -> Float32[Array, "D"]:
        """Throughput ratios of the victims beside one aggressor each; `noise` is added to the latent vectors."""
        sensitivity, pressure = split(design @ self.theta + noise)
        law = Law(mix=self.mix, gate=self.gate, bias=self.bias, gain=self.gain)
        return 1.0 / slowdown(law, sensitivity[victim], pressure[aggressor])


def split(
    latent: Float32[Array, "*batch both"],
) -> tuple[Float32[Array, "*batch channels"], Float32[Array, "*batch channels"]]:
    """Sensitivity and pressure (>= 0) of latent vectors, whose halves they are."""
    channels = latent.shape[-1] // 2
    return latent[..., :channels], jax.nn.softplus(latent[..., channels:])


def law_of(parameters: dict[str, Any]) -> Law:
    """The law in a model's parameters."""
    return Law(**{name: jnp.asarray(parameters[name]) for name in ("mix", "gate", "bias", "gain")})
