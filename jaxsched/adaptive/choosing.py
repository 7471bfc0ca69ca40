"""GPUs by marginal gain: every job has a value for each choice that it may have, and a GPU type has so many GPUs.

Begin with nothing. Again and again make the jump, of one job to more GPUs, that gains most for each GPU and still fits.
With one type, while all best jumps fit, that is where jobs stand at the lowest price of a GPU at which demand fits:
each takes the number with the largest value less price times GPUs. The price is found by bisection, the few jumps
beyond it singly. With several types each has a price. They begin where nobody wants anything, and fall one after
another. A lower price of one type takes demand from others and never adds to it, so what fitted still fits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int

_HALVINGS = (7, 10)  # of the range of prices, as a ratio, of one type and of several; jumps find what is left
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
    asked = _Asked(value.T, cost[:, None], jnp.asarray(types == np.arange(total.shape[0])[:, None]), total)
    return _jumps(asked, _at_lowest_prices(asked))


class _Asked(NamedTuple):
    """Choices before jobs: arrays over jobs run on vectors."""

    value: Float64[Array, "C J"]
    cost: Int[Array, "C 1"]
    of_type: Bool[Array, "T C"]
    total: Int[Array, "T"]

    def demand(self, chosen: Int[Array, "J"]) -> Int[Array, "T"]:
        """GPUs of each type that the choices of all jobs take."""
        return jnp.where(self.of_type, self.cost[:, 0], 0)[:, chosen].sum(1)


def _at_lowest_prices(asked: _Asked) -> Int[Array, "J"]:
    """What jobs choose at prices at which demand fits, hardly above the lowest such prices.

    The choice is kept from when it was found to fit: worked out again it could differ, at a price so near to a tie.
    """
    types, jobs = asked.total.shape[0], asked.value.shape[1]
    gain = (asked.value[1:] - asked.value[:1]) * (1.0 / jnp.maximum(asked.cost[1:], 1))  # a product is cheaper
    highest = 2.0 * jnp.maximum(jnp.where(jnp.isfinite(gain), gain, 0.0).max(), 1e-9)

    def ask(t: Array, price: Array, prices: Float64[Array, "T"]) -> tuple[Array, Array]:
        of_choice = jnp.where(asked.of_type, prices.at[t].set(price)[:, None], 0.0).sum(0)
        chosen = _first_best(asked.value - of_choice[:, None] * asked.cost)[1]  # ties: fewer GPUs
        return chosen, (asked.demand(chosen) <= asked.total).all()

    def lower(i: Array, carry: tuple) -> tuple:
        prices, kept = carry
        t = i % types

        def halve(i: Array, carry: tuple) -> tuple:
            low, high, kept = carry
            price = jnp.where(i == 0, 0.0, jnp.sqrt(low * high))  # at no price all may fit
            chosen, fits = ask(t, price, prices)
            low = jnp.where(fits, low, jnp.maximum(price, low))
            return low, jnp.where(fits, price, high), jnp.where(fits, chosen, kept)

        begun = highest / _RANGE, prices[t], kept
        _, high, kept = jax.lax.fori_loop(0, _HALVINGS[types > 1] + 1, halve, begun)
        return prices.at[t].set(high), kept

    begun = jnp.full(types, highest), jnp.zeros(jobs, jnp.int32)
    return jax.lax.fori_loop(0, types * (_SWEEPS if types > 1 else 1), lower, begun)[1]


def _first_best(scores: Float64[Array, "C J"]) -> tuple[Float64[Array, "J"], Int[Array, "J"]]:
    """The highest score of every job and which it is, the first of equals. Unlike `argmax` it runs on vectors."""
    best, choices = scores.max(0), scores.shape[0]
    rows = jnp.arange(choices, dtype=jnp.int32)[:, None]
    return best, jnp.where(scores == best, rows, choices - 1).min(0)


def _jumps(asked: _Asked, chosen: Int[Array, "J"]) -> Int[Array, "J"]:
    jobs = jnp.arange(chosen.shape[0])
    on = jnp.argmax(asked.of_type, axis=0)

    def best(chosen: Int[Array, "J"]) -> tuple[Array, Array, Array]:
        has, worth = asked.cost[chosen, 0], asked.value[chosen, jobs]
        free = (asked.total - asked.demand(chosen))[on]
        more = asked.cost - jnp.where(on[:, None] == on[chosen], has, 0)
        may = (more > 0) & (more <= free[:, None]) & jnp.isfinite(asked.value)
        gains, to = _first_best(jnp.where(may, (asked.value - worth) / jnp.maximum(more, 1), -jnp.inf))
        job = jnp.argmax(gains)
        return gains[job], job, to[job]

    def jump(carry: tuple) -> tuple:
        gained, job, to = best(carry[0])
        return jnp.where((jobs == job) & (gained > 0), to, carry[0]), gained > 0

    return jax.lax.while_loop(lambda carry: carry[1], jump, (chosen, jnp.array(True)))[0]
