"""`make`: an environment to learn in, from names."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxsched.adapters.menu_env import MenuEnv, MenuParams
from jaxsched.env.environment import SHOWN, initial_state
from jaxsched.env.queues import Discipline
from jaxsched.env.state import RewardWeights, reward_weights
from jaxsched.errors import UserError
from jaxsched.simulation.scenario import check_options, load_scenario
from jaxsched.simulation.settings import Settings, compact_tenants, env_config, env_params
from jaxsched.workload.jobs import pad_table, to_table

QUEUE_SLOTS = 64  # of a scheduler; further arrivals wait outside
ROUNDS = 8  # decision rounds at a boundary, at most


def make(
    cluster: str = "leaf-spine-8",
    workload: str = "philly-like",
    *,
    episodes: int = 8,
    num_jobs: int = 100,
    interval_s: float = 60.0,
    horizon_s: float | None = None,
    interference: str = "default",
    models: str | None = None,
    max_forwards: int = 2,
    reward: Mapping[str, Any] | None = None,
    queue: Discipline = SHOWN,
    in_turns: bool = False,
    may_wait: bool = True,
    **options: Any,
) -> MenuEnv:
    """An environment to learn in, ready to `reset`.

    Args:
        cluster, workload: names or files, as `jaxsched evaluate` takes them.
        episodes: so many job lists are drawn beforehand, and every episode plays one of them.
        num_jobs: of an episode.
        interval_s: seconds between decisions.
        horizon_s: an episode is truncated at this simulated time; None: it ends when all jobs have finished.
        models: a file of models beside the catalogue's.
        max_forwards: how often a job may be forwarded.
        reward: weights of the terms `jobs`, `lost` and `progress`, see `env.reward`; None: 1 for `jobs`. Then rewards
            sum to minus all completion times, in intervals.
        queue: which jobs schedulers are offered, and in which order.
        in_turns: a step is a turn rather than a round, see `MenuEnv`: for many environments on a GPU.
        may_wait: whether schedulers may wait while something else is legal. Simple learners get lost in waiting.
        options: further ones of `load_scenario`, such as `load`, `schedulers`, `seed`, `mix`.

    Policies see run times, or estimates (`duration_error`), and jobs are not stopped: `ClusterEnv` has the rest.
    UserError on any mistake.
    """
    if not (isinstance(episodes, int) and episodes >= 1):
        raise UserError(f"episodes: {episodes} should be a whole number of at least 1")
    check_options("make", options, ("episodes", "interval_s", "horizon_s", "interference", "max_forwards", "reward"))
    weights = _weights({"jobs": 1.0} if reward is None else reward)
    scenario = load_scenario(cluster, workload, num_jobs=num_jobs, seeds=episodes, models=models, **options)
    settings = Settings(
        interval_s=interval_s,
        rounds=ROUNDS,
        interference=interference,
        horizon_s=horizon_s,
        models=models,
        max_forwards=max_forwards,
    )
    lists = compact_tenants(scenario.jobs)
    config = env_config(scenario.cluster, lists, settings)
    config = dataclasses.replace(config, queue_slots=min(QUEUE_SLOTS, max(map(len, lists))))
    params = env_params(scenario.cluster, config, settings).replace(reward=weights)
    size = max(map(len, lists))
    tables = [pad_table(to_table(jobs, interval_s), size) for jobs in lists]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    starts = jax.jit(jax.vmap(lambda table: initial_state(config, params, table)))(together)
    return MenuEnv(config, MenuParams(env=params, starts=starts), queue, in_turns, may_wait)


def _weights(given: Mapping[str, Any]) -> RewardWeights:
    known = list(inspect.signature(reward_weights).parameters)
    for name in given:
        if name not in known:
            raise UserError(f"make: reward: unknown term {name!r}; known ones: {', '.join(known)}")
    return reward_weights(**given)
