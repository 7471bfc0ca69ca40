"""`make`: an environment to learn in, from names."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp

from jaxsched.adapters.menu_env import MenuEnv
from jaxsched.border import checked
from jaxsched.env.environment import SHOWN, Episodes, initial_state
from jaxsched.env.queues import Discipline
from jaxsched.env.state import RewardWeights, reward_weights
from jaxsched.errors import UserError
from jaxsched.simulation.scenario import check_options, load_scenario
from jaxsched.simulation.settings import Settings, compact_tenants, env_config, env_params
from jaxsched.workload.jobs import pad_table, to_table

QUEUE_SLOTS = 64  # of a scheduler; further arrivals wait outside
RULES = ("interval_s", "interference", "max_forwards", "models", "horizon_s")  # of `Settings`
ROUNDS = 8  # decision rounds at a boundary, at most


@checked
def make(
    cluster: str = "leaf-spine-8",
    workload: str = "philly-like",
    *,
    episodes: int = 8,
    num_jobs: int = 100,
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
        reward: weights of the terms `jobs`, `lost` and `progress`, see `env.reward`; None: 1 for `jobs`. Then the
            rewards of all schedulers sum to minus the completion times of all jobs, in intervals, each from the first
            boundary after its submission. What a job waits outside a full queue (`QUEUE_SLOTS`) does not count.
            `interference: False` leaves slowdowns out of `lost`.
        queue: which jobs schedulers are offered, and in which order.
        in_turns: a step is a turn rather than a round, see `MenuEnv`: for many environments on a GPU.
        may_wait: False: the mask has waiting only where nothing else is legal. Simple learners get lost in waiting.
        options: `interval_s`, `interference`, `max_forwards` and `models` as of `Settings`; `horizon_s`, the simulated
            time at which an episode is truncated (default: it ends when all jobs have finished); and further ones of
            `load_scenario`, such as `load`, `schedulers`, `seed`, `mix`.

    Policies see run times, or estimates (`duration_error`), and jobs are not stopped: `ClusterEnv` has the rest.

    Returns:
        The environment, with `reset`, `step`, `action_space` and `observation_space`; `P` schedulers each choose one of
        `A` options.

    Raises:
        UserError: on any mistake.
    """
    for name, value in {"episodes": episodes, "num_jobs": num_jobs}.items():
        if not (isinstance(value, Integral) and value >= 1):
            raise UserError(f"{name}: {value} should be a whole number of at least 1")
    mine = [name for name in inspect.signature(make).parameters if name != "options"]
    check_options("make", options, [*mine, *RULES], but=("seeds",))
    weights = _weights({"jobs": 1.0} if reward is None else reward)
    settings = Settings(rounds=ROUNDS, **{name: options.pop(name) for name in RULES if name in options})
    scenario = load_scenario(cluster, workload, num_jobs=num_jobs, seeds=episodes, models=settings.models, **options)
    lists = compact_tenants(scenario.jobs)
    config = env_config(scenario.cluster, lists, settings)
    config = dataclasses.replace(config, queue_slots=min(QUEUE_SLOTS, max(map(len, lists))))
    params = env_params(scenario.cluster, config, settings).replace(reward=weights)
    size = max(map(len, lists))
    tables = [
        pad_table(to_table(jobs, settings.interval_s, sets=config.gpu_sets, asks=config.asks), size) for jobs in lists
    ]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    starts = jax.jit(jax.vmap(lambda table: initial_state(config, params, table)))(together)
    return MenuEnv(config, Episodes(env=params, starts=starts), queue, in_turns, may_wait)


def _weights(given: Mapping[str, Any]) -> RewardWeights:
    """Weights of these terms. UserError if one is unknown or no number, or if all are 0."""
    known = list(inspect.signature(reward_weights).parameters)
    good = isinstance(given, Mapping) and set(given) <= set(known) and any(given.values())
    if not good or not all(isinstance(value, Real) and math.isfinite(value) for value in given.values()):
        raise UserError(
            f"make: reward: {given} should give numbers to some of {', '.join(known)}, such as {{'lost': 1}}"
        )
    return reward_weights(**given)
