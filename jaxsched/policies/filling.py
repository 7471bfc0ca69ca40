"""From an order of GPU groups to the counts of a gang (docs/semantics.md, section 7).

All functions work on one partition with its groups on one axis, `NK`.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.border import checked
from jaxsched.dynamics.batching import on_cpu
from jaxsched.semantics import GRID, GRID_LIMIT, GRID_OFFSET

PAIRS = 48  # groups of which every one is compared with every other; of more, a search is faster


def quantise(x: Float32[Array, "*shape"]) -> Int32[Array, "*shape"]:
    """`x` on the grid on which scores are compared, see `semantics`."""
    return jnp.clip(jnp.floor(GRID * x + GRID_OFFSET), 0.0, GRID_LIMIT).astype(jnp.int32)


@checked
def fill_in_order(key: Int32[Array, "NK"], capacity: Int32[Array, "NK"], need: Int32[Array, ""]) -> Int32[Array, "NK"]:
    """Workers per group when groups take what they can in ascending order of (key, index).

    Args:
        key: of each GPU group of the partition.
        capacity: workers that still fit each group, see `rules.capacity`.
        need: workers of the job.

    Returns:
        Workers of each group; fewer than `need` in all if no more fit.
    """
    if key.shape[0] > PAIRS:
        return _fill_by_bisection(key, capacity, need)
    index = jnp.arange(key.shape[0])
    # Written out: a reduction over pairs takes a GPU up to 20 times as long (docs/performance.md), a CPU no less time.
    before = sum(jnp.where(_first(key[j], j, key, index), capacity[j], 0) for j in range(key.shape[0]))
    return jnp.clip(need - before, 0, capacity)


def fill_servers_in_order(
    key: Int32[Array, "N"], capacity: Int32[Array, "NK"], need: Int32[Array, ""]
) -> Int32[Array, "NK"]:
    """`fill_in_order` with one `key` for all groups of a server, on an accelerator at a fraction of the comparisons."""
    fits = capacity.reshape(key.shape[0], -1)
    if on_cpu():  # which compares all groups at once, and is 5% slower the other way
        return fill_in_order(jnp.repeat(key, fits.shape[1], total_repeat_length=fits.size), capacity, need)
    of_server = fill_in_order(key, fits.sum(-1), need)[:, None]
    return jnp.clip(of_server - (jnp.cumsum(fits, -1) - fits), 0, fits).reshape(-1)


def fill_from(first: Int32[Array, ""], capacity: Int32[Array, "NK"], need: Int32[Array, ""]) -> Int32[Array, "NK"]:
    """Workers per group when groups take what they can by index, from group `first` on and then from group 0."""
    so_far = jnp.cumsum(capacity) - capacity
    wrapped = jnp.where(jnp.arange(capacity.shape[0]) < first, capacity.sum(), 0)
    return jnp.clip(need - (so_far - so_far[first] + wrapped), 0, capacity)


def ahead(key: Int32[Array, "K"]) -> Bool[Array, "K K"]:
    """Whether the second comes before the first in ascending order of (key, index)."""
    index = jnp.arange(key.shape[0])
    return _first(key, index, key[:, None], index[:, None])


def _first(key: Array, index: Array | int, other: Array, place: Array) -> Bool[Array, "*K"]:
    """Whether (key, index) comes before (other, place)."""
    return (key < other) | ((key == other) & (index < place))


def _fill_by_bisection(
    key: Int32[Array, "NK"], capacity: Int32[Array, "NK"], need: Int32[Array, ""]
) -> Int32[Array, "NK"]:
    """`fill_in_order` by a search for the last key that is needed; keys differ by less than 2^31."""

    def halve(_, limits: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = limits
        middle = low + (high - low) // 2
        enough = jnp.where(key <= middle, capacity, 0).sum() >= need
        return jnp.where(enough, low, jnp.minimum(middle + 1, high)), jnp.where(enough, middle, high)

    last, _ = lax.fori_loop(0, 31, halve, (key.min(), key.max()))
    before, tied = jnp.where(key < last, capacity, 0), jnp.where(key == last, capacity, 0)
    return before + jnp.clip(need - before.sum() - (jnp.cumsum(tied) - tied), 0, tied)


def fill_one_by_one(
    key: Callable[[Int32[Array, "NK"]], Int32[Array, "NK"]], capacity: Int32[Array, "NK"], need: Int32[Array, ""]
) -> Int32[Array, "NK"]:
    """Workers per group when each in turn goes to the group of lowest `key(counts)` with capacity left.

    Args:
        key: from the workers so far to a key of each group; ties: lowest index.
        capacity: workers that fit each group.
        need: workers of the job.
    """
    worst = jnp.iinfo(jnp.int32).max

    def body(counts: Array) -> Array:
        choice = jnp.argmin(jnp.where(counts < capacity, key(counts), worst))
        return counts.at[choice].add(1)

    target = jnp.minimum(need, capacity.sum())
    return lax.while_loop(lambda counts: counts.sum() < target, body, jnp.zeros_like(capacity))


def place_ps(workers: Int32[Array, "NK"], ps: Int32[Array, ""]) -> Int32[Array, "NK"]:
    """PS in proportion to the workers, by cumulative rounding down."""
    share = jnp.cumsum(workers) * ps // jnp.maximum(workers.sum(), 1)
    return jnp.diff(share, prepend=0)
