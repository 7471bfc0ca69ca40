"""How much runs side by side: everything on an accelerator, little on a CPU.

On a CPU one environment fits the cache and its loops end when they should; vmapped, every inner loop runs until the
last environment is through and selects between whole states in every turn (docs/performance.md has the measurement).
The backend is looked up when a function is traced.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import chex
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


def with_shared(function: Callable) -> Callable:
    """`run(large, *args)`, which is `function(part_of, *args)` with `part_of(i) = leaf[i]` of every leaf of `large`.

    Under `vmap` on a CPU it maps in sequence without a copy of each lane's `large`: only the parts looked up are read.
    All leaves of `large` are mapped over, or none.
    """

    def alone(large: chex.ArrayTree, *args: chex.ArrayTree) -> chex.ArrayTree:
        return function(lambda i: jax.tree.map(lambda leaf: leaf[i], large), *args)

    if not _on_cpu():
        return alone
    run = jax.custom_batching.custom_vmap(alone)

    @run.def_vmap
    def _(size: int, batched: list, large: chex.ArrayTree, *args: chex.ArrayTree) -> tuple:
        leaves, tree = jax.tree.flatten(args)
        mapped = jax.tree.leaves(batched[1:])
        every = jax.tree.leaves(batched[0])
        assert len(set(every)) == 1

        def lane(index: Array) -> chex.ArrayTree:
            own = tree.unflatten([leaf[index] if some else leaf for leaf, some in zip(leaves, mapped, strict=True)])
            where = (index,) if every[0] else ()
            return function(lambda i: jax.tree.map(lambda leaf: leaf[(*where, i)], large), *own)

        out = lax.map(lane, jnp.arange(size))
        return out, jax.tree.map(lambda _: True, out)

    return run


def only_where(needed: Array, compute: Callable[[Array], T], otherwise: Callable[[Array], T]) -> T:
    """`compute(i)` where `needed: bool[S]`, else `otherwise(i)`, stacked; on a CPU the rest is not computed."""

    def one(index: Array) -> T:
        return lax.cond(needed[index], compute, otherwise, index)

    index = jnp.arange(needed.shape[0])
    return lax.map(one, index) if _on_cpu() else jax.vmap(one)(index)
