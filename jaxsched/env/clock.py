"""How time passes: how far the clock may go at once, and completions on the way (docs/semantics.md, section 6)."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32

from jaxsched.dynamics.batching import on_cpu, only_where, with_shared
from jaxsched.dynamics.occupants import Occupants, in_groups
from jaxsched.dynamics.resources import with_links
from jaxsched.env.extensions.failures import intervals_to_change
from jaxsched.env.extensions.pairs import as_is
from jaxsched.env.extensions.preemption import add_restart
from jaxsched.env.extensions.sharing import sharers_of
from jaxsched.env.interval import (
    IntervalConstants,
    IntervalState,
    after_interval,
    interval_of,
    load_in,
    load_of,
    to_next_completion,
    with_load,
)
from jaxsched.env.queues import feasible, movable
from jaxsched.env.reward import RewardTerms, accumulate
from jaxsched.env.state import ALWAYS, POSSIBLE, Asked, EnvConfig, EnvParams, State
from jaxsched.workload.jobs import NEVER

LONGEST_SKIP = 2**10  # intervals advanced at once: seconds are float32, 0.004 s apart at 17 hours


def intervals_ahead(config: EnvConfig, params: EnvParams, state: State, asked: Asked = ALWAYS) -> Int32[Array, ""]:
    """How many intervals the clock may advance at once: 1, or up to the next arrival while no job is queued.

    Where jobs are queued, but no scheduler did anything at this boundary, none of the next ones differs until a job
    arrives or ends. So it depends on the boundaries at which the policy must be `asked`. One whose choice does not
    depend on time need only be asked after that (`CHANGE`). One that would rather wait than take what there is must be
    asked also while something is possible (`POSSIBLE`): some queued job could start, or be forwarded to where it could.
    No boundary is passed over at which a server goes out or comes back.
    """
    if not config.skip_idle:
        return jnp.int32(1)
    last = state.jobs.arrival.shape[-1] - 1
    following = jnp.where(state.next_job <= last, state.jobs.arrival[jnp.minimum(state.next_job, last)], NEVER)
    arrival = jnp.minimum(jnp.minimum(following, params.horizon) - state.clock, LONGEST_SKIP)
    queued = (state.queue >= 0).any()
    ahead = jnp.where(queued, 1, arrival)
    if asked != ALWAYS:
        same = queued & (state.round == 1) & state.waited.all()
        if asked == POSSIBLE or state.gpu_speeds > 1:  # to wait for faster GPUs is a matter of time
            same = lax.cond(same, lambda: ~_something_possible(params, state), lambda: same)
        ahead = jnp.where(same, jnp.minimum(arrival, intervals_to_completion(params, state)), ahead)
    return jnp.maximum(intervals_to_change(params, state, ahead), 1).astype(jnp.int32)


def _something_possible(params: EnvParams, state: State) -> Bool[Array, ""]:
    """Whether some queued job could start, or be forwarded to where it could."""
    can_start = feasible(state, params.cluster)
    return can_start.any() | movable(state, params, can_start).any()


def intervals_to_completion(params: EnvParams, state: State) -> Int32[Array, ""]:
    """Whole intervals before the next completion, rather one too few than one too many, at most LONGEST_SKIP."""
    running = state.running
    left = add_restart((running.remaining_s + running.remaining_low_s) * running.slowdown, running.restart_s)
    first = jnp.where(running.job >= 0, left, jnp.inf).min()
    return jnp.floor(jnp.minimum(first / params.interval_s * (1.0 - 1e-6), LONGEST_SKIP)).astype(jnp.int32)


def advance(
    params: EnvParams, state: State, changed: Bool[Array, "P R"], intervals: Int32[Array, ""]
) -> tuple[State, RewardTerms]:
    """Run the cluster for so many `intervals` (0: no time passes), completion by completion.

    Args: `changed`, jobs that have come or gone since totals and slowdowns were computed.
    Returns the state at the new boundary, with totals and slowdowns current, and what flowed on the way.
    """
    start, constants = interval_of(params, state, changed, intervals.astype(jnp.float32) * params.interval_s)
    run = with_shared(functools.partial(_run, state.shared.shape[-1]))
    end, freed = run(state.running.occupants, as_is(params, state), start, constants)
    return after_interval(params, state, end, freed, intervals), end.terms


def update_load(params: EnvParams, state: State, changed: Bool[Array, "P R"]) -> State:
    """The state with totals and slowdowns as of now, after the jobs in the slots `changed` have gone."""
    running, compute = state.running, functools.partial(load_of, shared_gpus=state.shared.shape[-1])
    given = as_is(params, state), running.job >= 0, changed, load_in(state), sharers_of(params, state)
    load, _ = (with_shared(compute) if on_cpu() else compute)(running.occupants, *given)
    running = running.replace(slowdown=load.slowdown, stretch=load.stretch)
    return state.replace(own=load.own, total=with_links(load.own, load.on_links), running=running)


def refresh(params: EnvParams, state: State) -> State:
    """The state with its load computed again, whatever it was."""
    return advance(params, state, jnp.ones_like(state.running.job, bool), jnp.int32(0))[0]


def _run(
    shared_gpus: int,
    of_partition: Callable[[Int32[Array, ""]], Occupants],
    params: EnvParams,
    start: IntervalState,
    constants: IntervalConstants,
) -> tuple[IntervalState, Int32[Array, "P N K"]]:
    """The state after `constants.length_s`, from one whose load does not know of the jobs just placed.

    Also the GPUs that became free. `of_partition`: from a partition to its occupants.
    """
    length = constants.length_s
    load_when = functools.partial(load_of, of_partition, params, sharers=constants.sharers, shared_gpus=shared_gpus)

    # The loop carries only what changes between completions: under vmap every carried leaf is copied in every turn.
    def unfinished(now: IntervalState) -> Array:
        return (now.elapsed_s < length) & now.active.any()

    def until_next_completion(now: IntervalState) -> IntervalState:
        then, finished = to_next_completion(params, now, constants)
        then = then.replace(finish_offset_s=jnp.where(finished, then.elapsed_s, then.finish_offset_s))
        return with_load(params, then, constants, *load_when(then.active, finished, now.load))

    start = with_load(params, start, constants, *load_when(start.active, constants.changed, start.load))
    end = lax.while_loop(unfinished, until_next_completion, start)
    rest = length - end.elapsed_s  # nothing runs any more, but jobs may be queued
    finished = start.active & ~end.active
    freed_in = lambda p: in_groups(of_partition(p), jnp.where(finished[p], constants.gpus_per_worker[p], 0))
    freed = only_where(finished.any(-1), freed_in, lambda p: jnp.zeros(params.cluster.shape[1:], jnp.int32))
    return end.replace(terms=accumulate(end.terms, end.rates, rest, params.interval_s)), freed
