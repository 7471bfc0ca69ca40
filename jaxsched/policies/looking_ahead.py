"""Whether a job had better wait for a place that it can have later (docs/semantics.md, section 7, "Looking ahead").

A place that is free later is appraised as one that is free now, in a partition as it will be then.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.resources import own_use
from jaxsched.env.state import EnvParams
from jaxsched.policies.filling import quantise
from jaxsched.policies.offers import Leaving, Offers, Window, appraise, make_view, score
from jaxsched.policies.rules import find_fast, per_server

_NOW = -1.0  # nothing has been looked at


def had_better_wait(
    params: EnvParams, window: Window, p: Int32[Array, ""], w: Int32[Array, ""], eff: Float32[Array, ""]
) -> Bool[Array, ""]:
    """Whether a job would be done sooner on a place that it can have once some running jobs have ended.

    Args:
        params: As the policy sees them.
        window: of one partition, with `leaving`.
        p: the partition.
        w: the job's place in the window.
        eff: effective slowdown of the place that it can have now.
    """
    leaving = window.leaving
    assert leaving
    ideal, fast = 1.0, jnp.array(True)
    if window.gpu_speeds > 1:  # slower GPUs than those that the job would get now stay hidden
        job = jax.tree.map(lambda leaf: leaf[w], window.job)
        ideal, fast = 0.0, find_fast(make_view(params, window, p, job), job)
        window = window.replace(gpu_speeds=1)
    estimate_s = jnp.maximum(window.duration_s[w], 1e-9)

    def next_end(after_s: Array) -> Array:
        return jnp.where(leaving.whole & (leaving.end_s > after_s), leaving.end_s, jnp.inf).min()

    def waits(end_s: Array) -> Array:
        return (leaving.waited_s[w] + jnp.maximum(end_s, params.interval_s)) / estimate_s

    def may_pay(carry: tuple[Array, ...]) -> Array:
        after_s, reach, least = carry
        return quantise(waits(next_end(after_s)) + reach) < quantise(least)

    def look(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        after_s, reach, least = carry
        first, end_s = after_s == _NOW, next_end(after_s)
        on = appraise(params, _window_then(params, window, leaving, p, fast, jnp.where(first, jnp.inf, end_s)), p, w)
        then = eff_of_best(on)
        done = jnp.where(first, least, jnp.minimum(least, waits(end_s) + then))
        return jnp.where(first, 0.0, end_s), jnp.where(first, then, reach), done

    # The first turn finds what is within reach. It is not needed where even an ideal place would come too late.
    _, _, least = lax.while_loop(may_pay, look, (jnp.float32(_NOW), jnp.float32(ideal), eff))
    return quantise(least) < quantise(eff)


def eff_of_best(on: Offers) -> Float32[Array, ""]:
    """Effective slowdown of the candidate that a job takes; infinite if it has none."""
    return jnp.where(on.valid.any(), on.effective[jnp.argmin(score(on))], jnp.inf)


def _window_then(
    params: EnvParams,
    window: Window,
    leaving: Leaving,
    p: Int32[Array, ""],
    fast: Bool[Array, "*NK"],
    end_s: Float32[Array, ""],
) -> Window:
    """The window once the jobs with whole GPUs that end by then are gone; infinite: in an empty cluster.

    Only the `fast` groups have free GPUs.
    """
    empty, gone = jnp.isinf(end_s), leaving.whole & (leaving.end_s <= end_s)
    freed = jnp.where(gone[:, None], leaving.workers.astype(jnp.int32), 0)
    free = window.free + (freed * leaving.gpus[:, None]).sum(0)
    total = leaving.others + own_use(window.footprint.use, (leaving.end_s < jnp.inf) & ~gone)
    left = jnp.where(leaving.end_s > end_s, 1.0 - end_s / jnp.maximum(leaving.end_s, 1e-9), 0.0)
    spare = window.spare
    if spare.shape[-1]:
        by_server = jax.vmap(lambda of: per_server(window.footprint.layout, of))(freed)
        spare = jnp.where(empty, params.cluster.reservable[p], spare + by_server.T @ leaving.asks)
    return window.replace(
        free=jnp.where(fast, jnp.where(empty, params.cluster.group_gpus[p].reshape(-1), free), 0),
        total=jnp.where(empty, 0.0, total),
        left_s=jnp.where(empty, 0.0, window.left_s * left),
        exit_s=jnp.maximum(window.exit_s - end_s, 0.0),
        spare=spare,
        now=None,
    )
