"""The environment: `reset` and `step` in the gymnax convention, pure and jit-able.

`step` is one decision round of all schedulers. After the last round of a boundary it also advances the clock to the
next boundary and admits the jobs that arrived. Environments that are vmapped with a fixed number of rounds stay in step
with each other, so the clock's loop runs for no one in the other rounds.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, PRNGKeyArray, Shaped

from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.resources import layout_of
from jaxsched.env.actions import admit, apply_actions
from jaxsched.env.clock import advance, intervals_ahead, reloaded
from jaxsched.env.failures import change_servers, no_faults
from jaxsched.env.history import no_history
from jaxsched.env.knowledge import HISTORY
from jaxsched.env.observation import Observation, observe
from jaxsched.env.queues import Discipline
from jaxsched.env.reward import reward
from jaxsched.env.starts import no_starts
from jaxsched.env.state import (
    ALWAYS,
    Action,
    Asked,
    EnvConfig,
    EnvParams,
    Pairs,
    Records,
    Running,
    Service,
    State,
    assign_homes,
    with_fractions,
)
from jaxsched.workload.jobs import NEVER, JobTable


def initial_state(config: EnvConfig, params: EnvParams, jobs: JobTable, pairs: Pairs | None = None) -> State:
    """An empty cluster at boundary 0 that will be fed `jobs` (homes are assigned here), first arrivals admitted.

    With `pairs`, models that share a GPU have factors that the law of sharing does not know.
    """
    cluster = params.cluster
    (p, n, k), r = cluster.group_gpus.shape, config.running_slots
    layout = layout_of(cluster)
    count = jobs.arrival.shape[0]

    def floats(*shape: int) -> Array:
        return jnp.zeros(shape, jnp.float32)

    def ints(*shape: int, dtype=jnp.int32, fill: int = 0) -> Array:
        return jnp.full(shape, fill, dtype)

    running = Running(
        job=ints(p, r, fill=-1),
        workers=ints(p, r, n, k, dtype=jnp.int8),
        ps=ints(p, r, n, k, dtype=jnp.int16),
        gpus_per_worker=ints(p, r),
        duration_s=floats(p, r),
        remaining_s=floats(p, r),
        remaining_low_s=floats(p, r),
        slowdown=floats(p, r) + 1.0,
        footprint=Footprint(
            layout=layout,
            use=floats(p, layout.size, r),
            base=floats(p, layout.size - layout.nk, r),
            compute=floats(p, layout.nk, r),
            ideal=floats(p, r),
            least=floats(p, r) + 1.0,
            sens_cpu=floats(p, r),
            sens_pcie=floats(p, r),
            model=ints(p, r),
        ),
        gpu=ints(p, r, fill=-1) if config.shared_gpus else None,
        stretch=floats(p, r) + 1.0 if config.shared_gpus else None,
        restart_s=None if params.preemption is None else floats(p, r),
    )
    records = Records(
        status=ints(count, dtype=jnp.int8),
        partition=ints(count, dtype=jnp.int16, fill=-1),
        start=ints(count, fill=-1),
        finish=ints(count, fill=-1),
        finish_offset_s=floats(count),
        forwards=ints(count, dtype=jnp.int8),
        workers=ints(count, n * k, dtype=jnp.int8) if config.record_placements else None,
        ps=ints(count, n * k, dtype=jnp.int16) if config.record_placements else None,
        gpu=ints(count, fill=-1) if config.record_placements and config.shared_gpus else None,
    )
    service = Service(
        left_s=jobs.duration_s,
        left_low_s=floats(count),
        since=ints(count),
        ran=ints(count),
        stops=ints(count),
        restarting_s=floats(count),
        lost_s=floats(count),
    )
    state = State(
        jobs=assign_homes(cluster, with_fractions(config, jobs)),
        clock=ints(),
        round=ints(),
        waited=jnp.zeros(p, bool),
        next_job=ints(),
        free=jnp.array(cluster.group_gpus),  # a copy: states are donated, clusters are not
        queue=ints(p, config.queue_slots, fill=-1),
        running=running,
        attained_s=floats(config.tenants),
        attained_low_s=floats(config.tenants),
        own=floats(p, layout.size),
        total=floats(p, layout.size),
        records=records,
        backlogged=ints(),
        peak_queue=ints(),
        illegal=ints(),
        shared=ints(p, n, k, config.shared_gpus, dtype=jnp.int16) if config.shared_gpus else None,
        service=None if params.preemption is None else service,
        faults=no_faults(params.failures, count),
        history=no_history(config, params) if config.knows == HISTORY else None,
        starts=no_starts(config.starts, n * k, shared=bool(config.shared_gpus)),
        pairs=pairs,
        largest_worker=config.largest_worker,
        gpu_speeds=config.gpu_speeds,
    )
    if params.failures is not None:
        state, _ = change_servers(params, state)
    return admit(state)


def transition(
    config: EnvConfig, params: EnvParams, state: State, action: Action, asked: Asked = ALWAYS
) -> tuple[State, Float32[Array, "P"]]:
    """One decision round and, after the last one of the boundary, the clock. Returns state and reward.

    With `config.skip_idle` the clock passes over boundaries at which nobody need be `asked`, see `intervals_ahead`.
    """
    state, changed = apply_actions(params, state, action)
    over = state.round >= config.rounds
    if config.early_stop:
        over |= state.waited.all()
    intervals = jnp.where(over, intervals_ahead(config, params, state, asked), 0)
    state, terms = advance(params, state, changed, intervals)
    if params.failures is not None:
        state, gone = change_servers(params, state)
        state = reloaded(params, state, gone)
    state = state.replace(round=jnp.where(over, 0, state.round), waited=state.waited & ~over)
    return admit(state, over), reward(params.reward, terms)


def is_finished(state: State) -> Bool[Array, ""]:
    """Whether every job has arrived and none is queued or running."""
    last = state.jobs.arrival.shape[-1] - 1
    arrived = (state.next_job > last) | (state.jobs.arrival[jnp.minimum(state.next_job, last)] == NEVER)
    return arrived & ~(state.queue >= 0).any() & ~(state.running.job >= 0).any()


def restart(key: PRNGKeyArray, states: State, done: Bool[Array, "B"], pool: State) -> State:
    """Environments that are `done` start anew from random members of `pool`; both have a leading axis.

    Only those are touched, and of them not the placements in free running slots, which nothing reads.
    """
    size = pool.clock.shape[0]
    members = jax.random.randint(key, done.shape, 0, size)

    def body(carry: tuple[State, Array]) -> tuple[State, Array]:
        states, left = carry
        one = jnp.argmax(left)
        put = jax.tree.map(lambda old, new: old.at[one].set(new[members[one]]), states, small_parts(pool))
        return put, left.at[one].set(False)

    fresh, _ = lax.while_loop(lambda carry: carry[1].any(), body, (small_parts(states), done))
    return with_large_parts(fresh, states.running)


def small_parts(state: State) -> State:
    """The state without the placements in its running slots."""
    return state.replace(running=state.running.replace(footprint=None, workers=None, ps=None))


def with_large_parts(state: State, placed: Running) -> State:
    """`small_parts` of a state again with placements: those of `placed`."""
    running = state.running.replace(footprint=placed.footprint, workers=placed.workers, ps=placed.ps)
    return state.replace(running=running)


SHOWN = Discipline(order="area", backfill=True, window=4)


@dataclasses.dataclass(frozen=True)
class ClusterEnv:
    """The gymnax-style face: static configuration here, everything else in `params` and `state`."""

    config: EnvConfig
    queue: Discipline = SHOWN  # what observations show

    def reset(self, key: PRNGKeyArray, params: EnvParams, pool: State) -> tuple[Observation, State]:
        """Start from a random member of `pool`, states with a leading axis (see `initial_state`).

        AssertionError if the leaves of `pool` have no such axis in common.
        """
        chex.assert_equal_shape_prefix(jax.tree.leaves(pool), 1)
        size = pool.clock.shape[0]
        index = jax.random.randint(key, (), 0, size)
        state = jax.tree.map(lambda leaf: leaf[index], pool)
        return observe(self.queue, params, state), state

    def step(
        self, key: PRNGKeyArray, state: State, action: Action, params: EnvParams
    ) -> tuple[Observation, State, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], dict[str, Shaped[Array, ""]]]:
        """One decision round: `(obs, state, reward, terminated, truncated, info)`. `key` goes unused."""
        del key
        state, gain = transition(self.config, params, state, action)
        info = {"clock": state.clock, "illegal": state.illegal, "backlogged": state.backlogged}
        return (
            observe(self.queue, params, state),
            state,
            gain,
            is_finished(state),
            state.clock >= params.horizon,
            info,
        )


__all__ = ["ClusterEnv", "initial_state", "is_finished", "restart", "transition"]
