"""Whether a job had better wait for a place that it can have later (docs/semantics.md, section 7, "Looking ahead").

A place that is free later is appraised as one that is free now, in a partition as it will be then.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.occupants import in_groups, in_servers, own_use
from jaxsched.env.state import EnvParams
from jaxsched.policies.filling import quantise
from jaxsched.policies.offers import Offers, accept, appraise, score
from jaxsched.policies.rules import find_fast
from jaxsched.policies.window import Leaving, Window, make_view
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import WHOLE

_NOW = -1.0  # nothing has been looked at


class Hope(Pytree):
    """What a job can hope for if it waits, in slowdowns as `Offers.effective` has them."""

    waits: Bool[Array, ""]  # it had better
    reach: Float32[Array, ""]  # in an empty cluster; as now where nothing that is worth the wait could be there
    least: Float32[Array, ""]  # after the best wait, which counts; as now if none is worth it
    most: Float32[Array, ""]  # what no wait is better than, which may be more than now; infinite: nothing ends
    wait_s: Float32[Array, ""]  # the best wait, at least one interval; 0 if none is worth it


def look_ahead(
    params: EnvParams, window: Window, p: Int32[Array, ""], w: Int32[Array, ""], on: Offers, whole: bool = True
) -> Hope:
    """Whether a job would be done sooner on a place that it can have once some running jobs have ended.

    Args:
        params: As the policy sees them.
        window: of one partition, with `leaving`.
        p: the partition.
        w: the job's place in the window.
        on: what it can have now.
        whole: if False, only `Hope.waits` is right, and no more is looked at than that takes.
    """
    leaving, choice = window.leaving, jnp.argmin(score(on))
    assert leaving
    eff = on.effective[choice]
    ideal, fast = 1.0, jnp.array(True)
    if window.gpu_speeds > 1:  # slower GPUs than those that the job would get now stay hidden
        job = jax.tree.map(lambda leaf: leaf[w], window.job)
        ideal, fast = 0.0, find_fast(make_view(params, window, p, job), job)
        window = window.replace(tiered=True)
    estimate_s, base = jnp.maximum(window.duration_s[w], 1e-9), on.least[choice]

    def next_end(after_s: Array) -> Array:
        return jnp.where(leaving.whole & (leaving.end_s > after_s), leaving.end_s, jnp.inf).min()

    def waits(end_s: Array) -> Array:
        return (leaving.waited_s[w] + jnp.maximum(end_s, params.interval_s)) / estimate_s

    def may_pay(carry: tuple[Array, ...]) -> Array:
        after_s, reach, least, *_ = carry
        open_yet = whole | (quantise(least) >= quantise(eff))
        return open_yet & (quantise(waits(next_end(after_s)) + reach) < quantise(least))

    def look(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        after_s, reach, least, most, wait_s = carry
        first, end_s = after_s == _NOW, next_end(after_s)
        on = appraise(params, _window_then(params, window, leaving, p, fast, jnp.where(first, jnp.inf, end_s)), p, w)
        then = eff_of_best(on, base)
        done = jnp.where(first, jnp.inf, waits(end_s) + then)
        wait_s = jnp.where(done < least, jnp.maximum(end_s, params.interval_s), wait_s)
        return (
            jnp.where(first, 0.0, end_s),
            jnp.where(first, then, reach),
            jnp.minimum(least, done),
            jnp.minimum(most, done),
            wait_s,
        )

    # The first turn finds what is within reach. It is not needed where even an ideal place would come too late.
    start = (jnp.float32(_NOW), jnp.float32(ideal), eff, jnp.float32(jnp.inf), jnp.float32(0.0))
    after_s, reach, least, most, wait_s = lax.while_loop(may_pay, look, start)
    better = _unless_fraction(quantise(least) < quantise(eff), window, w, on, choice)
    return Hope(
        waits=better & ~leaving.goes[w],
        reach=jnp.where(after_s == _NOW, eff, reach),
        least=least,
        most=jnp.minimum(most, waits(next_end(after_s)) + reach),
        wait_s=wait_s,
    )


def _unless_fraction(
    better: Bool[Array, ""], window: Window, w: Int32[Array, ""], on: Offers, choice: Int32[Array, ""]
) -> Bool[Array, ""]:
    """Whether a job had better wait; a fraction goes by the next completion instead."""
    if not window.sharing:
        return better
    milli: Any = window.job.milli  # an array where GPUs are shared
    return jnp.where(milli[w] >= WHOLE, better, ~accept(1.0, 1.0, on)[choice])


def eff_of_best(on: Offers, base: Float32[Array, ""]) -> Float32[Array, ""]:
    """Effective slowdown of the candidate that a job takes, as if on GPUs of such a least one; infinite without any."""
    effective = on.effective + on.own * (base / on.least - 1.0)
    return jnp.where(on.valid.any(), effective[jnp.argmin(score(on))], jnp.inf)


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
    free = window.free + in_groups(window.occupants, jnp.where(gone, leaving.gpus, 0)).reshape(-1)
    total = leaving.others + own_use(window.occupants, (leaving.end_s < jnp.inf) & ~gone)
    left = jnp.where(leaving.end_s > end_s, 1.0 - end_s / jnp.maximum(leaving.end_s, 1e-9), 0.0)
    spare = window.spare
    if spare.shape[-1]:
        asked = in_servers(window.occupants, jnp.where(gone[:, None], leaving.asks, 0))
        spare = jnp.where(empty, params.cluster.reservable[p], spare + asked)
    return window.replace(
        free=jnp.where(fast, jnp.where(empty, params.cluster.group_gpus[p].reshape(-1), free), 0),
        total=jnp.where(empty, 0.0, total),
        left_s=jnp.where(empty, 0.0, window.left_s * left),
        exit_s=jnp.maximum(window.exit_s - end_s, 0.0),
        spare=spare,
        now=None,
    )
