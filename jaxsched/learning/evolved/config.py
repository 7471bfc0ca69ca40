"""What a run that learns a few numbers from a workload is told, and what it then knows."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.env.knowledge import NOTHING
from jaxsched.errors import UserError
from jaxsched.learning.evolved.tasks import LEVELS, TASKS, Task
from jaxsched.simulation.scenario import Scenario, load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList, offered_load
from jaxsched.workload.load import SYNTHETIC

MOST_GENERATIONS = 100_000
FEWEST_JOBS = 20
SYNTHETIC_JOBS = 3000  # of a list


@dataclasses.dataclass(frozen=True)
class EvolvedConfig:
    """The cluster, the workload's share to learn from, and the rules. UserError on a value out of range."""

    workload: str
    learn: str = LEVELS.name  # one of `TASKS`
    until: float = 1.0  # of the jobs, in order of submission
    cluster: str = "leaf-spine-8"
    schedulers: int | None = None
    load: float | None = None
    trace_gpu: str | None = None
    interference: str = "default"
    interval_s: float = 60.0
    max_forwards: int = 2
    restart_s: float = 60.0
    checkpoint_s: float = 0.0
    min_run_s: float = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    validation_seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = 0  # of what judges; None: that of training
    generations: int | None = None  # None: as many as what is learned needs

    def __post_init__(self) -> None:
        """Check what is only used here, and settle generations; the rest is checked where it is used."""
        if self.learn not in TASKS:
            raise UserError(f"--learn: {self.learn!r} should be one of {', '.join(TASKS)}")
        if self.generations is None:
            object.__setattr__(self, "generations", self.task.generations)
        if not 0.0 < self.until <= 1.0:
            raise UserError(f"--until: {self.until:g} should be a share of the jobs, above 0 and at most 1")
        assert self.generations is not None
        if not 1 <= self.generations <= MOST_GENERATIONS:
            raise UserError(f"--generations: {self.generations} should be from 1 to {MOST_GENERATIONS:,}")

    @property
    def judging_seed(self) -> int:
        """Seed of the lists that averages are judged by."""
        return self.seed if self.validation_seed is None else self.validation_seed

    @property
    def task(self) -> Task:
        """What is learned."""
        return TASKS[self.learn]


def as_saved(values: Any) -> Any:
    """What a card or a state says of a config: before validation had a seed of its own, it had that of training."""
    return {"validation_seed": None} | values if isinstance(values, dict) else values


def world_of(config: EvolvedConfig) -> tuple[Cluster, JobList, Settings]:
    """The cluster, the jobs to learn from, and the rules. UserError on any mistake.

    Of a synthetic workload the jobs are one list of as many as there are.
    """
    scenario = scenario_of(config, config.seed)
    if config.task.several and (config.max_forwards == 0 or scenario.cluster.shape[0] == 1):
        wrong = "--max-forwards 0" if config.max_forwards == 0 else "--schedulers 1"
        raise UserError(f"{wrong}: should be more to learn {config.learn}, where jobs are sent between schedulers")
    jobs = scenario.jobs[0]
    if len(jobs) < FEWEST_JOBS:
        raise UserError(
            f"--workload {config.workload}: {len(jobs)} jobs to learn from, should be {FEWEST_JOBS} or more"
        )
    if jobs.submit_s[-1] == jobs.submit_s[0]:
        raise UserError(f"--workload {config.workload}: all jobs are submitted at once, should be over some time")
    settings = Settings.taken_from(config, seed=0, **config.task.rules)
    return scenario.cluster, jobs, settings


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


def statistics(config: EvolvedConfig, cluster: Cluster, jobs: JobList) -> dict[str, Any]:
    """What the jobs were that were learned from, for the card."""
    half, most = np.quantile(jobs.duration_s, [0.5, 0.95])
    sizes, counts = np.unique(jobs.num_gpus, return_counts=True)
    return {
        "workload": Path(config.workload).name,
        "until": config.until,
        "jobs": len(jobs),
        "span_s": float(jobs.submit_s[-1]),
        "offered_load": offered_load(jobs, total_gpus(cluster)),
        "run_s": {"mean": float(jobs.duration_s.mean()), "p50": float(half), "p95": float(most)},
        "gpus": {str(size): int(count) for size, count in zip(sizes, counts)},
    }


def limits(config: EvolvedConfig) -> str:
    """What was learned for which world, in two sentences."""
    pace = "at its own pace" if config.load is None else f"at offered load {config.load:g}"
    stops = f", a start after a stop costs {config.restart_s:g} s" if config.task.stops else ", jobs are not stopped"
    share = "" if config.until == 1.0 else f"{config.until:.0%} of "
    known = "hidden" if config.task.knows == NOTHING else "known"
    return (
        f"Learned from {share}{Path(config.workload).name} {pace} on {config.cluster}{stops}, run times"
        f" {known}. On jobs of another scale nothing is known but what is measured."
    )
