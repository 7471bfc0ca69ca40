"""Frozen dataclasses that JAX maps over: the base class of all types of arrays."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
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


def smallest_type(most: int) -> type:
    """The smallest type of whole numbers that holds -1 and `most`."""
    return next(kind for kind in (np.int8, np.int16, np.int32) if most <= np.iinfo(kind).max)


def zeros_of(function: Callable[..., Any], *args: Any) -> Any:
    """Zeros in the shapes and types of what `function` makes of `args`; it is not run."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *args))


def call_on_host(function: Callable[..., np.ndarray], made: jax.ShapeDtypeStruct, *arrays: jax.Array) -> jax.Array:
    """What a function of NumPy arrays returns, in the middle of a program; under vmap one call after another.

    64-bit floats travel as their bits. JAX may call from a thread for which they are off, and would round them.
    """
    wide = [array.dtype == np.float64 for array in arrays]
    sent = [lax.bitcast_convert_type(array, np.uint32) if is_wide else array for array, is_wide in zip(arrays, wide)]
    back = made.dtype == np.float64
    form = jax.ShapeDtypeStruct((*made.shape, 2), np.uint32) if back else made

    def on_host(*received: jax.Array) -> np.ndarray:
        values = [
            np.ascontiguousarray(value).view(np.float64)[..., 0] if is_wide else np.asarray(value)
            for value, is_wide in zip(received, wide)
        ]
        found = np.ascontiguousarray(function(*values), made.dtype)
        return found.view(np.uint32).reshape(form.shape) if back else found

    given = jax.pure_callback(on_host, form, *sent, vmap_method="sequential")
    return lax.bitcast_convert_type(given, np.float64) if back else given
