"""The environments and programs that are timed and counted: many play on, and start anew when they have finished."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int32, PRNGKeyArray

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.batching import on_cpu
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.pool import keep_jobs, restart, restart_playing, with_jobs
from jaxsched.env.rollout import one_round, one_turn, play_rounds
from jaxsched.env.stages import Playing
from jaxsched.env.state import FINISHED, EnvConfig, EnvParams, State, params_of_world
from jaxsched.options import World
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.sampler import SampledJobs, sample_table, sampler_for_load

LOAD, INTERVAL_S = 0.9, 300.0
LEAST_JOBS, JOBS_PER_GPU = 512, 4  # of an environment's job list
GPUS_PER_SLOT = 2  # of running jobs: a gang has 4 GPUs on average
MEAN_DURATION_S, LONGEST_DURATION_S = 3600.0, 28800.0


def world_for(policy: str) -> World:
    """The world in which a policy is timed: there it may do all that it does."""
    spec = parse(policy).spec
    return World(preemption=spec is not None and spec.queue.preempt)


def environment_of(
    cluster_name: str, schedulers: int | None = None, policy: str = "pack"
) -> tuple[EnvConfig, Cluster, EnvParams]:
    """The environment in which a policy is timed on a cluster."""
    cluster = get_cluster(cluster_name, schedulers)
    largest = int(np.asarray(cluster.group_gpus).sum((1, 2)).max())
    slots = max(min(64, largest), largest // GPUS_PER_SLOT)
    group = int(np.asarray(cluster.group_gpus).max())
    config = EnvConfig(
        running_slots=slots, queue_slots=64, rounds=16, largest_worker=1, largest_group=group, early_stop=True
    )
    world = dataclasses.replace(world_for(policy), interval_s=INTERVAL_S)
    return config, cluster, params_of_world(world, cluster)


def start_states(cluster: Cluster, config: EnvConfig, params: EnvParams, count: int) -> State:
    """Empty clusters, leading axis `count`, each with its own jobs."""
    start = jax.jit(jax.vmap(lambda table: initial_state(config, params, table)))
    return start(job_tables(cluster, config, count))


def job_tables(cluster: Cluster, config: EnvConfig, count: int) -> JobTable:
    """Synthetic jobs, leading axis `count`."""
    kind = SampledJobs(mean_duration_s=MEAN_DURATION_S, duration_cap_s=LONGEST_DURATION_S)
    jobs = sampler_for_load(LOAD, total_gpus(cluster), INTERVAL_S, kind)
    length = max(LEAST_JOBS, JOBS_PER_GPU * total_gpus(cluster))
    sample = jax.jit(jax.vmap(lambda key: sample_table(key, jobs, length, cluster.shape[0], config.tenants)))
    return sample(jax.random.split(jax.random.key(1), count))


TURNS_BETWEEN_STARTS = 64  # of environments in step with each other; one that has finished waits for so long at most
CACHED = 64  # environments that a CPU plays side by side: so many stay in its cache


def program_of_rounds(
    config: EnvConfig, policy: Policy, rounds: int
) -> Callable[[State, EnvParams, State, PRNGKeyArray], tuple[State, Int32[Array, ""], Int32[Array, ""]]]:
    """`(states, params, pool, key) -> states, decisions, jobs` over so many rounds; leading axes of environments.

    Environments that have finished start anew from `pool`. Jobs are those that finished. On a CPU a multiple of
    `CACHED` environments plays all the rounds in as many parts, one after the other.
    """

    def step(state: State, params: EnvParams, pool: State, key: PRNGKeyArray) -> tuple[State, Int32[Array, ""]]:
        turns = (~state.waited).sum(dtype=jnp.int32)
        return keep_jobs(one_round(config, params, policy, with_jobs(state, pool), key), state), turns

    def together(
        states: State, params: EnvParams, pool: State, key: PRNGKeyArray
    ) -> tuple[State, Int32[Array, ""], Int32[Array, ""]]:
        count = states.clock.shape[0]
        before = _finished(states).sum()

        def play(states: State, key: PRNGKeyArray) -> tuple[State, tuple[Int32[Array, ""], Int32[Array, ""]]]:
            act, again = jax.random.split(key)
            if count == 1:  # as a lone environment is run: without vmap
                state, turns = step(jax.tree.map(lambda leaf: leaf[0], states), params, pool, act)
                states = jax.tree.map(lambda leaf: leaf[None], state)
            else:
                play_all = jax.vmap(step, in_axes=(0, None, None, 0))
                states, turns = play_all(states, params, pool, jax.random.split(act, count))
            done = _are_finished(states, pool)
            jobs = jax.lax.cond(done.any(), lambda: jnp.where(done, _finished(states), 0).sum(), lambda: jnp.int32(0))
            return restart(again, states, done, pool), (turns.sum(), jobs)

        states, _, (turns, jobs) = play_rounds(play, states, jax.random.split(key, rounds))
        return states, turns.sum(), jobs.sum() + _finished(states).sum() - before

    def run(
        states: State, params: EnvParams, pool: State, key: PRNGKeyArray
    ) -> tuple[State, Int32[Array, ""], Int32[Array, ""]]:
        parts, left = divmod(states.clock.shape[0], CACHED)
        if left or parts < 2 or not on_cpu():
            return together(states, params, pool, key)
        states = jax.tree.map(lambda leaf: leaf.reshape(parts, CACHED, *leaf.shape[1:]), states)
        keys = jax.random.split(key, parts)
        states, turns, jobs = jax.lax.map(lambda part: together(part[0], params, pool, part[1]), (states, keys))
        rows = parts * CACHED
        states = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), states)  # some leaves have size 0
        return states, turns.sum(), jobs.sum()

    return run


def program_of_turns(
    config: EnvConfig, policy: Policy, turns: int
) -> Callable[[Playing, EnvParams, State, PRNGKeyArray], tuple[Playing, Int32[Array, ""], Int32[Array, ""]]]:
    """As `program_of_rounds`, in turns of environments that are in step with each other: for accelerators.

    Environments start anew after every `TURNS_BETWEEN_STARTS` turns, of which `turns` is a multiple.
    """

    def play(playing: Playing, key: PRNGKeyArray, params: EnvParams, pool: State) -> tuple[Playing, Int32[Array, ""]]:
        made = jnp.where(playing.decides, (~playing.state.waited).sum(dtype=jnp.int32), 0)
        return keep_jobs(one_turn(config, params, policy, with_jobs(playing, pool), key)[0], playing), made

    def run(
        all_playing: Playing, params: EnvParams, pool: State, key: PRNGKeyArray
    ) -> tuple[Playing, Int32[Array, ""], Int32[Array, ""]]:
        count = all_playing.intervals.shape[0]

        def some(playing: Playing, key: PRNGKeyArray) -> tuple[Playing, tuple[Int32[Array, ""], Int32[Array, ""]]]:
            act, again = jax.random.split(key)
            before = _finished(playing.state).sum()

            def one(playing: Playing, key: PRNGKeyArray) -> tuple[Playing, Int32[Array, ""]]:
                return jax.vmap(play, in_axes=(0, 0, None, None))(playing, jax.random.split(key, count), params, pool)

            playing, _, made = play_rounds(one, playing, jax.random.split(act, TURNS_BETWEEN_STARTS))
            jobs = _finished(playing.state).sum() - before
            return restart_playing(again, playing, _are_finished(playing.state, pool), pool), (made.sum(), jobs)

        keys = jax.random.split(key, turns // TURNS_BETWEEN_STARTS)
        all_playing, _, (made, jobs) = play_rounds(some, all_playing, keys)
        return all_playing, made.sum(), jobs.sum()

    return run


def _are_finished(states: State, pool: State) -> Bool[Array, "envs"]:
    return jax.vmap(lambda state: is_finished(with_jobs(state, pool)))(states)


def _finished(states: State) -> Int32[Array, "envs"]:
    """Jobs that have finished in each environment."""
    return (states.records.status == FINISHED).sum(-1, dtype=jnp.int32)
