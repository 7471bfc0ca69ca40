"""The loop that learns levels: a generation is drawn, played, ranked; the best point so far is the policy."""

import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.errors import UserError
from jaxsched.locks import locked
from jaxsched.policies.level_files import PLAYED, policy_of, save_levels
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.training.json_lines import append, read_rows, truncate
from jaxsched.training.levels import evolution
from jaxsched.training.levels.config import LevelsConfig, limits, statistics, world_of
from jaxsched.training.levels.lists import drawn
from jaxsched.training.levels.numbers import COUNT, table_of
from jaxsched.training.levels.plays import Plays, costs
from jaxsched.training.levels.state import STATE_FILE, LevelsState, restore, save
from jaxsched.workload.jobs import JobList

METRICS_FILE, TIMING_FILE, POLICY_FOLDER = "metrics.jsonl", "timing.jsonl", "policy"
MOST_THREADS = 2  # runs at the same time
JUDGED_EVERY = 5  # generations
JUDGES = 8  # lists

Report = Callable[[dict[str, float]], None]


class Setting(NamedTuple):
    """What a run learns from, and is judged by."""

    config: LevelsConfig
    cluster: Cluster
    jobs: JobList  # to learn from
    settings: Settings
    judges: list[tuple[Plays, float]]  # lists, and the mean completion time of `mlfq` on each

    @property
    def gpus(self) -> int:
        """Of the cluster."""
        return total_gpus(self.cluster)


def train_levels(
    config: LevelsConfig, run_dir: Path, *, resume: bool = False, report: Report | None = None, command: str = ""
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


def _setting(config: LevelsConfig, cluster: Cluster, jobs: JobList, settings: Settings) -> Setting:
    mlfq, levels = parse(PLAYED.format(order="mlfq")), policy_of(table_of(np.zeros(COUNT)), "levels")
    judges = []
    for number in range(JUDGES):
        rng = np.random.default_rng((config.seed, number, JUDGES))  # other draws than those of the generations
        part = drawn(jobs, rng, total_gpus(cluster), config.load)
        judges.append((Plays(levels, cluster, part, settings), Plays(mlfq, cluster, part, settings).mean_jct_s()))
    return Setting(config, cluster, jobs, settings, judges)


def _train(setting: Setting, run_dir: Path, resume: bool, report: Report | None, command: str) -> None:
    config, digest, begin = setting.config, _digest(setting.jobs), time.perf_counter()
    if resume:
        state, command = restore(run_dir, digest)
    else:
        state = _judged(setting, LevelsState(evolution.begin(COUNT), np.zeros(COUNT)))[0]
        save(run_dir, state, config, digest, command)
    for name in (METRICS_FILE, TIMING_FILE):
        truncate(run_dir / name, state.search.generation)
    while state.search.generation < config.generations:
        state, row = _generation(setting, state)
        if state.search.generation % JUDGED_EVERY == 0 or state.search.generation == config.generations:
            state, ratio = _judged(setting, state)
            row["ratio_to_mlfq"] = ratio
        timing = {"generation": state.search.generation, "wall_s": time.perf_counter() - begin}
        append(run_dir / METRICS_FILE, row)
        append(run_dir / TIMING_FILE, timing)
        save(run_dir, state, config, digest, command)
        if report is not None:
            report(row | timing)
    _write_policy(setting, run_dir, state, command)


def _generation(setting: Setting, state: LevelsState) -> tuple[LevelsState, dict[str, float]]:
    """All candidates on one list, drawn for this generation."""
    config, search = setting.config, state.search
    rng = np.random.default_rng((config.seed, search.generation))
    directions, points = evolution.candidates(search, rng)
    jobs, tables = drawn(setting.jobs, rng, setting.gpus, config.load), [table_of(point) for point in points]
    found = costs(Plays(policy_of(tables[0], "levels"), setting.cluster, jobs, setting.settings), tables, _threads())
    search = evolution.moved(search, directions, found)
    row = {"generation": search.generation, "jct_mean_s": float(found.mean()), "jct_least_s": float(found.min())}
    return dataclasses.replace(state, search=search), row


def _judged(setting: Setting, state: LevelsState) -> tuple[LevelsState, float]:
    """The state, its average as the best point if it is, and the average's completion times over those of `mlfq`."""
    table = table_of(state.search.average)
    logs = [math.log(plays.mean_jct_s(table) / reference_s) for plays, reference_s in setting.judges]
    ratio = math.exp(sum(logs) / len(logs))
    if state.best_ratio is not None and ratio >= state.best_ratio:
        return state, ratio
    return LevelsState(state.search, state.search.average, ratio, state.search.generation), ratio


def _write_policy(setting: Setting, run_dir: Path, state: LevelsState, command: str) -> None:
    config, rows = setting.config, read_rows(run_dir / METRICS_FILE)
    card = {
        "learned_from": statistics(config, setting.cluster, setting.jobs),
        "config": dataclasses.asdict(config),
        "generation": state.best_generation,
        "curve": [[row["generation"], row["ratio_to_mlfq"]] for row in rows if "ratio_to_mlfq" in row],
        "commands": {"train": command} if command else {},
        "limits": limits(config),
    }
    save_levels(run_dir / POLICY_FOLDER, table_of(state.best), card)


def _digest(jobs: JobList) -> str:
    """Of all that a job list says."""
    columns = (getattr(jobs, field.name) for field in dataclasses.fields(JobList))
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()


def _threads() -> int:
    return min(MOST_THREADS, os.cpu_count() or 1)
