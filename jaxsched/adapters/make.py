"""`make`: an environment to learn in, from names."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxsched.adapters.menu_env import OBSERVATIONS, ROWS, MenuEnv, Rewarder
from jaxsched.border import checked
from jaxsched.cluster.hardware import Cluster
from jaxsched.env.environment import SHOWN, Episodes, initial_state
from jaxsched.env.queues import Discipline
from jaxsched.env.state import EnvConfig, EnvParams, RewardWeights, State, reward_weights
from jaxsched.errors import UserError
from jaxsched.options import ClusterOptions, JobOptions, list_names
from jaxsched.simulation.scenario import Workload, check_options, load_scenario
from jaxsched.simulation.settings import Settings, compact_tenants, env_config, env_params
from jaxsched.workload.jobs import JobList, pad_table, to_table
from jaxsched.worlds.families import TASKS, Choice

QUEUE_SLOTS = 64  # of a scheduler; further arrivals wait outside
RULES = ("interval_s", "interference", "max_forwards", "models", "horizon_s", "rounds")  # of `Settings`
SHOWN_AS = ("final", "observation")  # of `MenuEnv`
WORKLOAD, EPISODES, NUM_JOBS = "philly-like", 8, 100


@checked
def make(
    cluster: str | Cluster = "leaf-spine-8",
    workload: Workload = WORKLOAD,
    *,
    episodes: int | None = None,
    num_jobs: int | None = None,
    reward: Mapping[str, Any] | Rewarder | None = None,
    queue: Discipline = SHOWN,
    in_turns: bool = False,
    may_wait: bool = True,
    **options: Any,
) -> MenuEnv:
    """An environment to learn in, ready to `reset`.

    Args:
        cluster, workload: names or files, as `jaxsched evaluate` takes them. Also a cluster; a job list, or several; a
            function from a seed to a job list. Or a task (`worlds.families.TASKS`): its training worlds from `seed` on.
        episodes: so many job lists are drawn beforehand (default 8), and every episode plays one of them; of lists that
            are given, all.
        num_jobs: of an episode (default 100).
        reward: weights of the terms `jobs`, `lost` and `progress`, see `env.reward`; None: 1 for `jobs`. Then the
            rewards of all schedulers sum to minus the completion times of all jobs, in intervals, each from the first
            boundary after its submission. What a job waits outside a full queue (`QUEUE_SLOTS`) does not count.
            `interference: False` leaves slowdowns out of `lost`. Or a function `(before, after, params)` of the states
            at both ends of a step and the environment's parameters, to float32[P].
        queue: which jobs schedulers are offered, and in which order.
        in_turns: a step is a turn rather than a round, see `MenuEnv`: for many environments on a GPU.
        may_wait: False: the mask has waiting only where nothing else is legal. Simple learners get lost in waiting.
        options: `final=True`: `info["final"]` is what schedulers are shown at the step's own end, before the next
            episode begins. `observation="graph"`: what is seen has a `graph` in place of `features`, see
            `adapters.features`. `interval_s`, `interference` (a name, a model or a law), `max_forwards`, `rounds` and
            `models` as of `Settings`; `horizon_s`, at which an episode is truncated (default: it ends when all jobs
            have finished); and further ones of `load_scenario`, such as `load`, `schedulers`, `seed`, `mix`.

    Policies see run times, or estimates (`duration_error`), and jobs are not stopped: `ClusterEnv` has the rest.

    Returns:
        The environment, with `reset`, `step`, `action_space` and `observation_space`; `P` schedulers each choose one of
        `A` options.

    Raises:
        UserError: on any mistake.
    """
    mine = [name for name in inspect.signature(make).parameters if name != "options"]
    check_options("make", options, [*mine, *RULES, *SHOWN_AS], but=("seeds",))
    if cluster in TASKS:
        cluster, workload, num_jobs, options = _task(str(cluster), workload, num_jobs, options)
    shown = {name: options.pop(name) for name in SHOWN_AS if name in options}
    _check(episodes, num_jobs, **({"final": False, "observation": ROWS} | shown))
    settings = Settings(**{name: options.pop(name) for name in RULES if name in options})
    jobs = _Jobs(cluster, workload, _jobs_options(workload, episodes, num_jobs, options), settings)
    lists, on = jobs.lists()
    config = dataclasses.replace(env_config(on, lists, settings), queue_slots=min(QUEUE_SLOTS, max(map(len, lists))))
    weights = _weights({"jobs": 1.0} if reward is None or callable(reward) else reward)
    params = env_params(on, config, settings).replace(reward=weights)
    draw = jobs.fresh(config, params, max(map(len, lists))) if jobs.drawn else None
    played = Episodes(env=params, starts=jobs.starts(config, params, lists, max(map(len, lists))))
    rewarder = reward if callable(reward) else None
    env = MenuEnv(config, played, queue, in_turns, may_wait, rewarder=rewarder, draw=draw, **shown)
    return dataclasses.replace(env, params=env.open(played))


def _task(
    name: str, workload: Workload, num_jobs: int | None, options: Mapping[str, Any]
) -> tuple[Cluster, Workload, None, dict[str, Any]]:
    """Hardware, jobs and options of a task's training worlds. UserError on options that a task says itself."""
    from jaxsched.worlds.world import draw_world  # half a second, which other environments do not need

    choice, said = Choice(name, training=True), (*list_names(ClusterOptions), *list_names(JobOptions), "models")
    wrong = [one for one in said if one in options and one != "seed"]
    if wrong or workload != WORKLOAD:
        raise UserError(f"make: {(wrong or ['workload'])[0]}: {name} has hardware and jobs of its own; leave it out")
    first = draw_world(choice, 0, num_jobs)
    jobs = lambda seed: draw_world(choice, seed, num_jobs).jobs
    return first.build(), jobs, None, {**options, "models": first.catalogue}


class _Jobs(NamedTuple):
    """Where an environment's jobs come from."""

    cluster: str | Cluster
    workload: Workload
    options: Mapping[str, Any]  # of `load_scenario`
    settings: Settings

    @property
    def drawn(self) -> bool:
        """Other seeds have other jobs."""
        return isinstance(self.workload, str | Path) or callable(self.workload)

    def lists(self, **other: Any) -> tuple[list[JobList], Cluster]:
        """The job lists, by options some of which may be others, and the cluster."""
        options = {**self.options, **other, "models": self.settings.models}
        scenario = load_scenario(self.cluster, self.workload, **options)
        return compact_tenants(scenario.jobs), scenario.cluster

    def starts(self, config: EnvConfig, params: EnvParams, lists: Sequence[JobList], size: int) -> State:
        """Start states, on a leading axis, with tables of so many jobs."""
        told = {"sets": config.gpu_sets, "asks": config.asks}
        tables = [pad_table(to_table(jobs, self.settings.interval_s, **told), size) for jobs in lists]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
        return jax.jit(jax.vmap(lambda table: initial_state(config, params, table)))(together)

    def fresh(self, config: EnvConfig, params: EnvParams, size: int) -> Callable[[int], State]:
        """What draws as many start states by another seed. UserError if they need larger tables."""

        def draw(seed: int) -> State:
            lists, cluster = self.lists(seed=seed)
            needs = env_config(cluster, lists, self.settings)
            tables = ("largest_worker", "tenants", "shared_gpus")
            larger = max(map(len, lists)) > size or any(getattr(needs, one) > getattr(config, one) for one in tables)
            if larger or (needs.gpu_sets, needs.asks) != (config.gpu_sets, config.asks):
                raise UserError(f"fresh: the jobs of seed {seed} need other tables than the environment has")
            return self.starts(config, params, lists, size)

        return draw


def _check(episodes: int | None, num_jobs: int | None, final: object, observation: object) -> None:
    for name, value in {"episodes": episodes, "num_jobs": num_jobs}.items():
        if not (value is None or (isinstance(value, Integral) and value >= 1)):
            raise UserError(f"{name}: {value} should be a whole number of at least 1")
    if not isinstance(final, bool):
        raise UserError(f"final: {final!r} should be True or False")
    if not isinstance(observation, str) or observation not in OBSERVATIONS:
        raise UserError(f"observation: {observation!r} should be one of {', '.join(OBSERVATIONS)}")


def _jobs_options(
    workload: Workload, episodes: int | None, num_jobs: int | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `load_scenario`, with what is usual where nothing is said."""
    named = isinstance(workload, str | Path)
    if num_jobs is not None and not named:
        raise UserError("num_jobs: is for jobs by name, these are given as they are")
    seeds = EPISODES if episodes is None and (named or callable(workload)) else episodes
    return {**options, "seeds": seeds, **({"num_jobs": num_jobs or NUM_JOBS} if named else {})}


SWITCH = "interference"  # of the reward's weights the one that is no number


def _weights(given: Mapping[str, Any]) -> RewardWeights:
    """Weights of these terms. UserError if one is unknown or no number, or if all are 0."""
    known = list(inspect.signature(reward_weights).parameters)
    good = isinstance(given, Mapping) and set(given) <= set(known)
    terms = {name: value for name, value in given.items() if name != SWITCH} if good else {}
    if not any(terms.values()) or not all(isinstance(one, Real) and math.isfinite(one) for one in terms.values()):
        terms = ", ".join(name for name in known if name != SWITCH)
        raise UserError(f"make: reward: {given} should give numbers to some of {terms}, such as {{'lost': 1}}")
    if not isinstance(given.get(SWITCH, True), bool):
        raise UserError(f"make: reward: {SWITCH}: {given[SWITCH]!r} should be True or False")
    return reward_weights(**given)
