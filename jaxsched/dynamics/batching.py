"""How much runs side by side: everything on an accelerator, little on a CPU.

On a CPU one environment fits the cache and its loops end when they should; vmapped, every inner loop runs until the
last environment is through and selects between whole states in every turn (docs/performance.md has the measurement).
The backend is looked up when a function is traced.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jax import Array, core, lax
from jaxtyping import Bool, PyTree

Args = TypeVarTuple("Args")
T = TypeVar("T")


def on_cpu() -> bool:
    """Whether what is traced now will run on a CPU."""
    return jax.default_backend() == "cpu"


def lane_by_lane(function: Callable[[*Args], T]) -> Callable[[*Args], T]:
    """`function` of pytrees of arrays, which under `vmap` maps in sequence on a CPU."""

    @functools.wraps(function)
    def run(*args: *Args) -> T:
        if not on_cpu():
            return function(*args)
        call, constants = _explicit(function, *args)
        return jax.custom_batching.sequential_vmap(call)(constants, *args)

    return run


def with_shared(function: Callable) -> Callable:
    """`run(large, *args)`, which is `function(part_of, *args)` with `part_of(i) = leaf[i]` of every leaf of `large`.

    Under `vmap` on a CPU it maps in sequence without a copy of each lane's `large`: only the parts looked up are read.
    All leaves of `large` are mapped over, or none. `function` closes over no traced value.
    """

    def alone(large: PyTree, *args: PyTree) -> PyTree:
        return function(lambda i: jax.tree.map(lambda leaf: leaf[i], large), *args)

    def one_by_one(size: int, batched: list, _, large: PyTree, *args: PyTree) -> tuple:
        leaves, tree = jax.tree.flatten(args)
        every, mapped = jax.tree.leaves(batched[1]), jax.tree.leaves(batched[2:])
        assert len(set(every)) == 1

        def lane(index: Array) -> PyTree:
            own = tree.unflatten([leaf[index] if some else leaf for leaf, some in zip(leaves, mapped, strict=True)])
            where = (index,) if every[0] else ()
            return function(lambda i: jax.tree.map(lambda leaf: leaf[(*where, i)], large), *own)

        out = lax.map(lane, jnp.arange(size))
        return out, jax.tree.map(lambda _: True, out)

    def run(large: PyTree, *args: PyTree) -> PyTree:
        if not on_cpu():
            return alone(large, *args)
        call, constants = _explicit(alone, large, *args)
        call = jax.custom_batching.custom_vmap(call)
        call.def_vmap(one_by_one)
        return call(constants, large, *args)

    return run


def _explicit(function: Callable, *args: PyTree) -> tuple[Callable, list[Array]]:
    """`call(constants, *args)` and the constants that `function` closes over.

    A function with its own batching rule must not close over arrays: a `cond` on a batched value batches them, too.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    tree = jax.tree.structure(shape)

    def call(constants: list[Array], *args: PyTree) -> PyTree:
        return tree.unflatten(core.eval_jaxpr(closed.jaxpr, constants, *jax.tree.leaves(args)))

    return call, closed.consts


def only_where(needed: Bool[Array, "S"], compute: Callable[[Array], T], otherwise: Callable[[Array], T]) -> T:
    """`compute(i)` where `needed`, else `otherwise(i)`, stacked; on a CPU the rest is not computed."""
    index = jnp.arange(needed.shape[0])
    if not on_cpu():
        return jax.vmap(lambda i: lax.cond(needed[i], compute, otherwise, i))(index)

    def next_one(carry: tuple[Array, T]) -> tuple[Array, T]:
        left, results = carry
        i = jnp.argmax(left)
        results = jax.tree.map(lambda leaf, new: leaf.at[i].set(new), results, compute(i))
        return left.at[i].set(False), results

    return lax.while_loop(lambda carry: carry[0].any(), next_one, (needed, jax.vmap(otherwise)(index)))[1]
