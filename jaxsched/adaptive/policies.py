"""Who decides how many GPUs every job has: a function of what is seen, and how the GPUs are placed.

A function returns GPUs, or an `Allocation`; docs/howto/adaptive.md has one of three lines.

Elastic sharing by who ends first (AFS; Hwang et al., NSDI 2021) gives GPUs one by one, each to the job for which it
does most. Of two jobs, `a` ends before `b` as they are. A GPU more takes `a` from a pace of `p_a` to `p_a'`, and `b`
from `p_b` to `p_b'`. Given to `a` it goes on to `b` when `a` is done. Then both end sooner in sum than if `b` had it
from the start where `(p_a' - p_a) / p_a > (p_b' - p_b) / p_b'`: write down both sums.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.choosing import by_gain, over, pollux, sia, sia_greedy
from jaxsched.adaptive.tables import widths
from jaxsched.adaptive.view import Allocation, AllocationPolicy, View, whole_nodes

SECOND_QUEUE_GPU_S = 16 * 3600.0  # Tiresias in Pollux' simulator: GPU time after which a job is in the second queue


def tiresias(view: View) -> Allocation:
    """Gu et al., NSDI 2019, with two queues, as in Pollux' simulator: all whose tuned GPUs fit run, in their order."""
    fell = view.active & (view.memory == jnp.inf) & (view.service >= SECOND_QUEUE_GPU_S)
    since = jnp.where(fell, view.now_s, view.memory)
    sequence = jnp.lexsort((jnp.where(since < jnp.inf, since, -1.0), ~view.active))
    gpus = _in_turn(jnp.where(view.active, view.tuned_gpus, 0), sequence, view.total.sum())
    return Allocation(gpus=gpus, order=jnp.argsort(sequence).astype(jnp.int32), memory=since)


def _in_turn(wanted: Int[Array, "J"], sequence: Int[Array, "J"], total: Int[Array, ""]) -> Int[Array, "J"]:
    """Job after job of a sequence has what it wants if so many GPUs are left, or none."""

    def one(carry: tuple) -> tuple:
        i, gpus, left = carry
        job = sequence[i]
        given = jnp.where(wanted[job] <= left, wanted[job], 0)
        return i + 1, gpus.at[job].set(given), left - given

    size = wanted.shape[0]
    last = jnp.where(wanted[sequence] > 0, jnp.arange(size), -1).max()
    begun = jnp.zeros((), jnp.int32), jnp.zeros(size, jnp.int32), total
    return jax.lax.while_loop(lambda carry: carry[0] <= last, one, begun)[1]


def optimus(view: View) -> Allocation:
    """Peng et al., EuroSys 2018, as in Pollux' simulator: GPUs go one by one to whom they save most time."""
    rows = jnp.arange(view.gpus.shape[0])
    gpus = _fewest(view)
    left_s = view.iterations[:, None] * view.update_s[:, 0]
    # by one more than [:, i]
    saved_s = jnp.where(jnp.isfinite(left_s[:, 1:]), left_s[:, :-1] - left_s[:, 1:], -jnp.inf)

    def gains(gpus: Int[Array, "J"]) -> Float64[Array, "J"]:
        at = jnp.minimum(gpus, saved_s.shape[1] - 1)
        return jnp.where((gpus > 0) & (gpus < view.most_gpus), saved_s[rows, at], -jnp.inf)

    def going(carry: tuple) -> Array:
        return (carry[1] > 0) & (carry[2].max() > 0)

    def one(carry: tuple) -> tuple:
        gpus, free, gain = carry
        gpus = gpus.at[jnp.argmax(gain)].add(1)
        return gpus, free - 1, gains(gpus)

    gpus, _, _ = jax.lax.while_loop(going, one, (gpus, view.total.sum() - gpus.sum(), gains(gpus)))
    return Allocation(gpus=gpus, order=jnp.argsort(jnp.argsort(gpus)).astype(jnp.int32))


def _fewest(view: View) -> Int[Array, "J"]:
    """The fewest GPUs that a job may have for one after another, in the order of submission, as far as they go."""
    rows = jnp.arange(view.gpus.shape[0], dtype=jnp.int32)
    return _in_turn(jnp.where(view.active, view.least_gpus, 0), rows, view.total.sum())


def equal(view: View) -> Allocation:
    """The same number of GPUs for all, as far as they can use them; what is left singly in the order of submission."""
    total, fewest = view.total.sum(), _fewest(view)
    most = jnp.where(fewest > 0, view.most_gpus, 0)
    levels = jnp.arange(view.of_plans.shape[-1])
    level = (jnp.clip(levels, fewest[:, None], most[:, None]).sum(0) <= total).sum() - 1
    gpus = jnp.clip(level, fewest, most)
    more = (most > gpus) & (gpus == level)
    return Allocation(gpus=(gpus + (more & (jnp.cumsum(more) <= total - gpus.sum()))).astype(jnp.int32))


def afs(view: View) -> Array:
    """Hwang et al., NSDI 2021 (AFS-L): GPUs one by one, by who ends first and whom they help; knows the time left."""
    left = view.work - view.progress
    return one_by_one(view.active, view.goodput[:, 0], left, view.least_gpus, view.most_gpus, view.total[0])


def marginal(view: View) -> Allocation:
    """The largest sum of speedups over the fewest GPUs, by marginal gain: ours. Knows the goodput of this epoch.

    A change counts as for `pollux`; no job is held to twice what it has had.
    """
    choices = jnp.asarray([0, *widths(view.widths[0], view.goodput.shape[-1] - 1)], jnp.int32)
    goodput = view.goodput[:, 0]
    speedup = over(goodput[:, choices], goodput[jnp.arange(goodput.shape[0]), view.least_gpus])
    spent_s = view.restarts * view.restart_s
    kept = jnp.maximum(view.age_s - spent_s, 0.0) / (view.age_s + view.restart_s)
    changes = (view.gpus > 0)[:, None] & (choices != view.gpus[:, None])
    may = (choices >= view.least_gpus[:, None]) & (choices <= view.most_gpus[:, None]) & view.active[:, None]
    value = jnp.where(may, speedup * jnp.where(changes, kept[:, None], 1.0), -jnp.inf)
    return Allocation(gpus=choices[by_gain(jnp.where(choices == 0, 0.0, value), choices, view.total[:1])])


POLICIES = {
    policy.name: policy
    for policy in (
        AllocationPolicy("tiresias", tiresias, own_batch=False, tuned_gpus=True),
        AllocationPolicy("optimus", optimus, own_batch=False),
        AllocationPolicy("equal", equal),
        AllocationPolicy("afs", afs),
        AllocationPolicy("marginal", marginal, whole_nodes),
        AllocationPolicy("pollux", pollux, whole_nodes, from_goodput=True),
        AllocationPolicy("sia", sia, whole_nodes),
        AllocationPolicy("sia-greedy", sia_greedy, whole_nodes),
    )
}


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
