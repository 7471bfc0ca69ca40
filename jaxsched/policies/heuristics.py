"""Hand-written policies in JAX: a placement rule, a queue discipline, and how blocked jobs are forwarded.

Two rules look at what placements would do to running jobs, and may wait for better ones; they know the laws.

For each of the first jobs of its order `greedy-wait` tries every candidate placement, charges it with its own slowdown
and with the slowdown it inflicts on all running jobs of the partition, and would rather wait than take a bad one.
It waits by what it can have later (`policies.looking_ahead`), or by a threshold and its patience.

`match` takes, of the jobs that may start and their places, the pair that costs least for the job's length. Where jobs
share GPUs, what a place is worth depends on who runs there, and a job behind the first may suit it better. Fractions of
a GPU do not wait for a better place.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.dynamics.batching import everywhere, lane_by_lane, of_parts, on_cpu
from jaxsched.dynamics.footprint import JobSpec
from jaxsched.env.extensions.pairs import as_seen
from jaxsched.env.observation import window_slots
from jaxsched.env.queues import Discipline, next_job, order_keys
from jaxsched.env.reservations import openings, weigh_openings
from jaxsched.env.state import Action, EnvParams, State, job_spec
from jaxsched.errors import UserError
from jaxsched.policies.base import Act, choose_forward, find_faster, make_views, or_faster, place_or_forward
from jaxsched.policies.filling import quantise
from jaxsched.policies.looking_ahead import look_ahead
from jaxsched.policies.offers import accept, appraise, score
from jaxsched.policies.rules import RULES, Rule, View, by_racks, fastest, for_job
from jaxsched.policies.spec import MATCH, STAY, PolicySpec
from jaxsched.policies.window import Window, make_window, with_step_times
from jaxsched.user_code import call, name_of
from jaxsched.workload.jobs import WHOLE

FIFO = Discipline()


def make_heuristic(rule: str | Rule, queue: Discipline = FIFO, forward: str = STAY) -> Act:
    """The policy of docs/semantics.md, section 7, with this rule (a name or a function): one job at a time.

    The rule `random` also draws the order of the queue.
    """
    place_workers = RULES[rule] if isinstance(rule, str) else _check(rule)

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        p = jnp.arange(state.queue.shape[0])
        job_key, group_key = jax.random.split(key)
        drawn = rule == "random"
        keys = _draw(job_key, state.queue) if drawn else order_keys(queue, state, params)
        can_start, open_to = openings(queue, params, state, keys)
        slot, starts = next_job(queue, keys, state, can_start)
        job = job_spec(state.jobs, state.queue[p, slot])
        view, axes = make_views(state, params)
        place = _within(by_racks, place_workers) if queue.racks else place_workers
        place = _within(fastest, place) if state.gpu_speeds > 1 else place
        place = _within(for_job, place) if state.binds or state.asks else place
        place_all = jax.vmap(place, in_axes=(0, axes, 0))
        keys_of_groups = jax.random.split(group_key, len(p))
        nowhere = jnp.zeros_like(view.free)
        workers = lax.cond(starts.any(), lambda: place_all(keys_of_groups, view, job), lambda: nowhere)
        elsewhere = choose_forward(state, params, keys, can_start, open_to, forward)
        starts, elsewhere = or_faster(queue, forward, state, params, slot, starts, open_to, elsewhere)
        return place_or_forward(state, starts, slot, workers, *elsewhere)

    return act


def _draw(key: PRNGKeyArray, queue: Int32[Array, "P Q"]) -> Float32[Array, "P Q"]:
    """A random number for each queued job, drawn from the key and the job's index, whichever slot it is in."""
    folded = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))(key, queue)
    return (jax.random.key_data(folded)[..., 0] >> 8) * jnp.float32(2.0**-24)


def _check(rule: Rule) -> Rule:
    """The rule, with UserError if it returns anything but whole workers per GPU group."""

    def checked(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
        workers = call(f"rule {name_of(rule)}", rule, key, view, job)
        given = getattr(workers, "dtype", None), getattr(workers, "shape", None)
        if given[0] is None or not jnp.issubdtype(given[0], jnp.integer) or given[1] != view.free.shape:
            found = type(workers).__name__ if given[0] is None else f"{given[0]} of shape {given[1]}"
            raise UserError(
                f"rule {name_of(rule)}: returned {found}, should be the workers of each GPU "
                f"group, int32 of shape {view.free.shape}"
            )
        return jnp.asarray(workers, jnp.int32)

    return checked


def _within(choose: Callable[[View, JobSpec], View], rule: Rule) -> Rule:
    """The rule on what is chosen for the job."""
    return lambda key, view, job: rule(key, choose(view, job), job)


_NO_SCORE = 2**30  # more than any
SHARE = 5 / 32  # of all places of windows side by side at which a job is looked at together: an eighth holds one
Chosen = tuple[Bool[Array, "P"], Int32[Array, "P"], Int32[Array, "P NK"], Int32[Array, "P"]]


def make_waiting(of: PolicySpec) -> Act:
    """`greedy-wait` or `match` of docs/semantics.md, section 7, as a function.

    `greedy-wait` may look ahead. Else either accepts a placement of effective slowdown up to `threshold`, or one that
    loses no more seconds than `patience` times the wait until something can change: the next completion in the
    partition, at least one interval.
    With `lifetimes` placements are also charged, when they are compared, with the seconds by which their servers would
    be wholly free later: wide gangs can start there. With `observe` what counts of models that share a GPU is what has
    been seen of them, see `env.extensions.pairs`.
    """
    matches, queue = of.rule == MATCH, of.queue
    choose = functools.partial(_choose_cheapest if matches else _choose_first, of.threshold, of.patience)

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        params = as_seen(params, state) if of.observe else params
        keys = order_keys(queue, state, params)
        can_start, open_to, passed = weigh_openings(queue, params, state, keys, weighs=of.ahead)
        slots, found = window_slots(queue, keys, state, can_start)
        slots, found = slots[:, :-1], found[:, :-1]
        faster_in, goes = (
            find_faster(queue, of.forward, state, params, slots, open_to) if of.ahead else (open_to, False)
        )
        window = make_window(
            state, params, slots, found, lifetimes=of.lifetimes, every_gpu=matches, ahead=of.ahead, goes=goes
        )
        key_of = jnp.take_along_axis(keys, slots, -1)
        relative = jnp.sqrt(key_of / jnp.maximum(key_of[:, :1], 1e-9)) if matches else jnp.ones_like(key_of)
        place, rank, workers, gpu = lane_by_lane(choose)(params, window, relative)
        slot = jnp.take_along_axis(slots, rank[:, None], -1)[:, 0]
        elsewhere = choose_forward(state, params, keys, can_start, open_to, of.forward)
        place, elsewhere = or_faster(queue, of.forward, state, params, slot, place, faster_in, elsewhere)
        action = place_or_forward(state, place, slot, workers, *elsewhere, gpu if window.every_gpu else None)
        return action.replace(overtaken=passed.by(slot)) if passed else action

    return act


def _choose_cheapest(
    threshold: float, patience: float, params: EnvParams, window: Window, relative: Float32[Array, "P W"]
) -> Chosen:
    """Of all jobs of each window and their places the cheapest; `relative`: what a place costs is worth so much more.

    Whether there is one, its place in the window, its workers, and its GPU as in `Action`.
    """
    nothing = (jnp.int32(_NO_SCORE), jnp.zeros_like(window.free[0]), jnp.int32(-1))

    def best(part: tuple[Window, Array], p: Array, w: Array) -> tuple[Array, Array, Array]:
        of_partition, relative = part
        on, milli = appraise(params, of_partition, p, w), of_partition.job.milli
        choice = jnp.argmin(score(on))
        good = accept(threshold, patience, on)
        if milli is not None:
            good |= milli[w] < WHOLE
        cost = quantise(relative[w] * (on.effective + on.later)[choice])
        cost = jnp.where((good & on.valid)[choice], cost, _NO_SCORE)
        return cost, on.workers[choice], on.gpu[choice]

    parts = with_step_times(params, window), relative
    cost, workers, gpu = of_parts(parts, window.some, best, everywhere(nothing, window.some), share=SHARE)
    rank = jnp.argmin(cost, 1).astype(jnp.int32)
    pick = functools.partial(jnp.take_along_axis, axis=1)
    placed = pick(cost, rank[:, None])[:, 0] < _NO_SCORE
    return placed, rank, pick(workers, rank[:, None, None])[:, 0], pick(gpu, rank[:, None])[:, 0]


def _choose_first(
    threshold: float, patience: float, params: EnvParams, window: Window, relative: Float32[Array, "P W"]
) -> Chosen:
    """The first job of each window that has an acceptable placement, as `_choose_cheapest` says it."""
    parts = with_step_times(params, window)
    nothing = (jnp.array(False), jnp.zeros_like(window.free[0]))
    no_gpu = jnp.full(window.wait_s.shape, -1)

    def best_offer(part: Window, p: Array, w: Array) -> tuple[Array, Array]:
        on = appraise(params, part, p, w)
        choice = jnp.argmin(score(on))
        good = accept(threshold, patience, on)[choice]
        if part.leaving:
            good = ~look_ahead(params, part, p, w, on, whole=False).waits
        return good & on.valid[choice], on.workers[choice]

    if not on_cpu():  # all jobs of the windows at once
        blank = everywhere(nothing, window.some)
        accepted, options = of_parts(parts, window.some, best_offer, blank, share=SHARE)
        taken, rank = accepted.any(1), jnp.argmax(accepted, 1).astype(jnp.int32)
        workers = jnp.take_along_axis(options, rank[:, None, None], 1)[:, 0]
        return taken, jnp.where(taken, rank, 0), jnp.where(taken[:, None], workers, 0), no_gpu

    def consider(carry: tuple[Array, Array, Array], w: Array) -> tuple[tuple[Array, Array, Array], None]:
        taken, rank, workers = carry
        some = window.some[:, w] & ~taken
        accepted, option = of_parts(parts, some, lambda part, p: best_offer(part, p, w), everywhere(nothing, some))
        rank = jnp.where(accepted, w, rank)
        return (taken | accepted, rank, jnp.where(accepted[:, None], option, workers)), None

    partitions = window.wait_s.shape
    none = (jnp.zeros(partitions, bool), jnp.zeros(partitions, jnp.int32), jnp.zeros_like(window.free))
    (taken, rank, workers), _ = lax.scan(consider, none, jnp.arange(window.some.shape[1]))
    return taken, rank, workers, no_gpu
