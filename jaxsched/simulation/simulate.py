"""Policies on job lists: which engine plays each; all runs side by side in threads, or each a task of an executor."""

import dataclasses
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.knowledge import HISTORY, NOTHING
from jaxsched.errors import Slower, UserError
from jaxsched.event_loop import is_simple
from jaxsched.executors import Executor, Task, Tell
from jaxsched.machine import side_by_side
from jaxsched.options import AUTO, COMPILED, JAX
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.device import bring_here, check_device, play_on, uses_accelerator
from jaxsched.simulation.engine import Engine, Player, Report
from jaxsched.simulation.jax_run import JaxEngine
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import JobList


def engine_for(policy: Policy, world: PlayedWorld, compiled: Engine, jax_engine: Engine) -> Engine:
    """Which engine plays a policy: as the settings say, or the compiled loop where it has all that is needed.

    Where Numba is missing, and JAX lacks the policy, the loop plays in plain Python, with a warning. UserError if the
    settings ask for an engine that cannot, or none can.
    """
    settings = world.settings
    if settings.debug_checks and settings.engine == COMPILED:
        raise UserError(f"engine {COMPILED}: has no debug checks; engine should be auto or jax")
    if settings.engine == JAX or settings.debug_checks or (settings.engine == AUTO and settings.batched):
        reason = jax_engine.why_not(policy, world.config, world.params)
        if reason is not None:
            asking = {"engine jax": settings.engine == JAX, "debug_checks": settings.debug_checks}
            asking["batched"] = settings.engine == AUTO and bool(settings.batched)
            asked = " and ".join(name for name, here in asking.items() if here)
            raise UserError(f"engine {JAX}: cannot play {policy.name!r}: {reason}; leave out {asked}")
        return jax_engine
    reason = compiled.why_not(policy, world.config, world.params)
    if reason is None:
        return compiled
    lacks, plain = jax_engine.why_not(policy, world.config, world.params), CompiledEngine(plain=True)
    if lacks is not None and plain.why_not(policy, world.config, world.params) is not None:
        raise UserError(
            f"policy {policy.name!r}: no engine plays it here: {lacks}, and of that loop, {reason}; "
            "leave one of the two out"
        )
    if settings.engine == COMPILED:
        other = "auto or jax" if lacks is None else "auto"
        raise UserError(f"engine {COMPILED}: cannot play {policy.name!r}: {reason}; engine should be {other}")
    if lacks is None:
        return jax_engine
    warnings.warn(f"{policy.name}: is played some hundred times slower, in Python: {reason}", Slower, stacklevel=2)
    return plain


def check_world(policy: Policy, settings: Settings) -> None:
    """UserError, with what would serve instead, if a policy needs what the world hides or forbids."""
    if policy.requires == HISTORY and settings.knows != HISTORY:
        raise UserError(
            f"policy {policy.name!r}: needs what finished jobs tell, not given by knows = {settings.knows}; "
            f"set knows = {HISTORY}, or take pack:las+backfill+preempt, with run times pack:srsf+backfill+preempt"
        )
    if settings.knows == NOTHING and policy.requires != NOTHING:
        raise UserError(
            f"policy {policy.name!r}: needs run times or estimates of them, which knows = {NOTHING} hides; "
            f"take pack, pack:backfill, pack:las+backfill+preempt or pack:mlfq+backfill+preempt, or knows = {HISTORY}"
        )
    if policy.spec is not None and policy.spec.queue.preempt and not settings.preemption:
        raise UserError(
            f"policy {policy.name!r}: stops running jobs, which this world forbids; set preemption on, "
            "or leave 'preempt' out"
        )


def prepare_players(
    policies: Sequence[Policy],
    cluster: Cluster,
    job_lists: Sequence[JobList],
    settings: Settings,
    jax_engine: JaxEngine | None = None,
) -> dict[str, Player]:
    """Who plays each policy, by its name. UserError for the first that cannot be played here.

    Args: `jax_engine`: one that plays other worlds with the same programs; None: one for this world.
    """
    for policy in policies:
        check_world(policy, settings)
    with play_on(settings.device):
        world = PlayedWorld(bring_here(cluster), job_lists, settings)
        engines = CompiledEngine(simple=all(map(is_simple, policies))), jax_engine or JaxEngine()
        return {one.name: engine_for(one, world, *engines).prepare(one, world) for one in policies}


def simulate(
    policies: Sequence[Policy],
    cluster: Cluster,
    job_lists: Sequence[JobList],
    settings: Settings,
    report: Report | None = None,
    only: Sequence[int] | None = None,
    jax_engine: JaxEngine | None = None,
) -> dict[str, list[Outcome]]:
    """Play every policy on every job list. Runs go on in threads: XLA works without Python's lock.

    Args:
        policies: to play, of different names.
        cluster: for all of them.
        job_lists: all of them together set the sizes of tables.
        settings: for all of them.
        report: called with the progress of a run, from several threads.
        only: positions of the lists to play; None: all.
        jax_engine: as in `prepare_players`.

    Returns:
        Outcomes by policy, in the order of the lists.

    Raises:
        UserError: if a policy cannot be played, see `engine_for` and `env_config`.
    """
    check_device(settings.device)
    usual = 1 if uses_accelerator(settings.device) else side_by_side()
    threads = usual if settings.threads is None else settings.threads
    lists = range(len(job_lists))
    whole = only is None and settings.seeds_in_a_batch(len(job_lists))
    parts = [lists] if whole else [range(seed, seed + 1) for seed in (lists if only is None else only)]
    names = get_catalogue(settings.models).names
    players = prepare_players(policies, cluster, job_lists, settings, jax_engine)
    stop = threading.Event()

    def run(name: str, part: range) -> list[Outcome]:
        with play_on(settings.device):  # of this thread
            outcomes = players[name].play([job_lists[seed] for seed in part], part[0], report=report, stop=stop)
        return [dataclasses.replace(outcome, models=names) for outcome in outcomes]

    results: dict[str, dict[int, Outcome]] = {policy.name: {} for policy in policies}
    with ThreadPoolExecutor(threads) as pool:
        tasks = {pool.submit(run, policy.name, part): (policy.name, part) for part in parts for policy in policies}
        try:
            for task in as_completed(tasks):
                name, part = tasks[task]
                results[name].update(zip(part, task.result()))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: [by_seed[seed] for seed in sorted(by_seed)] for name, by_seed in results.items()}


class Common(NamedTuple):
    """What all runs share. Policies are named, as on the command line: workers make them anew."""

    policies: Sequence[str]
    cluster: Cluster
    job_lists: Sequence[JobList]
    settings: Settings


class Run(NamedTuple):
    """One policy on one list, by their positions."""

    policy: int
    job_list: int


def play(common: Common, run: Run, tell: Tell) -> Outcome:
    """The work of a task: the same outcome as `simulate` has."""
    policy = parse_all(common.policies)[run.policy]
    settings = dataclasses.replace(common.settings, batched=False)  # one list at a time
    found = simulate([policy], common.cluster, common.job_lists, settings, tell, only=[run.job_list])
    return found[policy.name][0]


class Elsewhere(NamedTuple):
    """`simulate` by an executor, for the policies of these names."""

    executor: Executor
    names: tuple[str, ...]

    def __call__(
        self,
        policies: Sequence[Policy],
        cluster: Cluster,
        job_lists: Sequence[JobList],
        settings: Settings,
        report: Report | None = None,
    ) -> dict[str, list[Outcome]]:
        """See `simulate`."""
        for policy in policies:
            check_world(policy, settings)
        _ = PlayedWorld(cluster, job_lists, settings).config  # refuses what no worker could play
        runs = [Run(policy, number) for number in range(len(job_lists)) for policy in range(len(policies))]
        tasks = [Task(f"{policies[run.policy].name} on job list {run.job_list}", play, run) for run in runs]
        common = Common(self.names, cluster, job_lists, settings)
        found: dict[Run, Outcome] = {}
        tell = None if report is None else lambda _, progress: report(progress)
        for number, outcome in self.executor.run(common, tasks, tell):
            found[runs[number]] = outcome
        lists = range(len(job_lists))
        return {policy.name: [found[Run(i, number)] for number in lists] for i, policy in enumerate(policies)}
