"""How much runs side by side: everything on an accelerator, little on a CPU.

On a CPU one environment fits the cache and its loops end when they should; vmapped, every inner loop runs until the
last environment is through and selects between whole states in every turn (docs/performance.md has the measurement).
Which of the two is looked up when a function is traced: by the backend, unless `traced_for` says otherwise.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
from jax import Array, core, lax
from jaxtyping import Bool, Int, PyTree

from jaxsched.options import ACCELERATOR as ACCELERATOR
from jaxsched.options import CPU as CPU
from jaxsched.options import PATHS as PATHS

Args = TypeVarTuple("Args")
T = TypeVar("T")
G = TypeVar("G")
E = TypeVar("E")


_path: contextvars.ContextVar[str | None] = contextvars.ContextVar("path", default=None)


def on_cpu() -> bool:
    """Whether what is traced now is made for a CPU."""
    return (_path.get() or jax.default_backend()) == CPU


@contextlib.contextmanager
def traced_for(path: str | None) -> Iterator[None]:
    """What is traced within is made for one of `PATHS`, whatever it runs on; None: for JAX's default backend.

    Functions that were traced before, by the same `jax.jit` for the same shapes, stay as they are.
    """
    before = _path.set(path)
    try:
        yield
    finally:
        _path.reset(before)


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


def only_where(needed: Bool[Array, "*S"], compute: Callable[..., T], otherwise: Callable[..., T]) -> T:
    """`compute(*index)` where `needed`, else `otherwise(*index)`, stacked; on a CPU the rest is not computed."""
    if on_cpu():
        start = jax.vmap(otherwise)(*jnp.unravel_index(jnp.arange(needed.size), needed.shape))
        return put_where(
            needed, compute, jax.tree.map(lambda leaf: leaf.reshape(*needed.shape, *leaf.shape[1:]), start)
        )
    turn, axes = _either, needed.ndim
    for axis in reversed(range(axes)):  # the last axis innermost: what the others look up is not copied along it
        places = [0 if other == axis else None for other in range(axes)]
        turn = jax.vmap(turn, in_axes=(None, None, 0, *places))
    return turn(compute, otherwise, needed, *(jnp.arange(size) for size in needed.shape))


def put_where(needed: Bool[Array, "*S"], compute: Callable[..., T], old: T) -> T:
    """`old`, leaves [*S, ...], with `compute(*index)` where `needed`; on a CPU the rest is not touched."""
    if not on_cpu():
        return only_where(needed, compute, lambda *index: _part(old, index))

    def next_one(carry: tuple[Array, T]) -> tuple[Array, T]:
        left, results = carry
        i = jnp.argmax(left)
        index = (i,) if left.ndim == 1 else jnp.unravel_index(i, left.shape)
        results = jax.tree.map(lambda leaf, new: leaf.at[index].set(new), results, compute(*index))
        return left.at[index].set(False), results

    return lax.while_loop(lambda carry: carry[0].any(), next_one, (needed, old))[1]


def _either(compute: Callable[..., T], otherwise: Callable[..., T], needed: Array, *index: Array) -> T:
    return lax.cond(needed, compute, otherwise, *index)


STARTED = 7 / 32  # of all partitions side by side that get a job together; in a turn 18% do
MANY = 8192  # with fewer partitions side by side all are computed


def write_where(
    needed: Bool[Array, "P"],
    entry: Callable[[G], E],
    put: Callable[[T, tuple[Array, ...], G, E], T],
    values: T,
    given: G,
    *,
    least: int = MANY,
) -> T:
    """`values` with what `entry` makes of every one of `given` that is `needed`; leaves of both have the axis P.

    On a CPU, and there under any `vmap`, one is put after the other where it lies, and the rest is not touched. Under
    `vmap` on an accelerator only what is needed anywhere is computed, `STARTED` of all places at a time.

    Args:
        entry: of one of `given`; where it is not `needed`, `put` must leave the values as they are.
        put: `put(values, (), given, entry)` of one place, or with indices of axes that all three have.
        least: of fewer places side by side all are computed.
    """
    if on_cpu():
        update = lambda value, one: put(value, (), one, entry(one))
        call, constants = _explicit(update, _part(values, (0,)), _part(given, (0,)))
        return _update_some(call, (0,) * len(constants), constants, needed, values, given)
    call, constants = _explicit(entry, _part(given, (0,)))

    def alone(constants: list[Array], needed: Array, values: T, given: G) -> T:
        entries = jax.vmap(functools.partial(call, constants))(given)
        return put(values, (jnp.arange(needed.shape[0]),), given, entries)

    run = jax.custom_batching.custom_vmap(alone)

    @run.def_vmap
    def side_by_side(size: int, batched: list, constants: list[Array], *rest: PyTree) -> tuple:
        needed, values, given = _spread(size, rest, tuple(batched[1:]))
        if needed.size < least:
            own = [0 if some else None for some in batched[0]]
            after = jax.vmap(alone, in_axes=(own, 0, 0, 0))(constants, needed, values, given)
        else:
            after = _written_in_shares(call, put, batched[0], constants, needed, values, given)
        return after, jax.tree.map(lambda _: True, after)

    return run(constants, needed, values, given)


def _written_in_shares(
    call: Callable, put: Callable, mapped: list[bool], constants: list[Array], needed: Array, values: T, given: PyTree
) -> T:
    """`write_where` of many environments; `mapped`: the constants that have their axis."""
    count = math.ceil(needed.size * STARTED)

    def one(lane: Array, given: PyTree) -> PyTree:
        return call([leaf[lane] if some else leaf for leaf, some in zip(constants, mapped, strict=True)], given)

    def some(carry: tuple[Array, T]) -> tuple[Array, T]:
        left, values = carry
        chosen = jnp.nonzero(left, size=count, fill_value=left.size)[0]
        at = jnp.unravel_index(jnp.minimum(chosen, left.size - 1), needed.shape)
        new = _part(given, at)
        entries = jax.vmap(one)(at[0], new)
        lane = jnp.where(chosen < left.size, at[0], needed.shape[0])  # beyond the end nothing is written
        return left.at[chosen].set(False, mode="drop"), put(values, (lane, at[1]), new, entries)

    return lax.while_loop(lambda carry: carry[0].any(), some, (needed.reshape(-1), values))[1]


def _update_some(
    call: Callable, depths: tuple[int, ...], constants: list[Array], needed: Array, values: T, given: PyTree
) -> T:
    """`write_where` on a CPU by `call(constants, value, given)`; `depths`: of constants, first axes of `needed`."""

    def alone(constants: list[Array], needed: Array, values: T, given: PyTree) -> T:
        def next_one(carry: tuple[Array, T]) -> tuple[Array, T]:
            left, values = carry
            one = jnp.unravel_index(jnp.argmax(left), left.shape)
            own = [leaf[one[:depth]] for leaf, depth in zip(constants, depths, strict=True)]
            new = call(own, _part(values, one), _part(given, one))
            return left.at[one].set(False), jax.tree.map(lambda leaf, part: leaf.at[one].set(part), values, new)

        return lax.while_loop(lambda carry: carry[0].any(), next_one, (needed, values))[1]

    run = jax.custom_batching.custom_vmap(alone)

    @run.def_vmap
    def side_by_side(size: int, batched: list, constants: list[Array], *rest: PyTree) -> tuple:
        mapped = [some or depth > 0 for some, depth in zip(batched[0], depths, strict=True)]
        constants = [_spread(size, *one) if own else one[0] for *one, own in zip(constants, batched[0], mapped)]
        deeper = tuple(depth + own for depth, own in zip(depths, mapped, strict=True))
        after = _update_some(call, deeper, constants, *_spread(size, rest, tuple(batched[1:])))
        return after, jax.tree.map(lambda _: True, after)

    return run(constants, needed, values, given)


def set_rows(columns: T, row: Int[Array, "n"], needed: Bool[Array, "n"], values: T) -> T:
    """`columns` [J, ...] with `values` [n, ...] in these rows, where `needed`.

    On a CPU, and there under any `vmap`, one after the other is put where it belongs: for few of many.
    """
    if not on_cpu():
        put = lambda old, new: old.at[jnp.where(needed, row, old.shape[0])].set(new, mode="drop")
        return jax.tree.map(put, columns, values)
    one_lane = jax.tree.map(lambda leaf: leaf[None], (columns, row, needed, values))
    return jax.tree.map(lambda leaf: leaf[0], _set_rows_of_lanes(*one_lane))


@jax.custom_batching.custom_vmap
def _set_rows_of_lanes(columns: T, row: Array, needed: Array, values: T) -> T:
    """`set_rows` of environments on a leading axis."""
    block = math.gcd(row.shape[1], 64)  # what is left is looked for block by block

    def of_lane(lane: Array, columns: T) -> T:
        def put_one(carry: tuple[Array, Array, T]) -> tuple[Array, Array, T]:
            some, left, columns = carry
            at = jnp.argmax(some), jnp.argmax(left[jnp.argmax(some)])
            left = left.at[at].set(False)
            i = at[0] * block + at[1]
            put = lambda old, new: old.at[lane, row[lane, i]].set(new[lane, i])
            return some.at[at[0]].set(left[at[0]].any()), left, jax.tree.map(put, columns, values)

        left = needed[lane].reshape(-1, block)
        return lax.while_loop(lambda carry: carry[0].any(), put_one, (left.any(-1), left, columns))[2]

    return lax.fori_loop(0, row.shape[0], of_lane, columns)


@_set_rows_of_lanes.def_vmap
def _(size: int, batched: list, *args: PyTree) -> tuple:
    lanes = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), _spread(size, args, tuple(batched)))
    after = _set_rows_of_lanes(*lanes)
    after = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), after)
    return after, jax.tree.map(lambda _: True, after)


SHARE = 3 / 16  # of all places side by side that are computed at once; most often one turn is enough


def of_parts(
    parts: PyTree,
    needed: Bool[Array, "P *S"],
    compute: Callable[..., T],
    otherwise: T,
    *,
    share: float = SHARE,
    least: int = 0,
) -> T:
    """`compute(part, *index)` where `needed`, else `otherwise`; `part` is of `parts` the one at `index[0]`.

    Under `vmap` on an accelerator only what is needed anywhere is computed, `share` of all places at a time. Parts of
    one environment are read where they lie.

    Args:
        otherwise: leaves [P, *S, ...].
        least: of fewer places side by side all are computed.
    """

    def here(parts: PyTree, needed: Array, otherwise: T, call: Callable[..., T]) -> T:
        return put_where(needed, lambda *index: call(_part(parts, index[0]), *index), otherwise)

    if on_cpu():
        return here(parts, needed, otherwise, compute)
    zeros = (jnp.int32(0),) * needed.ndim
    call, constants = _explicit(compute, _part(parts, zeros[0]), *zeros)

    # What a function with its own batching rule closes over would leak from the trace that it is made in.
    def alone(constants: list[Array], parts: PyTree, needed: Array, otherwise: T) -> T:
        return here(parts, needed, otherwise, functools.partial(call, constants))

    run = jax.custom_batching.custom_vmap(alone)

    @run.def_vmap
    def side_by_side(
        size: int, batched: tuple, constants: list[Array], parts: PyTree, needed: Array, otherwise: T
    ) -> tuple:
        lanes = _spread(size, needed, batched[2])
        if lanes.size < least:
            axes = jax.tree.map(lambda some: 0 if some else None, batched)
            results = jax.vmap(alone, in_axes=tuple(axes))(constants, parts, needed, otherwise)
        else:
            results = _in_shares(call, batched, share, constants, parts, lanes, otherwise)
        return results, jax.tree.map(lambda _: True, results)

    return run(constants, parts, needed, otherwise)


def _in_shares(
    call: Callable[..., T],
    batched: tuple,
    share: float,
    constants: list[Array],
    parts: PyTree,
    lanes: Bool[Array, "B P *S"],
    otherwise: T,
) -> T:
    """`of_parts` of many environments, a `share` of all places at a time; `batched`: what has their axis."""
    flat = lanes.reshape(-1)
    count, idle = math.ceil(flat.size * share), jnp.argmin(flat)  # where nothing is needed, so neither is it within

    def one(lane: Array, *index: Array) -> T:
        own = [leaf[lane] if some else leaf for leaf, some in zip(constants, batched[0], strict=True)]
        part = jax.tree.map(lambda leaf, some: leaf[lane, index[0]] if some else leaf[index[0]], parts, batched[1])
        return call(own, part, *index)

    def some(carry: tuple[Array, T]) -> tuple[Array, T]:
        left, results = carry
        chosen = jnp.nonzero(left, size=count, fill_value=flat.size)[0]
        places = jnp.unravel_index(jnp.where(chosen < flat.size, chosen, idle), lanes.shape)
        new = jax.vmap(one)(*places)
        results = jax.tree.map(lambda leaf, part: leaf.at[chosen].set(part, mode="drop"), results, new)
        return left.at[chosen].set(False, mode="drop"), results

    whole = _spread(lanes.shape[0], otherwise, batched[3])
    start = jax.tree.map(lambda leaf: leaf.reshape(flat.size, *leaf.shape[lanes.ndim :]), whole)
    _, results = lax.while_loop(lambda carry: carry[0].any(), some, (flat, start))
    return jax.tree.map(lambda leaf: leaf.reshape(*lanes.shape, *leaf.shape[1:]), results)


def if_needed(needed: Bool[Array, ""], compute: Callable[[], T], otherwise: T, *, share: float) -> T:
    """`compute()` if it is `needed`, else `otherwise`.

    Under `vmap` on an accelerator it is computed only where it is needed, for a `share` of all lanes at a time.
    """
    if on_cpu():
        return lax.cond(needed, compute, lambda: otherwise)
    results = of_parts((), needed[None], lambda *_: compute(), everywhere(otherwise, needed[None]), share=share)
    return jax.tree.map(lambda leaf: leaf[0], results)


def everywhere(one: T, needed: Bool[Array, "P *S"]) -> T:
    """`one` at every place: leaves [P, *S, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*needed.shape, *jnp.shape(leaf))), one)


def _part(parts: PyTree, index: Array | tuple[Array | int, ...]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], parts)


def _spread(size: int, values: T, batched: PyTree) -> T:
    """`values` of which all leaves have the batch's axis; `batched`: those that have it."""
    return jax.tree.map(
        lambda leaf, some: leaf if some else jnp.broadcast_to(leaf, (size, *leaf.shape)), values, batched
    )
