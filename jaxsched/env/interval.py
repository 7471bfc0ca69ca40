"""What happens between two boundaries: work is done and jobs complete (docs/semantics.md, section 6).

Before that, how busy everything is, and how slow that makes the running jobs (section 5).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, Num

from jaxsched.dynamics.batching import of_parts, only_where, set_rows
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.occupants import Occupants, own_use
from jaxsched.dynamics.resources import layout_of, totals
from jaxsched.dynamics.speed import slowdown_of, step_time_of
from jaxsched.env.extensions import history, sharing
from jaxsched.env.extensions.pairs import on_completion
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.extensions.preemption import add_restart, pass_restart
from jaxsched.env.extensions.sharing import gpus_of, sharers_of
from jaxsched.env.reward import RewardTerms, accumulate, reward_rates, zero_terms
from jaxsched.env.state import FINISHED, EnvParams, State
from jaxsched.pytree import Pytree
from jaxsched.semantics import WORK_TOLERANCE
from jaxsched.workload.jobs import look_up

CHANGED = 3 / 8  # of all partitions side by side that are looked at together; in a turn a third has changed
MANY = 8192  # with fewer partitions side by side all are computed


class Load(Pytree):
    """How busy everything is, and what that does to the running jobs."""

    own: Float32[Array, "P M"]  # as in `State`
    total: Float32[Array, "P M"]  # likewise
    slowdown: Float32[Array, "P R"]  # 1 in free slots
    stretch: Float32[Array, "P Rs"]  # on shared GPUs, as in `Running`


def load_of(
    params: EnvParams,
    occupants: Occupants | Callable[[Int32[Array, ""]], Occupants],
    active: Bool[Array, "P R"],
    changed: Bool[Array, "P R"],
    old: Load,
    sharers: Sharers,
    shared_gpus: int,
) -> Load:
    """The load when the jobs `active` run.

    Args:
        occupants: of all partitions, or from a partition to its own.
        changed: jobs that came or went since the load was `old`. Partitions in which nothing has changed,
            links that other partitions use included, keep what they had.
        sharers: see `sharing.sharers_of`. shared_gpus: of every group that may be shared.
    """
    interference = params.interference
    here = changed.any(-1)
    side_by_side = functools.partial(of_parts, share=CHANGED, least=MANY)
    if isinstance(occupants, Occupants):
        own = side_by_side((occupants, active), here, lambda part, _: own_use(*part), old.own)
    else:
        of_partition = occupants
        own = only_where(here, lambda p: own_use(of_partition(p), active[p]), lambda p: old.own[p])
    total = totals(params.cluster, own)

    stretch = old.stretch
    if shared_gpus:
        gpus = layout_of(params.cluster).nk * shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(interference, gpus, jobs, active[p])

        stretch = only_where(here, stretch_in, lambda p: old.stretch[p])

    def slowdown_in(part: tuple[Occupants, Array, Array, Array], _) -> Array:
        jobs, total, active, on_gpu = part
        time = step_time_of(interference, jobs, total)
        return jnp.where(active, slowdown_of(time, jobs, on_gpu if shared_gpus else 1.0), 1.0)

    stale = here | (total != old.total).any(-1)
    if isinstance(occupants, Occupants):
        rate = side_by_side((occupants, total, active, stretch), stale, slowdown_in, old.slowdown)
    else:
        part_of = lambda p: (of_partition(p), total[p], active[p], stretch[p])
        rate = only_where(stale, lambda p: slowdown_in(part_of(p), p), lambda p: old.slowdown[p])
    return Load(own=own, total=total, slowdown=rate, stretch=stretch)


ON_INTERVAL = (sharing.on_interval, history.on_interval)  # of the extensions: `(params, state, finished) -> state`


class IntervalState(Pytree):
    """What changes between two boundaries; as in `State`."""

    active: Bool[Array, "P R"]
    remaining_s: Float32[Array, "P R"]
    remaining_low_s: Float32[Array, "P R"]
    restart_s: Float32[Array, "P Rp"]
    load: Load
    elapsed_s: Float32[Array, ""]  # since the boundary
    finish_offset_s: Float32[Array, "P R"]  # of the jobs that finished
    attained_s: Float32[Array, "V"]
    attained_low_s: Float32[Array, "V"]
    terms: RewardTerms
    pairs: Pairs


class IntervalConstants(Pytree):
    """What does not change between two boundaries."""

    duration_s: Float32[Array, "P R"]
    gpus_per_worker: Int32[Array, "P R"]  # whole ones
    of_tenant: Num[Array, "P R V"]  # int32, or float32 with shared GPUs: GPUs that the job holds, in its tenant's place
    sharers: Sharers  # see `sharing.sharers_of`
    queued: Float32[Array, "P"]
    changed: Bool[Array, "P R"]  # jobs that have come or gone, of which the load does not know yet
    length_s: Float32[Array, ""]  # how long to run


def kahan_add(
    high: Float32[Array, "*shape"], low: Float32[Array, "*shape"], change: Float32[Array, "*shape"]
) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """`high + low + change` as a new (high, low) pair; the true sum is `high + low` (Kahan, 1965)."""
    change = change + low
    total = high + change
    return total, change - (total - high)


def interval_of(
    params: EnvParams,
    state: State,
    changed: Bool[Array, "P R"],
    length_s: Float32[Array, ""],
    elapsed_s: Float32[Array, ""] | float = 0.0,
    terms: RewardTerms | None = None,
) -> tuple[IntervalState, IntervalConstants]:
    """The jobs of a state in an interval of `length_s`, of which `elapsed_s` and the reward's `terms` are past."""
    running, tenants = state.running, jnp.arange(state.attained_s.shape[0])
    held = (gpus_of(state.jobs, jnp.maximum(running.job, 0)) if state.shares else running.gpus)[..., None]
    if tenants.size > 1:  # rows of the job list are dear to look up on an accelerator
        held = jnp.where(look_up(state.jobs.tenant, jnp.maximum(running.job, 0))[..., None] == tenants, held, 0)
    queued = (state.queue >= 0).sum(-1).astype(jnp.float32)
    now = IntervalState(
        active=running.job >= 0,
        remaining_s=running.remaining_s,
        remaining_low_s=running.remaining_low_s,
        restart_s=running.restart_s,
        load=Load(own=state.own, total=state.total, slowdown=running.slowdown, stretch=running.stretch),
        elapsed_s=jnp.float32(elapsed_s),
        finish_offset_s=jnp.zeros_like(running.remaining_s),
        attained_s=state.attained_s,
        attained_low_s=state.attained_low_s,
        terms=zero_terms(queued) if terms is None else terms,
        pairs=state.pairs,
    )
    constants = IntervalConstants(
        duration_s=running.duration_s,
        gpus_per_worker=running.whole_gpus,
        sharers=sharers_of(params, state),
        of_tenant=held,
        queued=queued,
        changed=changed,
        length_s=length_s,
    )
    return now, constants


def to_next_completion(params: EnvParams, now: IntervalState, constants: IntervalConstants) -> IntervalState:
    """The state at the next completion, or at the end of the interval; its load is the one before."""
    slow, length = now.load.slowdown, constants.length_s
    left = add_restart((now.remaining_s + now.remaining_low_s) * slow, now.restart_s)
    step = jnp.minimum(jnp.where(now.active, left, jnp.inf).min(), length - now.elapsed_s)
    elapsed = jnp.where(step >= length - now.elapsed_s, length, now.elapsed_s + step)
    restart_s, worked, pace = pass_restart(now.restart_s, step, slow)
    rate = reward_rates(now.active, pace, constants.duration_s, constants.queued, params.reward.interference)
    high, low = kahan_add(now.remaining_s, now.remaining_low_s, -worked / slow)
    finished = now.active & (high + low <= WORK_TOLERANCE * constants.duration_s)
    holding = jnp.where(now.active[..., None], constants.of_tenant, 0).sum((0, 1))
    attained, attained_low = kahan_add(now.attained_s, now.attained_low_s, step * holding)
    return IntervalState(
        active=now.active & ~finished,
        remaining_s=high,
        remaining_low_s=low,
        restart_s=restart_s,
        load=now.load,
        elapsed_s=elapsed,
        finish_offset_s=jnp.where(finished, elapsed, now.finish_offset_s),
        attained_s=attained,
        attained_low_s=attained_low,
        terms=accumulate(now.terms, rate, step, params.interval_s),
        pairs=on_completion(now.pairs, constants.sharers, now.active, step),
    )


def after_interval(
    params: EnvParams, state: State, end: IntervalState, freed: Int32[Array, "P N K"], intervals: Int32[Array, ""]
) -> State:
    """The `state` once its jobs are as in `end`, and so many whole intervals have passed.

    Args: `freed`: whole GPUs of the jobs that have finished.
    """
    running = state.running
    finished = (running.job >= 0) & ~end.active
    for on_interval in ON_INTERVAL:
        state = on_interval(params, state, finished)
    records, everywhere = state.records, jnp.ones(finished.size, jnp.int32)
    status, finish, offset_s = set_rows(
        (records.status, records.finish, records.finish_offset_s),
        jnp.maximum(running.job, 0).reshape(-1),
        finished.reshape(-1),
        ((FINISHED * everywhere).astype(jnp.int8), state.clock * everywhere, end.finish_offset_s.reshape(-1)),
    )
    return state.replace(
        clock=state.clock + intervals,
        free=state.free + freed,
        running=running.replace(
            job=jnp.where(finished, -1, running.job),
            remaining_s=end.remaining_s,
            remaining_low_s=end.remaining_low_s,
            restart_s=end.restart_s,
            slowdown=end.load.slowdown,
            stretch=end.load.stretch,
        ),
        attained_s=end.attained_s,
        attained_low_s=end.attained_low_s,
        own=end.load.own,
        total=end.load.total,
        records=records.replace(status=status, finish=finish, finish_offset_s=offset_s),
        pairs=end.pairs,
    )
