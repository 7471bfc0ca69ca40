"""Spaces of actions and observations, as pure functions of a key: what learning libraries ask an environment for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, Shaped


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Whole numbers from 0 to `n - 1`, one for each entry of `shape`."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: Any = jnp.int32

    def sample(self, key: PRNGKeyArray, mask: Bool[Array, "*shape n"] | None = None) -> Int32[Array, "*shape"]:
        """Drawn evenly, of the numbers under `mask` if there is one."""
        if mask is None:
            return jax.random.randint(key, self.shape, 0, self.n, self.dtype)
        return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)).astype(self.dtype)

    def contains(self, value: Shaped[Array, "..."]) -> bool:
        """Whether it has the shape, and every entry is in range."""
        given = np.asarray(value)
        return given.shape == self.shape and bool(((given >= 0) & (given < self.n)).all())


@dataclasses.dataclass(frozen=True)
class Box:
    """Numbers between `low` and `high`, one for each entry of `shape`."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: Any = jnp.float32

    def sample(self, key: PRNGKeyArray) -> Float32[Array, "*shape"]:
        """Drawn evenly between the limits, which must be finite."""
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, value: Shaped[Array, "..."]) -> bool:
        """Whether it has the shape, and every entry is in range."""
        given = np.asarray(value)
        return given.shape == self.shape and bool(((given >= self.low) & (given <= self.high)).all())


@dataclasses.dataclass(frozen=True)
class Named:
    """Several spaces by name."""

    spaces: Mapping[str, Discrete | Box]

    def __getitem__(self, name: str) -> Discrete | Box:
        return self.spaces[name]

    def sample(self, key: PRNGKeyArray) -> dict[str, Array]:
        """Of every part, by its name."""
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(key) for (name, space), key in zip(self.spaces.items(), keys, strict=True)}

    def contains(self, value: Mapping[str, Any]) -> bool:
        """Whether every part is in its space."""
        return set(value) == set(self.spaces) and all(
            space.contains(value[name]) for name, space in self.spaces.items()
        )
