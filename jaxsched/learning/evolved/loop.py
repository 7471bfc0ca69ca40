"""The loop that learns: a generation is drawn, played and ranked; the best point so far is the policy."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.errors import UserError
from jaxsched.io.json_lines import append, read_rows, truncate
from jaxsched.io.locks import locked
from jaxsched.learning.evolved import evolution
from jaxsched.learning.evolved.config import EvolvedConfig, limit_forwards, limits, scenario_of, statistics, world_of
from jaxsched.learning.evolved.job_lists import Plays, costs, draw_list, misjudge, rescale_about, shorten
from jaxsched.learning.evolved.state import STATE_FILE, EvolvedState, restore, save
from jaxsched.machine import side_by_side
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList
from jaxsched.workload.load import SYNTHETIC

METRICS_FILE, TIMING_FILE, POLICY_FOLDER = "metrics.jsonl", "timing.jsonl", "policy"
JUDGED_EVERY = 5  # generations
JUDGING = 8  # tells their draws from those of the generations

Report = Callable[[dict[str, float]], None]


class Setting(NamedTuple):
    """What a run learns from, and is judged by."""

    config: EvolvedConfig
    cluster: Cluster
    jobs: JobList  # to learn from
    settings: Settings
    judges: tuple[tuple[Plays, float], ...] = ()  # lists, and the mean completion time of the rule on each

    @property
    def gpus(self) -> int:
        """Of the cluster."""
        return total_gpus(self.cluster)


def train_evolved(
    config: EvolvedConfig, run_dir: Path, *, resume: bool = False, report: Report | None = None, command: str = ""
) -> Path:
    """Learn to the end of the config's generations, and return the folder of the best policy.

    `run_dir` gets the state (replaced after each generation), `policy/`, `metrics.jsonl` (the same for every run of a
    config, killed and resumed or not) and `timing.jsonl`. `report` is called with one row per generation. UserError if
    there is nothing to resume, a run in the way, or another process at work in the folder.
    """
    if not resume and (run_dir / STATE_FILE).exists():
        raise UserError(f"run {run_dir}: already holds a run; resume it with --resume, or choose another folder")
    cluster, jobs, settings = world_of(config)
    with locked(run_dir):
        try:
            _train(_setting(config, cluster, jobs, settings), run_dir, resume, report, command)
        except OSError as error:
            raise UserError(f"run {run_dir}: {error.strerror}; when that is mended, go on with --resume") from error
    return run_dir / POLICY_FOLDER


def _setting(config: EvolvedConfig, cluster: Cluster, jobs: JobList, settings: Settings) -> Setting:
    setting, rule, seed = Setting(config, cluster, jobs, settings), parse(config.task.rule), config.judging_seed
    judged = setting if seed == config.seed else setting._replace(jobs=scenario_of(config, seed).jobs[0])

    def judge(number: int) -> tuple[Plays, float]:
        rng = np.random.default_rng((seed, number, JUDGING))
        part, of = _list(judged, rng, number), _settings(judged, number)
        return _plays(judged, part, of), Plays(rule, cluster, part, of).mean_jct_s()

    return setting._replace(judges=tuple(map(judge, range(config.task.judges))))


def _list(setting: Setting, rng: np.random.Generator, number: int) -> JobList:
    """The jobs of a list of that number, at about the load asked for.

    They are new ones of a synthetic workload, or stretches of the past. If it is learned so, all times are a random
    factor shorter, and two of four lists have wrong estimates.
    """
    config, task = setting.config, setting.config.task
    if config.workload in SYNTHETIC:
        new = scenario_of(config, int(rng.integers(2**31))).jobs[0]
        jobs = rescale_about(new, rng, setting.gpus, config.load)
    else:
        jobs = draw_list(setting.jobs, rng, setting.gpus, config.load)
    jobs = shorten(jobs, rng) if task.shorter else jobs
    return misjudge(jobs, rng) if task.misjudged and number % 4 >= 2 else jobs


def _settings(setting: Setting, number: int) -> Settings:
    """Those of a list of that number: every other one has no more forwards than is usual, if that is learned so."""
    few = setting.config.task.fewer_forwards and number % 2 == 1
    return limit_forwards(setting.settings) if few else setting.settings


def _plays(setting: Setting, jobs: JobList, settings: Settings) -> Plays:
    task = setting.config.task
    return Plays(task.policy_of(task.begin), setting.cluster, jobs, settings)


def _train(setting: Setting, run_dir: Path, resume: bool, report: Report | None, command: str) -> None:
    config, digest, began_s = setting.config, _digest(setting.jobs), time.perf_counter()
    if resume:
        state, command = restore(run_dir, digest)
    else:
        point = config.task.begin
        state = _judge(setting, EvolvedState(evolution.begin(point), point))[0]
        save(run_dir, state, config, digest, command)
    for name in (METRICS_FILE, TIMING_FILE):
        truncate(run_dir / name, state.search.generation)
    assert config.generations is not None
    while state.search.generation < config.generations:
        state, row = _generation(setting, state)
        if state.search.generation % JUDGED_EVERY == 0 or state.search.generation == config.generations:
            state, ratio = _judge(setting, state)
            assert state.best_ratio is not None
            row |= {"ratio_to_rule": ratio, "best_ratio": state.best_ratio, "best_generation": state.best_generation}
        timing = {"generation": state.search.generation, "wall_s": time.perf_counter() - began_s}
        append(run_dir / METRICS_FILE, row)
        append(run_dir / TIMING_FILE, timing)
        save(run_dir, state, config, digest, command)
        if report is not None:
            report(row | timing)
    _write_policy(setting, run_dir, state, command)


def _generation(setting: Setting, state: EvolvedState) -> tuple[EvolvedState, dict[str, float]]:
    """All candidates on the lists that are drawn for this generation."""
    config, task, search = setting.config, setting.config.task, state.search
    rng = np.random.default_rng((config.seed, search.generation))
    directions, points = evolution.candidates(search, rng, task.strategy)
    plays = [_plays(setting, _list(setting, rng, i), _settings(setting, i)) for i in range(task.lists)]
    found = costs(plays, [task.policy_of(point) for point in points], side_by_side())
    search = evolution.move(search, directions, found, task.strategy)
    means = found.mean(0)
    row = {"generation": search.generation, "jct_mean_s": float(means.mean()), "jct_least_s": float(means.min())}
    return dataclasses.replace(state, search=search), row


def _judge(setting: Setting, state: EvolvedState) -> tuple[EvolvedState, float]:
    """The state, its average as the best point if it is, and the average's completion times over those of the rule."""
    policy = setting.config.task.policy_of(state.search.average)
    found = costs([plays for plays, _ in setting.judges], [policy], side_by_side())[:, 0]
    logs = [math.log(found_s / reference_s) for found_s, (_, reference_s) in zip(found, setting.judges)]
    ratio = math.exp(sum(logs) / len(logs))
    if state.best_ratio is not None and ratio >= state.best_ratio:
        return state, ratio
    return EvolvedState(state.search, state.search.average, ratio, state.search.generation), ratio


def _write_policy(setting: Setting, run_dir: Path, state: EvolvedState, command: str) -> None:
    config, rows = setting.config, read_rows(run_dir / METRICS_FILE)
    card = {
        "learned_from": statistics(config, setting.cluster, setting.jobs),
        "config": dataclasses.asdict(config),
        "generation": state.best_generation,
        "ratio": state.best_ratio,
        "curve": [[row["generation"], row["ratio_to_rule"]] for row in rows if "ratio_to_rule" in row],
        "commands": {"train": command} if command else {},
        "limits": limits(config),
    }
    config.task.save(run_dir / POLICY_FOLDER, state.best, card)


def _digest(jobs: JobList) -> str:
    """Of all that a job list says."""
    columns = (getattr(jobs, field.name) for field in dataclasses.fields(JobList))
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()
