"""The environment in the gymnax manner, and the state that it starts from; all pure and jit-able.

A step is one decision round of all schedulers. After the last round of a boundary it also advances the clock to the
next boundary and admits the jobs that arrived. Environments that are vmapped with a fixed number of rounds stay in step
with each other, so the clock's loop runs for no one in the other rounds. With `in_turns` a step is a turn
(`env.stages`).
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Float32, PRNGKeyArray

from jaxsched.border import checked
from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.occupants import no_occupants
from jaxsched.dynamics.resources import layout_of
from jaxsched.env.actions import admit
from jaxsched.env.extensions.failures import change_servers, no_faults
from jaxsched.env.extensions.gpu_sets import usable_groups, with_choice
from jaxsched.env.extensions.history import no_history
from jaxsched.env.extensions.pairs import no_pairs
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.extensions.preemption import no_service
from jaxsched.env.extensions.sharing import with_fractions
from jaxsched.env.extensions.starts import no_starts
from jaxsched.env.observation import Observation, observe
from jaxsched.env.pool import copy_jobs, draw_start, is_foreign, keep_jobs, start_if, with_jobs
from jaxsched.env.queues import Discipline
from jaxsched.env.spaces import Box, Discrete, Named
from jaxsched.env.stages import ROUNDS, TURNS, Playing, at_boundary, step, to_decide
from jaxsched.env.state import (
    ALWAYS,
    FINISHED,
    FORWARD,
    STOP,
    Action,
    EnvConfig,
    EnvParams,
    Records,
    Running,
    State,
    assign_homes,
    narrowed,
)
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree, smallest_type
from jaxsched.workload.jobs import NEVER, JobTable

Info = dict[str, Any]  # arrays, and an observation


def initial_state(config: EnvConfig, params: EnvParams, jobs: JobTable, pairs: Pairs | None = None) -> State:
    """An empty cluster at boundary 0 that will be fed `jobs` (homes are assigned here), first arrivals admitted.

    With `pairs`, models that share a GPU have factors that the law of sharing does not know.
    """
    (p, n, k), size = params.cluster.group_gpus.shape, layout_of(params.cluster).size
    _check_groups(config, params.cluster)
    usable = usable_groups(params.cluster, config.gpu_sets)
    jobs = with_choice(config, with_fractions(config.shared_gpus, jobs))
    jobs = assign_homes(params.cluster, jobs, usable, config.largest_group)
    state = State(
        jobs=narrowed(config, params.cluster, params.profiles.compute_s.shape[-1], jobs),
        clock=jnp.int32(0),
        round=jnp.int32(0),
        waited=jnp.zeros(p, bool),
        next_job=jnp.int32(0),
        free=jnp.array(params.cluster.group_gpus),  # a copy: states are donated, clusters are not
        queue=_ints(p, config.queue_slots, fill=-1),
        owed_s=_floats(p, config.queue_slots),
        running=_none_running(config, params),
        attained_s=_floats(config.tenants),
        attained_low_s=_floats(config.tenants),
        own=_floats(p, size),
        total=_floats(p, size),
        records=_no_records(config, jobs.arrival.shape[0], params.cluster),
        backlogged=jnp.int32(0),
        peak_queue=jnp.int32(0),
        illegal=jnp.int32(0),
        shared=_ints(p, n, k, config.shared_gpus, dtype=jnp.int16),
        service=no_service(params, jobs),
        faults=no_faults(params, jobs.arrival.shape[0]),
        history=no_history(config, params),
        starts=no_starts(config, n * k),
        pairs=pairs or no_pairs(),
        usable=usable,
        largest_worker=config.largest_worker,
        gpu_speeds=config.gpu_speeds,
    )
    return admit(change_servers(params, state)[0])


def _check_groups(config: EnvConfig, cluster: Cluster) -> None:
    """UserError if a group has more GPUs than the state has places, unless the cluster is traced."""
    gpus = cluster.group_gpus
    if not isinstance(gpus, Tracer) and (most := int(np.asarray(gpus).max())) > config.largest_group:
        raise UserError(f"largest_group: {config.largest_group} should be at least {most}, the GPUs of a group")


def _floats(*shape: int) -> Array:
    return jnp.zeros(shape, jnp.float32)


def _ints(*shape: int, dtype=jnp.int32, fill: int = 0) -> Array:
    return jnp.full(shape, fill, dtype)


def _none_running(config: EnvConfig, params: EnvParams) -> Running:
    p, r, shares = params.cluster.shape[0], config.running_slots, bool(config.shared_gpus)
    return Running(
        job=_ints(p, r, fill=-1),
        gpus_per_worker=_ints(p, r),
        gpus=_ints(p, r),
        duration_s=_floats(p, r),
        remaining_s=_floats(p, r),
        remaining_low_s=_floats(p, r),
        slowdown=_floats(p, r) + 1.0,
        occupants=no_occupants(layout_of(params.cluster), p, r, r if shares else config.largest_group),
        gpu=_ints(p, r if shares else 0, fill=-1),
        stretch=_floats(p, r if shares else 0) + 1.0,
        restart_s=_floats(p, r if params.stops else 0),
    )


def _no_records(config: EnvConfig, jobs: int, cluster: Cluster) -> Records:
    partitions, groups = cluster.shape[0], math.prod(cluster.shape[1:])
    placed = jobs if config.record_placements else 0
    return Records(
        status=_ints(jobs, dtype=jnp.int8),
        partition=_ints(jobs, dtype=smallest_type(partitions), fill=-1),
        start=_ints(jobs, fill=-1),
        finish=_ints(jobs, fill=-1),
        finish_offset_s=_floats(jobs),
        forwards=_ints(jobs, dtype=jnp.int8),
        workers=_ints(placed, groups, dtype=jnp.int8),
        ps=_ints(placed, groups, dtype=jnp.int16),
        gpu=_ints(placed if config.shared_gpus else 0, fill=-1),
    )


def is_finished(state: State) -> Bool[Array, ""]:
    """Whether every job has arrived and none is queued or running."""
    last = state.jobs.arrival.shape[-1] - 1
    arrived = (state.next_job > last) | (state.jobs.arrival[jnp.minimum(state.next_job, last)] == NEVER)
    return arrived & ~(state.queue >= 0).any() & ~(state.running.job >= 0).any()


def jct_s(params: EnvParams, state: State) -> Float32[Array, "J"]:
    """Completion times in seconds, from submission on; arbitrary where a job has not finished."""
    records, jobs = state.records, state.jobs
    return (records.finish - jobs.arrival[:]) * params.interval_s + records.finish_offset_s + jobs.lead_s[:]


SHOWN = Discipline(order="area", backfill=True, window=4)


class Episodes(Pytree):
    """The parameters of `ClusterEnv`: every leaf vmaps."""

    env: EnvParams
    starts: State  # of episodes, on a leading axis: see `env.pool`


@checked
@dataclasses.dataclass(frozen=True)
class ClusterEnv:
    """The environment for learners: static configuration here, everything else in `params` and `state`.

    When an episode ends the next one begins in the same step. `state` is a `State`, or in turns `Playing`. Of its job
    list it has the number among those of `params.starts`; what reads the list takes the state of `with_jobs`.
    """

    config: EnvConfig
    queue: Discipline = SHOWN  # what observations show
    in_turns: bool = False
    final_obs: bool = False  # `info` has the observation of the step's own end, too: two observations a step

    @checked
    def reset(self, key: PRNGKeyArray, params: Episodes) -> tuple[Observation, State | Playing]:
        """The start of a random episode.

        Args:
            key: draws one of `params.starts`.
            params: the environment's numbers and start states.

        Returns:
            What the schedulers see, and the state to step from.
        """
        start = draw_start(key, params.starts)
        played = at_boundary(start) if self.in_turns else start
        return self.observe(played, params), played

    @checked
    def step(
        self, key: PRNGKeyArray, state: State | Playing, action: Action, params: Episodes
    ) -> tuple[Observation, State | Playing, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        """One decision round of all schedulers, or one turn; the next episode begins where one has ended.

        Args:
            key: draws the next episode's start.
            state: of `reset` or of the step before.
            action: what each scheduler does; what is not legal counts as waiting.
            params: as of `reset`.

        Returns:
            `(obs, state, reward, terminated, truncated, info)`. `obs` and `state` are of the next episode if one has
            ended. `reward` is float32[P], in intervals, and comes when an interval ends. `terminated`, bool: all jobs
            have finished; `truncated`, bool: at the horizon. `info`, of what was played: `boundary`; `finished` jobs
            so far in the episode and their mean completion time `jct_mean_s`, in seconds; `illegal` actions, and
            boundaries at which a full queue held arrivals back (`backlogged`), so far; with `final_obs` the
            observation of the step's own end.
        """
        after, reward, terminated, truncated, info = self.step_env(state, action, params)
        if self.final_obs:
            info["final_obs"] = self.observe(after, params)
        after = start_if(key, after, terminated | truncated, params.starts)
        return self.observe(after, params), after, reward, terminated, truncated, info

    @checked
    def step_env(
        self, state: State | Playing, action: Action, params: Episodes
    ) -> tuple[State | Playing, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        """`step` that neither observes nor begins the next episode.

        A state that began with other `params.starts` is truncated: its job list is not here. Its reward is 0, its
        `jct_mean_s` NaN, and what else it shows means nothing.

        Args:
            state: as of `step`.
            action: likewise.
            params: likewise.

        Returns:
            `(state, reward, terminated, truncated, info)`, as of `step`.
        """
        before, pace = with_jobs(state, params.starts), TURNS if isinstance(state, Playing) else ROUNDS
        playing = before if isinstance(before, Playing) else at_boundary(before)
        after, reward = step(self.config, params.env, playing, action, ALWAYS, pace)
        reached = after.state
        terminated = is_finished(reached) & (after.intervals == 0)
        foreign = is_foreign(state, params.starts)
        terminated, reward = terminated & ~foreign, jnp.where(foreign, 0.0, reward)
        truncated = foreign | (~terminated & (reached.clock >= params.env.horizon))
        info = _info(params.env, reached, playing.state.clock)
        info["jct_mean_s"] = jnp.where(foreign, jnp.nan, info["jct_mean_s"])
        after = keep_jobs(after if isinstance(state, Playing) else reached, state)
        return after, reward, terminated, truncated, info

    @checked
    def action_space(self, params: Episodes) -> Named:
        """Of the fields of an `Action` that every one has; most of what it samples is not legal, and so is waiting."""
        cluster, most = params.env.cluster, lambda leaf: int(np.max(leaf)) + 1
        p = cluster.shape[0]
        kinds = STOP if params.env.schedulers_stop else FORWARD
        fields = {
            "kind": Discrete(kinds + 1, (p,)),
            "slot": Discrete(self.config.queue_slots, (p,)),
            "workers": Discrete(most(cluster.group_gpus), cluster.shape),
            "ps": Discrete(most(params.starts.jobs.ps), cluster.shape),
            "target": Discrete(p, (p,)),
        }
        return Named(fields)

    @checked
    def observation_space(self, params: Episodes) -> Named:
        """Of the fields of an `Observation`: masks are 0 or 1, indices not negative, features without limits."""
        shown, _ = jax.eval_shape(lambda: self.reset(jax.random.key(0), params))
        fields = {field.name: getattr(shown, field.name) for field in dataclasses.fields(Observation)}
        most = {"server_rack": shown.rack.shape[1], "job_slot": self.config.queue_slots}

        def space_of(name: str, leaf: Array) -> Discrete | Box:
            if leaf.dtype == bool:
                return Discrete(2, leaf.shape, jnp.bool_)
            if name in most:
                return Discrete(most[name], leaf.shape)
            return Box(-float("inf"), float("inf"), leaf.shape)

        return Named({name: space_of(name, leaf) for name, leaf in fields.items()})

    @checked
    def observe(self, state: State | Playing, params: Episodes) -> Observation:
        """What schedulers see of a state; nothing is worked out for those that do not decide.

        Args:
            state: as of `step`.
            params: likewise.

        Returns:
            An `Observation`, whose leaves have a leading axis P.
        """
        return observe(self.queue, params.env, to_decide(with_jobs(state, params.starts)))

    @checked
    def with_jobs(self, state: State | Playing, params: Episodes) -> State:
        """The state as policies take it: with its job list, and schedulers that do not decide have waited.

        Args:
            state: as of `step`, of one environment or of many.
            params: likewise.

        Returns:
            A `State`.
        """
        return copy_jobs(to_decide(state), params.starts)


def _info(params: EnvParams, state: State, before: Array) -> Info:
    """Args: `before`: the boundary of the step."""
    records = state.records
    done = records.status == FINISHED
    count = done.sum()
    mean_s = jnp.where(done, jct_s(params, state), 0.0).sum() / jnp.maximum(count, 1)
    ends = records.finish + jnp.ceil(records.finish_offset_s / params.interval_s).astype(jnp.int32)
    last = jnp.maximum(jnp.where(done, ends, 0).max(), before)  # when nothing is left the clock runs on by itself
    return {
        "boundary": jnp.where(is_finished(state), last, state.clock),
        "finished": count,
        "jct_mean_s": mean_s,
        "illegal": state.illegal,
        "backlogged": state.backlogged,
    }
