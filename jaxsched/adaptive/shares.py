"""GPUs one by one, each to the job for which it does most: elastic sharing by who ends first (AFS).

Of two jobs, `a` ends before `b` as they are. A GPU more takes `a` from a pace of `p_a` to `p_a'`, and `b` from `p_b` to
`p_b'`. Given to `a` it goes on to `b` when `a` is done. Then both end sooner in sum than if `b` had it from the start
where `(p_a' - p_a) / p_a > (p_b' - p_b) / p_b'`: write down both sums. Source: Hwang et al., NSDI 2021.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int


def one_by_one(
    active: Bool[Array, "J"],
    pace: Float64[Array, "J R1"],
    work: Float64[Array, "J"],
    least: Int[Array, "J"],
    most: Int[Array, "J"],
    total: Int[Array, ""],
) -> Int[Array, "J"]:
    """The number of GPUs of every job.

    Args:
        active: who may have GPUs.
        pace: units of progress per second, by number of GPUs from 0 on. R1 is one more than the most GPUs of any job.
        work: units of progress that are left.
        least: the fewest GPUs that a job may have, if it has any.
        most: the most GPUs that a job may have.
        total: GPUs that there are.
    """
    rows, size = jnp.arange(active.shape[0]), pace.shape[1]
    begins = jnp.minimum(least, size - 1)

    def going(carry: tuple) -> Array:
        return carry[1]

    def give(carry: tuple) -> tuple:
        gpus, _ = carry
        after = jnp.minimum(jnp.where(gpus == 0, begins, gpus + 1), size - 1)
        now, then = pace[rows, gpus], pace[rows, after]
        may = active & (after <= most) & (after > gpus) & (after - gpus <= total - gpus.sum()) & (then > now)
        # Without GPUs a job ends last, and of several such the one that takes longest.
        end_s = jnp.where(gpus == 0, jnp.inf, work / now)
        job = _best(may, now, then, end_s, work / then)
        return jnp.where((rows == job) & may.any(), after, gpus), may.any()

    return jax.lax.while_loop(going, give, (jnp.zeros(active.shape, jnp.int32), jnp.array(True)))[0]


def _best(
    may: Bool[Array, "J"],
    now: Float64[Array, "J"],
    then: Float64[Array, "J"],
    end_s: Float64[Array, "J"],
    first_s: Float64[Array, "J"],
) -> Int[Array, ""]:
    """Who stands after all comparisons: one job after another against the best one so far."""
    candidates = jnp.argsort(~may)
    gains = then - now

    def against(i: Array, best: Array) -> Array:
        job = candidates[i]
        none = (end_s[best] == jnp.inf) & (end_s[job] == jnp.inf)
        sooner = end_s[job] < end_s[best]
        a, b = jnp.where(sooner, job, best), jnp.where(sooner, best, job)
        to_a = gains[a] / now[a] > gains[b] / then[b]
        winner = jnp.where(to_a, a, b)
        return jnp.where(none, jnp.where(first_s[job] < first_s[best], job, best), winner)

    return jax.lax.fori_loop(1, may.sum(), against, candidates[0])
