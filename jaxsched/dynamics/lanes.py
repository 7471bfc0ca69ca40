"""How much runs side by side: everything on an accelerator, little on a CPU.

On a CPU one environment fits the cache and its loops end when they should; vmapped, every inner loop runs until the
last environment is through and selects between whole states in every turn (docs/performance.md has the measurement).
The backend is looked up when a function is traced.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

P = ParamSpec("P")
T = TypeVar("T")


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def lane_by_lane(function: Callable[P, T]) -> Callable[P, T]:
    """`function` of pytrees of arrays (closing over no traced value), which under `vmap` maps in sequence on a CPU."""
    in_sequence = jax.custom_batching.sequential_vmap(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return (in_sequence if _on_cpu() else function)(*args, **kwargs)

    return run


def only_where(needed: Array, compute: Callable[[Array], T], otherwise: Callable[[Array], T]) -> T:
    """`compute(i)` where `needed: bool[S]`, else `otherwise(i)`, stacked; on a CPU the rest is not computed."""

    def one(index: Array) -> T:
        return lax.cond(needed[index], compute, otherwise, index)

    index = jnp.arange(needed.shape[0])
    return lax.map(one, index) if _on_cpu() else jax.vmap(one)(index)
