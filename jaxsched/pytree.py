"""Frozen dataclasses that JAX maps over: the base class of all types of arrays."""

import dataclasses
import typing
from typing import Any, Self

import jax
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike


def static(**options: Any) -> Any:
    """A field that is no leaf but part of the structure: hashable, and another value compiles another program."""
    return dataclasses.field(metadata={"static": True}, **options)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
class Pytree:
    """A subclass is a frozen dataclass made by keywords; its fields are the children of a pytree, `static` ones apart.

    ```python
    class Point(Pytree):
        x: Float32[Array, "N"]
        y: Float32[Array, "N"]
    ```
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
        fields = dataclasses.fields(typing.cast(Any, cls))
        fixed = [field.name for field in fields if field.metadata.get("static")]
        jax.tree_util.register_dataclass(cls, [field.name for field in fields if field.name not in fixed], fixed)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in the named fields; TypeError if there is no such field."""
        return dataclasses.replace(typing.cast(Any, self), **changes)


def on_device(values: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """Values of the host as an array. `jnp.asarray` does the same by a program that it compiles for every shape."""
    return values.astype(dtype) if isinstance(values, jax.Array) else jax.device_put(np.asarray(values, dtype))
