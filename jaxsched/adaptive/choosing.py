"""GPUs by marginal gain: every job has a value for each number of GPUs that it may have, and a type has so many.

Begin with nothing. Again and again make the jump, of one job to more GPUs, that gains most for each GPU and still fits.
While all best jumps fit, that is where jobs stand at the lowest price of a GPU at which demand fits: each takes the
number with the largest value less price times GPUs. The price is found by bisection, the few jumps beyond it singly.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64, Int

_HALVINGS = 10  # of the range of prices, as a ratio; jumps find what is left
_RANGE = 2.0**24


def by_gain(value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, ""]) -> Int[Array, "J"]:
    """The number of GPUs of every job.

    Args:
        value: of every choice; -inf where a job may not have it. The first choice is to have nothing.
        cost: GPUs of every choice, rising from 0.
        total: GPUs that there are.
    """
    return cost[_jumps(value, cost, total, _at_lowest_price(value, cost, total))]


def _at_lowest_price(value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, ""]) -> Int[Array, "J"]:
    """What jobs choose at a price at which demand fits, hardly above the lowest such price.

    The choice is kept from when it was found to fit: worked out again it could differ, at a price so near to a tie.
    """
    gain = (value[:, 1:] - value[:, :1]) / jnp.maximum(cost[1:], 1)
    highest = 2.0 * jnp.maximum(jnp.where(jnp.isfinite(gain), gain, 0.0).max(), 1e-9)

    def ask(low: Array, high: Array, kept: Array, price: Array) -> tuple:
        chosen = _first_best([value[:, c] - price * cost[c] for c in range(value.shape[1])])[1]  # ties: fewer GPUs
        fits = cost[chosen].sum() <= total
        low = jnp.where(fits, low, jnp.maximum(price, low))
        return low, jnp.where(fits, price, high), jnp.where(fits, chosen, kept)

    def halve(i: Array, carry: tuple) -> tuple:
        low, high, kept = carry
        return ask(low, high, kept, jnp.where(i == 0, 0.0, jnp.sqrt(low * high)))  # at no price all may fit

    begun = highest / _RANGE, highest, jnp.zeros(value.shape[0], jnp.int32)
    return jax.lax.fori_loop(0, _HALVINGS + 1, halve, begun)[2]


def _first_best(scores: Sequence[Float64[Array, "J"]]) -> tuple[Float64[Array, "J"], Int[Array, "J"]]:
    """The highest score of every job and which it is, the first of equals. Unlike `argmax` it runs on vectors."""
    best, at = scores[0], jnp.zeros(scores[0].shape, jnp.int32)
    for c, score in enumerate(scores[1:], 1):
        best, at = jnp.maximum(best, score), jnp.where(score > best, c, at)
    return best, at


def _jumps(
    value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, ""], chosen: Int[Array, "J"]
) -> Int[Array, "J"]:
    rows = jnp.arange(value.shape[0])

    def best(chosen: Int[Array, "J"]) -> tuple[Array, Array, Array]:
        has, worth = cost[chosen], value[rows, chosen]
        free = total - has.sum()

        def gain(c: int) -> Float64[Array, "J"]:
            more = cost[c] - has
            may = (more > 0) & (more <= free) & jnp.isfinite(value[:, c])
            return jnp.where(may, (value[:, c] - worth) / jnp.maximum(more, 1), -jnp.inf)

        gains, to = _first_best([gain(c) for c in range(value.shape[1])])
        job = jnp.argmax(gains)
        return gains[job], job, to[job]

    def jump(carry: tuple) -> tuple:
        gained, job, to = best(carry[0])
        return jnp.where((rows == job) & (gained > 0), to, carry[0]), gained > 0

    return jax.lax.while_loop(lambda carry: carry[1], jump, (chosen, jnp.array(True)))[0]
