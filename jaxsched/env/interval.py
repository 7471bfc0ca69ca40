"""What happens between two boundaries: work is done and jobs complete (docs/semantics.md, section 6).

Before that, how busy everything is, and how slow that makes the running jobs (section 5).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, Num

from jaxsched.dynamics.batching import MANY, of_parts, on_cpu, put_where, set_rows
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.occupants import Occupants, own_use
from jaxsched.dynamics.resources import layout_of, link_totals, with_links
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


class Load(Pytree):
    """How busy everything is, and what that does to the running jobs."""

    own: Float32[Array, "P M"]  # as in `State`
    on_links: Float32[Array, "P E"]  # of its `total`
    slowdown: Float32[Array, "P R"]  # 1 in free slots
    stretch: Float32[Array, "P Rs"]  # on shared GPUs, as in `Running`


def load_in(state: State) -> Load:
    """The load that a state knows of."""
    running = state.running
    on_links = state.total[:, running.occupants.layout.link]
    return Load(own=state.own, on_links=on_links, slowdown=running.slowdown, stretch=running.stretch)


def load_of(
    occupants: Occupants | Callable[[Int32[Array, ""]], Occupants],
    params: EnvParams,
    active: Bool[Array, "P R"],
    changed: Bool[Array, "P R"],
    old: Load,
    sharers: Sharers,
    shared_gpus: int,
) -> tuple[Load, Bool[Array, "P"]]:
    """The load when the jobs `active` run, and the partitions in which it may be another than the `old` one.

    Args:
        occupants: of all partitions, or from a partition to its own.
        changed: jobs that came or went since the load was `old`. Partitions in which nothing has changed,
            links that other partitions use included, keep what they had.
        sharers: see `sharing.sharers_of`. shared_gpus: of every group that may be shared.
    """
    interference, layout = params.interference, layout_of(params.cluster)
    here = changed.any(-1)

    def compute(function: Callable[..., Array], needed: Array, parts: tuple[Array, ...], old: Array) -> Array:
        if not isinstance(occupants, Occupants):
            of_partition = occupants
            return put_where(needed, lambda p: function(of_partition(p), *(leaf[p] for leaf in parts)), old)
        return of_parts((occupants, *parts), needed, lambda part, _: function(*part), old, share=CHANGED, least=MANY)

    own = compute(own_use, here, (active,), old.own)
    on_links, stretch = link_totals(params.cluster, own), old.stretch
    if shared_gpus:
        gpus = layout.nk * shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(interference, gpus, jobs, active[p])

        stretch = put_where(here, stretch_in, old.stretch)

    def slowdown_in(jobs: Occupants, own: Array, on_links: Array, active: Array, on_gpu: Array) -> Array:
        time = step_time_of(interference, jobs, with_links(own, on_links))
        return jnp.where(active, slowdown_of(time, jobs, on_gpu if shared_gpus else 1.0), 1.0)

    stale = here | (on_links != old.on_links).any(-1)
    slowdown = compute(slowdown_in, stale, (own, on_links, active, stretch), old.slowdown)
    return Load(own=own, on_links=on_links, slowdown=slowdown, stretch=stretch), stale


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
    rates: RewardTerms  # at which the terms grow while no job restarts
    held: Num[Array, "P V"]  # GPUs that each tenant has
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
    queued, active = (state.queue >= 0).sum(-1).astype(jnp.float32), running.job >= 0
    now = IntervalState(
        active=active,
        remaining_s=running.remaining_s,
        remaining_low_s=running.remaining_low_s,
        restart_s=running.restart_s,
        load=load_in(state),
        elapsed_s=jnp.float32(elapsed_s),
        finish_offset_s=jnp.zeros_like(running.remaining_s),
        attained_s=state.attained_s,
        attained_low_s=state.attained_low_s,
        rates=reward_rates(active, running.slowdown, running.duration_s, queued, params.reward.interference),
        held=jnp.where(active[..., None], held, 0).sum(1),
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


def with_load(
    params: EnvParams, now: IntervalState, constants: IntervalConstants, load: Load, stale: Bool[Array, "P"]
) -> IntervalState:
    """The moment under another `load`, which differs in the `stale` partitions."""

    def in_partition(p: Array) -> tuple[RewardTerms, Array]:
        active, queued = now.active[p], constants.queued[p]
        rates = reward_rates(active, load.slowdown[p], constants.duration_s[p], queued, params.reward.interference)
        return rates, jnp.where(active[:, None], constants.of_tenant[p], 0).sum(0)

    rates, held = put_where(stale, in_partition, (now.rates, now.held))
    return now.replace(load=load, rates=rates, held=held)


def least(values: Float32[Array, "*shape"]) -> Float32[Array, ""]:
    """The least of all. A CPU compares halves side by side, but one value after the other in a reduction."""
    while on_cpu() and values.size % 2 == 0:
        values = jnp.minimum(*jnp.split(values.reshape(-1), 2))
    return values.min()


def to_next_completion(
    params: EnvParams, now: IntervalState, constants: IntervalConstants
) -> tuple[IntervalState, Bool[Array, "P R"]]:
    """The state at the next completion, or at the end of the interval, and which jobs have finished.

    Load, rates, and what tenants have, are those of before.
    """
    slow, length = now.load.slowdown, constants.length_s
    left = add_restart((now.remaining_s + now.remaining_low_s) * slow, now.restart_s)
    step = jnp.minimum(least(jnp.where(now.active, left, jnp.inf)), length - now.elapsed_s)
    elapsed = jnp.where(step >= length - now.elapsed_s, length, now.elapsed_s + step)
    restart_s, worked, pace = pass_restart(now.restart_s, step, slow)
    rates = now.rates
    if restart_s.size:
        rates = reward_rates(now.active, pace, constants.duration_s, constants.queued, params.reward.interference)
    high, low = kahan_add(now.remaining_s, now.remaining_low_s, -worked / slow)
    finished = now.active & (high + low <= WORK_TOLERANCE * constants.duration_s)
    attained, attained_low = kahan_add(now.attained_s, now.attained_low_s, step * now.held.sum(0))
    then = now.replace(
        active=now.active & ~finished,
        remaining_s=high,
        remaining_low_s=low,
        restart_s=restart_s,
        elapsed_s=elapsed,
        attained_s=attained,
        attained_low_s=attained_low,
        terms=accumulate(now.terms, rates, step, params.interval_s),
        pairs=on_completion(now.pairs, constants.sharers, now.active, step),
    )
    return then, finished


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
        total=with_links(end.load.own, end.load.on_links),
        records=records.replace(status=status, finish=finish, finish_offset_s=offset_s),
        pairs=end.pairs,
    )
