"""GPUs by marginal gain: every job has a value for each choice that it may have, and a GPU type has so many GPUs.

Begin with nothing. Again and again make the jump, of one job to more GPUs, that gains most for each GPU and still fits.
With one type, while all best jumps fit, that is where jobs stand at the lowest price of a GPU at which demand fits:
each takes the number with the largest value less price times GPUs. The price is found by bisection, the few jumps
beyond it singly. With several types each has a price. They begin where nobody wants anything, and fall one after
another. A lower price of one type takes demand from others and never adds to it, so what fitted still fits.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

_HALVINGS = 10  # of the range of prices, as a ratio; jumps find what is left
_RANGE = 2.0**24
_SWEEPS = 3  # over the prices of several types


def by_gain(
    value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, "T"], kind: Sequence[int] | None = None
) -> Int[Array, "J"]:
    """The choice of every job.

    Args:
        value: of every choice; -inf where a job may not have it. The first choice is to have nothing.
        cost: GPUs of every choice; with one type rising from 0.
        total: GPUs that there are, of every type.
        kind: type of every choice; None: there is one.
    """
    types = np.zeros(value.shape[1], int) if kind is None else np.asarray(kind)
    return _jumps(value, cost, types, total, _at_lowest_prices(value, cost, types, total))


def _demand(cost: Int[Array, "C"], kind: np.ndarray, types: int, chosen: Int[Array, "J"]) -> Int[Array, "T"]:
    """GPUs of each type that the choices of all jobs take."""
    return jnp.stack([jnp.where(jnp.asarray(kind == t), cost, 0)[chosen].sum() for t in range(types)])


def _at_lowest_prices(
    value: Float64[Array, "J C"], cost: Int[Array, "C"], kind: np.ndarray, total: Int[Array, "T"]
) -> Int[Array, "J"]:
    """What jobs choose at prices at which demand fits, hardly above the lowest such prices.

    The choice is kept from when it was found to fit: worked out again it could differ, at a price so near to a tie.
    """
    types = total.shape[0]
    gain = (value[:, 1:] - value[:, :1]) / jnp.maximum(cost[1:], 1)
    highest = 2.0 * jnp.maximum(jnp.where(jnp.isfinite(gain), gain, 0.0).max(), 1e-9)
    prices, kept = [highest] * types, jnp.zeros(value.shape[0], jnp.int32)

    def lower(t: int, prices: list[Array], kept: Array) -> tuple[Array, Array]:
        def ask(low: Array, high: Array, kept: Array, price: Array) -> tuple:
            of_type = [*prices[:t], price, *prices[t + 1 :]]
            scores = [value[:, c] - of_type[kind[c]] * cost[c] for c in range(value.shape[1])]
            chosen = _first_best(scores)[1]  # ties: fewer GPUs
            fits = (_demand(cost, kind, types, chosen) <= total).all()
            low = jnp.where(fits, low, jnp.maximum(price, low))
            return low, jnp.where(fits, price, high), jnp.where(fits, chosen, kept)

        def halve(i: Array, carry: tuple) -> tuple:
            low, high, kept = carry
            return ask(low, high, kept, jnp.where(i == 0, 0.0, jnp.sqrt(low * high)))  # at no price all may fit

        _, high, kept = jax.lax.fori_loop(0, _HALVINGS + 1, halve, (highest / _RANGE, prices[t], kept))
        return high, kept

    for _ in range(_SWEEPS if types > 1 else 1):
        for t in range(types):
            prices[t], kept = lower(t, prices, kept)
    return kept


def _first_best(scores: Sequence[Float64[Array, "J"]]) -> tuple[Float64[Array, "J"], Int[Array, "J"]]:
    """The highest score of every job and which it is, the first of equals. Unlike `argmax` it runs on vectors."""
    best, at = scores[0], jnp.zeros(scores[0].shape, jnp.int32)
    for c, score in enumerate(scores[1:], 1):
        best, at = jnp.maximum(best, score), jnp.where(score > best, c, at)
    return best, at


def _jumps(
    value: Float64[Array, "J C"],
    cost: Int[Array, "C"],
    kind: np.ndarray,
    total: Int[Array, "T"],
    chosen: Int[Array, "J"],
) -> Int[Array, "J"]:
    rows, types, of_choice = jnp.arange(value.shape[0]), total.shape[0], jnp.asarray(kind)

    def best(chosen: Int[Array, "J"]) -> tuple[Array, Array, Array]:
        has, on, worth = cost[chosen], of_choice[chosen], value[rows, chosen]
        free = total - _demand(cost, kind, types, chosen)

        def gain(c: int) -> Float64[Array, "J"]:
            more = cost[c] - jnp.where(on == kind[c], has, 0)
            may = (more > 0) & (more <= free[kind[c]]) & jnp.isfinite(value[:, c])
            return jnp.where(may, (value[:, c] - worth) / jnp.maximum(more, 1), -jnp.inf)

        gains, to = _first_best([gain(c) for c in range(value.shape[1])])
        job = jnp.argmax(gains)
        return gains[job], job, to[job]

    def jump(carry: tuple) -> tuple:
        gained, job, to = best(carry[0])
        return jnp.where((rows == job) & (gained > 0), to, carry[0]), gained > 0

    return jax.lax.while_loop(lambda carry: carry[1], jump, (chosen, jnp.array(True)))[0]
