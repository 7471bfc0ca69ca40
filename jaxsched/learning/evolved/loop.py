"""The loop that learns: a generation is drawn, played and ranked; the best point so far is the policy.

Its job lists are a workload's past, drawn again, new jobs, or training worlds'; the compiled event loop plays them.
"""

import copy
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import total_gpus
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.files import locked
from jaxsched.io.json_file import append, read_rows, truncate
from jaxsched.learning.evolved import evolution
from jaxsched.learning.evolved.config import (
    EvolvedConfig,
    Source,
    limit_forwards,
    limits,
    scenario_of,
    sources_of,
    statistics,
)
from jaxsched.learning.evolved.evolution import STATE_FILE, EvolvedState, restore, save
from jaxsched.machine import side_by_side
from jaxsched.policies.evolved import save as save_policy
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.settings import PlayedWorld
from jaxsched.workload.jobs import JobList, from_start, offered_load, rescale_to_load
from jaxsched.workload.load import SYNTHETIC, add_estimates
from jaxsched.worlds.world import reorder

BLOCKS = 24  # of equal time, from which a list is drawn
LOADS = (0.9, 1.1)  # of a drawn list, over that which was asked for
ERRORS = (0.25, 1.5)  # of estimates: sigma of the logarithm of their ratio to run times
SHORTER = (0.125, 1.0)  # factors of all times of a list


def draw_list(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """As many stretches of time as there are, drawn with replacement, one after the other, at a load about `load`.

    So arrivals keep their rhythm within a stretch, and no list comes twice. None: at the pace that the jobs have. They
    must not all be submitted at once.
    """
    assert jobs.submit_s[-1] > jobs.submit_s[0]
    again = _shuffle(jobs, rng.integers(0, BLOCKS, BLOCKS))
    while len(again) == 0 or again.submit_s[-1] == again.submit_s[0]:  # few stretches have jobs
        again = _shuffle(jobs, rng.integers(0, BLOCKS, BLOCKS))
    return rescale_about(from_start(again), rng, gpus, load)


def rescale_about(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """The jobs at a load about that one; None: at their pace."""
    return jobs if load is None else rescale_to_load(jobs, gpus, load * rng.uniform(*LOADS))


def shorten(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with all their times a random factor shorter, so that intervals are longer beside them."""
    factor = float(np.exp(rng.uniform(*np.log(SHORTER))))
    return dataclasses.replace(jobs, submit_s=jobs.submit_s * factor, duration_s=jobs.duration_s * factor)


def misjudge(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with wrong estimates of their run times."""
    return add_estimates(jobs, rng.uniform(*ERRORS), int(rng.integers(2**31)))


def _shuffle(jobs: JobList, stretches: np.ndarray) -> JobList:
    """The jobs of these stretches, one after the other."""
    span_s = float(jobs.submit_s[-1]) + 1.0
    stretch = np.floor(jobs.submit_s / span_s * BLOCKS).astype(np.int64)
    rows = [np.flatnonzero(stretch == chosen) for chosen in stretches]
    later_s = [np.full(len(here), (i - stretches[i]) * span_s / BLOCKS) for i, here in enumerate(rows)]
    index = np.concatenate(rows)
    columns = {field.name: getattr(jobs, field.name)[index] for field in dataclasses.fields(JobList)}
    return JobList(**columns | {"submit_s": columns["submit_s"] + np.concatenate(later_s)})


class Plays:
    """One job list under a policy, or under such as differ from it in what is learned; several threads may use it."""

    def __init__(self, policy: Policy, source: Source) -> None:
        """UserError if the compiled event loop lacks what is needed."""
        engine, (cluster, jobs, settings) = CompiledEngine(), source
        player = engine.prepare(policy, PlayedWorld(cluster, [jobs], settings))
        missing = engine.why_not(policy, player.config, player.params)
        if missing is not None:
            raise UserError(f"it is learned in the compiled event loop, but {missing}")
        self._run, self._submit_s = player.prepared(jobs, 0, in_python=False), jobs.submit_s

    def mean_jct_s(self, policy: Policy | None = None) -> float:
        """Mean completion time of all jobs that fit the cluster, under this policy instead of the first one."""
        run = copy.copy(self._run)  # a run's tables are its own once it begins anew; what it reads stays as it is
        run.restart(policy)
        run.go_on()
        return float((run.tables.records["finish_s"] - self._submit_s)[run.home >= 0].mean())


def costs(plays: Sequence[Plays], policies: Sequence[Policy], threads: int) -> Float64[np.ndarray, "lists policies"]:
    """Mean completion times of each list under each policy, in seconds; the same with any number of threads."""
    pairs = [(one, policy) for one in plays for policy in policies]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda pair: pair[0].mean_jct_s(pair[1]), pairs))
    return np.array(found).reshape(len(plays), len(policies))


METRICS_FILE, TIMING_FILE, POLICY_FOLDER = "metrics.jsonl", "timing.jsonl", "policy"
JUDGED_EVERY = 5  # generations
JUDGING = 8  # tells their draws from those of the generations

Report = Callable[[dict[str, float]], None]


class Setting(NamedTuple):
    """What a run learns from, and is judged by."""

    config: EvolvedConfig
    sources: tuple[Source, ...]
    judges: tuple[tuple[Plays, float], ...] = ()  # lists, and the mean completion time of the rule on each
    files: Mapping[str, str] = MappingProxyType({})  # that the run began with (`io.cards.named_files`)


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
    files = cards.named_files(dataclasses.asdict(config))  # before any is read
    sources = sources_of(config)
    with locked(run_dir):
        try:
            _train(_setting(config, sources)._replace(files=files), run_dir, resume, report, command)
        except OSError as error:
            raise UserError(f"run {run_dir}: {error.strerror}; when that is mended, go on with --resume") from error
    return run_dir / POLICY_FOLDER


def _setting(config: EvolvedConfig, sources: tuple[Source, ...]) -> Setting:
    setting, rule, seed = Setting(config, sources), parse(config.rule), config.validation_seed
    judged = setting
    if seed != config.seed and not config.worlds:
        judged = Setting(config, (sources[0]._replace(jobs=scenario_of(config, seed).jobs[0]),))

    def judge(number: int) -> tuple[Plays, float]:
        source = _draw_source(judged, np.random.default_rng((seed, number, JUDGING)), number)
        return _plays(config, source), Plays(rule, source).mean_jct_s()

    return setting._replace(judges=tuple(map(judge, range(config.lists[1]))))


def _draw_source(setting: Setting, rng: np.random.Generator, number: int) -> Source:
    """One of the sources, with the jobs and the rules of a list of that number, at about the load asked for.

    Its jobs are new ones of a synthetic workload, stretches of the past, or a world's in another order. If it is
    learned so, all times are a random factor shorter, two of four lists have wrong estimates, and every other one has
    no more forwards than is usual.
    """
    config, task, (source, *more) = setting.config, setting.config.task, setting.sources
    if more:
        source = setting.sources[rng.integers(len(setting.sources))]
    gpus = total_gpus(source.cluster)
    if config.worlds:
        jobs = reorder(source.jobs, rng)
        jobs = rescale_about(jobs, rng, gpus, config.factor * offered_load(jobs, gpus))
    elif config.workload in SYNTHETIC:
        jobs = rescale_about(scenario_of(config, int(rng.integers(2**31))).jobs[0], rng, gpus, config.load)
    else:
        jobs = draw_list(source.jobs, rng, gpus, config.load)
    jobs = shorten(jobs, rng) if task.shorter else jobs
    jobs = misjudge(jobs, rng) if task.misjudged and number % 4 >= 2 else jobs
    few = task.fewer_forwards and number % 2 == 1
    return Source(source.cluster, jobs, limit_forwards(source.settings) if few else source.settings)


def _plays(config: EvolvedConfig, source: Source) -> Plays:
    return Plays(config.policy_of(config.task.begin), source)


def _train(setting: Setting, run_dir: Path, resume: bool, report: Report | None, command: str) -> None:
    config, digest, began_s = setting.config, _digest(setting.sources), time.perf_counter()
    if resume:
        state, command = restore(run_dir, config, digest)
    else:
        point = config.task.begin
        state, ratio = _judge(setting, EvolvedState(evolution.begin(point), point))
        state = dataclasses.replace(state, first_ratio=ratio)
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
    plays = [_plays(config, _draw_source(setting, rng, i)) for i in range(config.lists[0])]
    found = costs(plays, [config.policy_of(point) for point in points], side_by_side())
    search = evolution.move(search, directions, found, task.strategy)
    means = found.mean(0)
    row = {"generation": search.generation, "jct_mean_s": float(means.mean()), "jct_least_s": float(means.min())}
    return dataclasses.replace(state, search=search), row


def _judge(setting: Setting, state: EvolvedState) -> tuple[EvolvedState, float]:
    """The state, its average as the best point if it is, and the average's completion times over those of the rule."""
    policy = setting.config.policy_of(state.search.average)
    found = costs([plays for plays, _ in setting.judges], [policy], side_by_side())[:, 0]
    logs = [math.log(found_s / reference_s) for found_s, (_, reference_s) in zip(found, setting.judges)]
    ratio = math.exp(sum(logs) / len(logs))
    if state.best_ratio is not None and ratio >= state.best_ratio:
        return state, ratio
    best = {"best": state.search.average, "best_ratio": ratio, "best_generation": state.search.generation}
    return dataclasses.replace(state, **best), ratio


def _write_policy(setting: Setting, run_dir: Path, state: EvolvedState, command: str) -> None:
    config, rows = setting.config, read_rows(run_dir / METRICS_FILE)
    first = [] if state.first_ratio is None else [[0, state.first_ratio]]
    card = {
        "learned_from": statistics(config, setting.sources),
        "config": dataclasses.asdict(config),
        "generation": state.best_generation,
        "ratio": state.best_ratio,
        "curve": first + [[row["generation"], row["ratio_to_rule"]] for row in rows if "ratio_to_rule" in row],
        "commands": {"train": command} if command else {},
        "limits": limits(config),
        "files": dict(setting.files),
    }
    save_policy(run_dir / POLICY_FOLDER, config.task.what_of(state.best), card)


def _digest(sources: Sequence[Source]) -> str:
    """Of all that the job lists, clusters and laws say."""
    found = hashlib.sha256()
    for cluster, jobs, settings in sources:
        columns = (getattr(jobs, field.name) for field in dataclasses.fields(JobList))
        for array in (*columns, *jax.tree.leaves(cluster)):
            found.update(np.ascontiguousarray(array).tobytes())
        found.update(cards.digest(str(settings.interference)).encode())
    return found.hexdigest()
