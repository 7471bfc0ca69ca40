"""The design matrix: what a job's latent vectors are made of.

A latent vector is a sum over *columns*: its hardware, its family, the family on that hardware, its scale (with a slope
common to all and one per family and hardware), its profile, and a part of its own. Each kind of column has a prior
precision, so that a job without measurements falls back on its family, and a new family on its profile.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float32

from jaxsched.calibration.interference.measurements import Item

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

    def extended(self, items: Sequence[Item]) -> "Vocabulary":
        """With the columns of `items` that are new at the end."""
        wider = dataclasses.replace(self, centers=_centers(items) | self.centers)
        return dataclasses.replace(wider, columns=_columns(wider, items))


def vocabulary_of(items: Sequence[Item]) -> Vocabulary:
    """All columns of `items`."""
    profile = np.array([item.profile for item in items])
    std = np.where(profile.std(0) > 0, profile.std(0), 1.0)
    empty = Vocabulary((), {}, tuple(map(float, profile.mean(0))), tuple(map(float, std)))
    return empty.extended(items)


def _centers(items: Sequence[Item]) -> dict[str, tuple[float, ...]]:
    """Mean scale per family."""
    families = sorted({item.family for item in items})
    return {f: tuple(map(float, np.mean([i.scale for i in items if i.family == f], axis=0))) for f in families}


def _columns(known: Vocabulary, items: Sequence[Item]) -> tuple[Column, ...]:
    new = {column for item in items for column, _ in known.features(item)} - set(known.columns)
    return known.columns + tuple(sorted(new))
