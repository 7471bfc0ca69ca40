"""The trainable model: latent vectors of jobs from a design matrix, and the law of sharing on top (flax).

A latent vector is a sum over *columns*: its hardware, its family, the family on that hardware, its scale (with a slope
common to all and one per family and hardware), its profile, and a part of its own. Each kind of column has a prior
precision, so that a job without measurements falls back on its family, and a new family on its profile.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int

from jaxsched.calibration.interference.measurements import Item
from jaxsched.dynamics.sharing import Law, slowdown
from jaxsched.io.schema import Size

Column = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The columns, and the means that scales and profiles are centred with."""

    columns: tuple[Column, ...]
    centers: dict[str, tuple[float, ...]]  # of a family's scale
    profile_mean: tuple[float, ...]
    profile_std: tuple[float, ...]

    def features(self, item: Item) -> Iterator[tuple[Column, float]]:
        """Columns of an item, known or not, and their values."""
        family, hardware = item.family, item.hardware
        yield ("hardware", hardware), 1.0
        yield ("family", family), 1.0
        yield ("family@hardware", family, hardware), 1.0
        for i, (own, center) in enumerate(zip(item.scale, self.centers.get(family, item.scale))):
            yield ("scale", str(i)), (own - center) / 2.0  # 1 = a factor of 4
            yield ("scale@family@hardware", str(i), family, hardware), (own - center) / 2.0
        for i, (own, mean, std) in enumerate(zip(item.profile, self.profile_mean, self.profile_std)):
            yield ("profile", str(i)), (own - mean) / std
        yield ("item", hardware, item.name), 1.0

    def design(self, items: Sequence[Item]) -> Float32[np.ndarray, "E K"]:
        """A row per item; columns that the vocabulary does not have are left out: their prior mean is 0."""
        index = {column: i for i, column in enumerate(self.columns)}
        matrix = np.zeros((len(items), len(self.columns)), np.float32)
        for row, item in enumerate(items):
            for column, value in self.features(item):
                if column in index:
                    matrix[row, index[column]] = value
        return matrix

    def extend(self, items: Sequence[Item]) -> "Vocabulary":
        """With the columns of `items` that are new at the end."""
        wider = dataclasses.replace(self, centers=_centers(items) | self.centers)
        return dataclasses.replace(wider, columns=_columns(wider, items))


def vocabulary_of(items: Sequence[Item]) -> Vocabulary:
    """All columns of `items`."""
    profile = np.array([item.profile for item in items])
    std = np.where(profile.std(0) > 0, profile.std(0), 1.0)
    empty = Vocabulary((), {}, tuple(map(float, profile.mean(0))), tuple(map(float, std)))
    return empty.extend(items)


def _centers(items: Sequence[Item]) -> dict[str, tuple[float, ...]]:
    """Mean scale per family."""
    families = sorted({item.family for item in items})
    return {f: tuple(map(float, np.mean([i.scale for i in items if i.family == f], axis=0))) for f in families}


def _columns(known: Vocabulary, items: Sequence[Item]) -> tuple[Column, ...]:
    new = {column for item in items for column, _ in known.features(item)} - set(known.columns)
    return known.columns + tuple(sorted(new))


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """Sizes, priors and the fit's course. The defaults are those for GPUs; see `NETWORK_SETTINGS`.

    `precisions` are those of the latent parts, by kind of column (`Vocabulary.features`); hardware has none, it is
    measured well.
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
