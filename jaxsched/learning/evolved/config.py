"""What a run that learns a few numbers from a workload is told, and what it then knows."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.env.knowledge import NOTHING
from jaxsched.errors import UserError
from jaxsched.learning.evolved.tasks import LEVELS, TASKS, Numbers, Task
from jaxsched.policies.evolved import RULES, policy_of
from jaxsched.policies.policy import Policy
from jaxsched.simulation.scenario import Scenario, load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList, offered_load
from jaxsched.workload.load import SYNTHETIC
from jaxsched.worlds.families import parse_worlds
from jaxsched.worlds.world import draw_world

MOST_GENERATIONS = 100_000
FEWEST_JOBS = 20
SYNTHETIC_JOBS = 3000  # of a list
MORE_OF_WORLDS = 4  # times as many lists


@dataclasses.dataclass(frozen=True)
class EvolvedConfig:
    """The cluster, the workload's share to learn from, and the rules. UserError on a value out of range."""

    workload: str = ""
    worlds: tuple[str, ...] = ()  # FAMILY:COUNT: training worlds, in the place of workload and cluster
    learn: str = LEVELS.name  # one of `TASKS`
    until: float = 1.0  # of the jobs, in order of submission
    cluster: str = "leaf-spine-8"
    schedulers: int | None = None
    load: float | None = None  # with worlds a factor of that of each
    trace_gpu: str | None = None
    interference: str = "default"
    interval_s: float = 60.0
    max_forwards: int = 2
    restart_s: float = 60.0
    checkpoint_s: float = 0.0
    min_run_s: float = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    validation_seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0  # of the lists that averages are judged by
    generations: int | None = None  # None: as many as what is learned needs

    def __post_init__(self) -> None:
        """Check what is only used here, and settle generations; the rest is checked where it is used."""
        if self.learn not in TASKS:
            raise UserError(f"--learn: {self.learn!r} should be one of {', '.join(TASKS)}")
        if bool(self.workload) == bool(self.worlds):
            raise UserError("--workload, --worlds: one of them should be given")
        if self.worlds and not self.task.several:
            raise UserError(f"--worlds: is to learn seeking; {self.learn} are learned from --workload")
        if self.load is not None and not 0.0 < self.load < float("inf"):
            raise UserError(f"--load: {self.load:g} should be a number above 0")
        if self.generations is None:
            object.__setattr__(self, "generations", self.task.generations)
        if not 0.0 < self.until <= 1.0:
            raise UserError(f"--until: {self.until:g} should be a share of the jobs, above 0 and at most 1")
        assert self.generations is not None
        if not 1 <= self.generations <= MOST_GENERATIONS:
            raise UserError(f"--generations: {self.generations} should be from 1 to {MOST_GENERATIONS:,}")

    @property
    def source(self) -> str:
        """What is learned from, in a few words."""
        share = "" if self.until == 1.0 else f"the first {self.until:.0%} of "
        return f"training worlds {' '.join(self.worlds)}" if self.worlds else f"{share}{Path(self.workload).name}"

    @property
    def task(self) -> Task:
        """What is learned."""
        return TASKS[self.learn]

    @property
    def lists(self) -> tuple[int, int]:
        """How many lists candidates play, and how many choose the best point; more of worlds, which are shorter."""
        more = MORE_OF_WORLDS if self.worlds else 1
        return self.task.lists * more, self.task.judges * more

    @property
    def rule(self) -> str:
        """That the numbers are part of, and that mean completion times are held against."""
        return RULES[self.learn]

    @property
    def factor(self) -> float:
        """Of the loads of worlds."""
        return 1.0 if self.load is None else self.load

    def policy_of(self, numbers: Numbers) -> Policy:
        """The policy of these numbers."""
        return policy_of(self.task.what_of(numbers), self.rule, self.learn)


class Source(NamedTuple):
    """Jobs to learn from, the cluster that they run on, and the rules."""

    cluster: Cluster
    jobs: JobList
    settings: Settings


def sources_of(config: EvolvedConfig) -> tuple[Source, ...]:
    """What is learned from. UserError on any mistake.

    Of a synthetic workload the jobs are one list of as many as there are. Worlds with one scheduler are left out.
    """
    settings, where = Settings.taken_from(config, seed=0, **config.task.rules), "where jobs are sent between schedulers"
    if config.task.several and config.max_forwards == 0:
        raise UserError(f"--max-forwards 0: should be more to learn {config.learn}, {where}")
    if config.worlds:
        choices = [parse_worlds(text)._replace(training=True) for text in config.worlds]
        drawn = (draw_world(choice, number) for choice in choices for number in range(choice.worlds))
        found = [
            Source(w.build(), w.jobs, dataclasses.replace(settings, models=w.catalogue))
            for w in drawn
            if w.schedulers > 1
        ]
        if not found:
            raise UserError(f"--worlds {' '.join(config.worlds)}: have one scheduler each, should be several, {where}")
        return tuple(found)
    scenario = scenario_of(config, config.seed)
    if config.task.several and scenario.cluster.shape[0] == 1:
        raise UserError(f"--schedulers 1: should be more to learn {config.learn}, {where}")
    jobs = scenario.jobs[0]
    if len(jobs) < FEWEST_JOBS:
        raise UserError(
            f"--workload {config.workload}: {len(jobs)} jobs to learn from, should be {FEWEST_JOBS} or more"
        )
    if jobs.submit_s[-1] == jobs.submit_s[0]:
        raise UserError(f"--workload {config.workload}: all jobs are submitted at once, should be over some time")
    return (Source(scenario.cluster, jobs, settings),)


def limit_forwards(settings: Settings) -> Settings:
    """These settings with no more forwards of a job than is usual."""
    return dataclasses.replace(settings, max_forwards=min(settings.max_forwards, EvolvedConfig.max_forwards))


def scenario_of(config: EvolvedConfig, seed: int) -> Scenario:
    """The cluster with one list of jobs. UserError on any mistake."""
    return load_scenario(
        config.cluster,
        config.workload,
        schedulers=config.schedulers,
        load=config.load,
        trace_gpu=config.trace_gpu,
        until=None if config.until == 1.0 else config.until,
        num_jobs=SYNTHETIC_JOBS if config.workload in SYNTHETIC else None,
        seed=seed,
        seeds=1,
    )


def statistics(config: EvolvedConfig, sources: Sequence[Source]) -> dict[str, Any]:
    """What the jobs were that were learned from, for the card; of many worlds over all of them."""
    run_s = np.concatenate([jobs.duration_s for _, jobs, _ in sources])
    half, most = np.quantile(run_s, [0.5, 0.95])
    loads = [offered_load(jobs, total_gpus(cluster)) for cluster, jobs, _ in sources]
    sizes, counts = np.unique(np.concatenate([jobs.num_gpus for _, jobs, _ in sources]), return_counts=True)
    return {
        "workload": config.source if config.worlds else Path(config.workload).name,
        "until": config.until,
        **({"worlds": len(sources)} if config.worlds else {}),
        "jobs": len(run_s),
        "span_s": float(np.mean([jobs.submit_s[-1] for _, jobs, _ in sources])),
        "offered_load": float(np.mean(loads)) * (config.factor if config.worlds else 1.0),
        "run_s": {"mean": float(run_s.mean()), "p50": float(half), "p95": float(most)},
        "gpus": {str(size): int(count) for size, count in zip(sizes, counts)},
    }


def limits(config: EvolvedConfig) -> str:
    """What was learned for which world, in two sentences."""
    pace = "at its own pace" if config.load is None else f"at offered load {config.load:g}"
    place = f" at {config.factor:g} times their load" if config.worlds else f" {pace} on {config.cluster}"
    stops = f", a start after a stop costs {config.restart_s:g} s" if config.task.stops else ", jobs are not stopped"
    known = "hidden" if config.task.knows == NOTHING else "known"
    return (
        f"Learned from {config.source}{place}{stops}, run times {known}."
        " On jobs of another scale nothing is known but what is measured."
    )
