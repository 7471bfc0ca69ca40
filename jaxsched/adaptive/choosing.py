"""GPUs by marginal gain: every job has a value for each number of GPUs that it may have, and a type has so many.

Begin with nothing. Again and again make the jump, of one job to more GPUs, that gains most for each GPU and still fits.
While all best jumps fit, that is where jobs stand at the lowest price of a GPU at which demand fits: each takes the
number with the largest value less price times GPUs. The price is found by bisection, the few jumps beyond it singly.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64, Int

_HALVINGS = 40


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
    nothing = jnp.zeros(value.shape[0], jnp.int32)

    def ask(low: Array, high: Array, kept: Array, price: Array) -> tuple:
        chosen = jnp.argmax(value - price * cost, axis=-1).astype(jnp.int32)  # ties: fewer GPUs
        fits = cost[chosen].sum() <= total
        return jnp.where(fits, low, price), jnp.where(fits, price, high), jnp.where(fits, chosen, kept)

    def halve(_: int, carry: tuple) -> tuple:
        low, high, kept = carry
        return ask(low, high, kept, 0.5 * (low + high))

    begun = ask(jnp.zeros(()), highest, nothing, jnp.zeros(()))  # at no price all may fit
    return jax.lax.fori_loop(0, _HALVINGS, halve, begun)[2]


def _jumps(
    value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, ""], chosen: Int[Array, "J"]
) -> Int[Array, "J"]:
    rows = jnp.arange(value.shape[0])

    def best(chosen: Int[Array, "J"]) -> tuple[Array, Array, Array]:
        free = total - cost[chosen].sum()
        more = cost[None] - cost[chosen][:, None]
        gain = (value - value[rows, chosen][:, None]) / jnp.maximum(more, 1)
        gain = jnp.where((more > 0) & (more <= free) & jnp.isfinite(value), gain, -jnp.inf)
        to = jnp.argmax(gain, axis=-1)
        job = jnp.argmax(gain[rows, to])
        return gain[job, to[job]], job, to[job].astype(jnp.int32)

    def going(carry: tuple) -> Array:
        return carry[1][0] > 0

    def jump(carry: tuple) -> tuple:
        chosen, (_, job, to) = carry
        chosen = chosen.at[job].set(to)
        return chosen, best(chosen)

    return jax.lax.while_loop(going, jump, (chosen, best(chosen)))[0]
