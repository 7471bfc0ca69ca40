"""What is fitted to measurements: the trainable model (flax), and four references to compare it with.

The model has latent vectors of jobs from a design matrix, and the law of sharing on top. A latent vector is a sum over
*columns*: its hardware, its family, the family on that hardware, its scale (with a slope common to all and one per
family and hardware), its profile, and a part of its own. Each kind of column has a prior precision, so that a job
without measurements falls back on its family, and a new family on its profile.

The references are no interference, a constant, an additive log model and matrix completion. Each works per hardware.
Items it has no row of count as average. Plain NumPy, closed forms.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Float64, Int, Shaped

from jaxsched.calibration.interference.measurements import Item, Measurements
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


NAMES = ("none", "constant", "additive", "completion")
RIDGE = 0.1  # of the additive effects, in rows
RANK, COMPLETION_RIDGE, SWEEPS = 3, 0.05, 30
LOWEST = 0.01  # of a predicted ratio


@dataclasses.dataclass(frozen=True)
class References:
    """What the references learned: `mean` and `log_mean` by hardware, the arrays by item."""

    mean: dict[str, float]
    log_mean: dict[str, float]
    log_victim: Float64[np.ndarray, "E"]
    log_aggressor: Float64[np.ndarray, "E"]
    left: Float64[np.ndarray, "E rank"]  # of what the additive model leaves over
    right: Float64[np.ndarray, "E rank"]

    def predict(
        self,
        name: str,
        hardware: Shaped[np.ndarray, "D"],
        victim: Int[np.ndarray, "D"],
        aggressor: Int[np.ndarray, "D"],
    ) -> Float64[np.ndarray, "D"]:
        """Ratios by the reference `name`; `hardware` holds names; items of index -1 are unknown."""
        if name == "none":
            return np.ones(len(victim))
        if name == "constant":
            return np.array([self.mean[key] for key in hardware])
        effect = lambda table, index: np.where((index < 0).reshape(-1, *[1] * (table.ndim - 1)), 0.0, table[index])
        base = np.array([self.log_mean[key] for key in hardware])
        base = np.exp(base + effect(self.log_victim, victim) + effect(self.log_aggressor, aggressor))
        if name == "completion":
            base = base + (effect(self.left, victim) * effect(self.right, aggressor)).sum(-1)
        return np.clip(base, LOWEST, 1.0)


def fit_references(measured: Measurements, weight: Shaped[np.ndarray, "D"] | None = None) -> References:
    """The references of the rows with `weight` > 0."""
    kept = np.ones(len(measured.ratio), bool) if weight is None else np.asarray(weight) > 0
    rows, hardware = measured.pick(kept), measured.hardware[kept]
    log = np.log(rows.ratio)
    mean = {str(key): float(rows.ratio[hardware == key].mean()) for key in np.unique(hardware)}
    log_mean = {str(key): float(log[hardware == key].mean()) for key in np.unique(hardware)}
    size = len(rows.items)
    rest = log - np.array([log_mean[key] for key in hardware])
    count = len(rest)
    design = np.zeros((count, 2 * size))
    design[np.arange(count), rows.victim] = 1.0
    design[np.arange(count), size + rows.aggressor] = 1.0
    effects = np.linalg.solve(design.T @ design + RIDGE * np.eye(2 * size), design.T @ rest)
    additive = np.exp(log - rest + design @ effects)
    left, right = _factors(rows, rows.ratio - additive)
    return References(mean, log_mean, effects[:size], effects[size:], left, right)


def _factors(rows: Measurements, residual: Float64[np.ndarray, "D"]) -> tuple[np.ndarray, np.ndarray]:
    """Low-rank factors of the residual by alternating ridge regressions (Koren et al., 2009)."""
    size = len(rows.items)
    rng = np.random.default_rng(0)
    left, right = rng.normal(0, 0.3, (2, size, RANK))

    def regress(own: np.ndarray, other: np.ndarray, factors: np.ndarray) -> np.ndarray:
        solved = np.zeros_like(factors)
        for item in np.unique(own):
            mine = own == item
            x = factors[other[mine]]
            solved[item] = np.linalg.solve(x.T @ x + COMPLETION_RIDGE * np.eye(RANK), x.T @ residual[mine])
        return solved

    for _ in range(SWEEPS):
        left = regress(rows.victim, rows.aggressor, right)
        right = regress(rows.aggressor, rows.victim, left)
    return left, right
