"""Every policy on the same jobs: the one function behind `jaxsched evaluate`, `simulate` and `quickstart`."""

import dataclasses
import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np

from jaxsched.bounds.lower_bound import jct_lower_bound_s
from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.evaluation.contenders import Contender, contenders
from jaxsched.evaluation.metrics import JobCounts, Metrics, job_counts, metrics, notes
from jaxsched.evaluation.statistics import UNKNOWN, Interval, batch_interval, mean_interval
from jaxsched.simulation.engines.compiled.engine import plays, rollout_natively
from jaxsched.simulation.engines.jax.run import Report, prepare, rollout
from jaxsched.simulation.outcome import Outcome, rejections
from jaxsched.simulation.settings import Settings, compact_tenants
from jaxsched.versions import versions
from jaxsched.workload.jobs import JobList


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy over all seeds: every figure is the mean of the seeds' figures, NaN if a run was cut off."""

    name: str
    baseline: bool  # hand-written
    figures: Metrics
    jct_ci95_s: Interval  # of the mean JCT; over seeds, or of a single run over batches of jobs
    ratio: float  # mean over seeds of JCT / JCT of the best baseline on the same jobs
    ratio_ci95: Interval  # over seeds
    gap: float  # mean over seeds of JCT / lower bound on any policy's JCT on the same jobs
    jobs: JobCounts  # summed over seeds
    rejections: dict[str, int]  # jobs by reason
    notes: list[str]
    outcomes: list[Outcome]  # one per seed


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Policies on the same jobs, in the order they were named."""

    rows: list[Row]
    bound_s: float  # lower bound on any policy's mean JCT, mean over seeds (docs/bound.md)
    config: dict[str, Any]
    versions: dict[str, str]

    @property
    def best_baseline(self) -> Row | None:
        """The hand-written policy of least mean JCT; None if none ran to its end."""
        return best_baseline(self.rows)

    @property
    def jobs(self) -> JobCounts:
        """The account of the policy that left most jobs unfinished; of each of them where all finished all."""
        return min((row.jobs for row in self.rows), key=lambda jobs: jobs.finished)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `jaxsched evaluate --json` writes them; null where a figure does not exist."""
        policies = {
            row.name: {
                "jct_mean_s": row.figures.jct_mean_s,
                "jct_ci95_s": _known(row.jct_ci95_s),
                "jct_p50_s": row.figures.jct_p50_s,
                "jct_p95_s": row.figures.jct_p95_s,
                "jct_p99_s": row.figures.jct_p99_s,
                "queue_mean_s": row.figures.queue_mean_s,
                "makespan_s": row.figures.makespan_s,
                "gpu_utilisation": row.figures.gpu_utilisation,
                "slowdown_mean": row.figures.slowdown_mean,
                "ratio_to_best_baseline": row.ratio,
                "gap_to_bound": row.gap,
                "jobs": dataclasses.asdict(row.jobs),
            }
            for row in self.rows
        }
        return _plain(
            {
                "jobs": dataclasses.asdict(self.jobs),
                "bound_s": self.bound_s,
                "policies": policies,
                "config": self.config | {"runs": {row.name: _runs(row) for row in self.rows}},
                "versions": self.versions,
            }
        )

    def dumps(self) -> str:
        """`to_json` as text."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"


def compare(
    cluster: Cluster,
    jobs_by_seed: Sequence[JobList],
    policies: Sequence[str | Contender],
    settings: Settings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Comparison:
    """Run every policy on every job list until all jobs have finished.

    Args:
        jobs_by_seed: the same lists for all policies (common random numbers), one per seed.
        policies: names of hand-written ones, folders of checkpoints, or `Contender`s.
        config: further entries of the result's `config`.
        report: called with the progress of a run, possibly from several threads at once.

    UserError on an unknown policy, or if no job fits the cluster.
    """
    settings = settings or Settings()
    everyone = contenders(policies)
    job_lists = compact_tenants(jobs_by_seed)
    results = _run_all(everyone, cluster, job_lists, settings, report)
    gpus = total_gpus(cluster)
    bounds = np.array([jct_lower_bound_s(cluster, jobs, settings.interval_s) for jobs in job_lists])
    rows = [_row(one, results[one.name], gpus, bounds) for one in everyone]
    settled = dataclasses.asdict(settings)
    return Comparison(_with_ratios(rows), float(bounds.mean()), dict(config or {}) | settled, versions())


def best_baseline(rows: Sequence[Row]) -> Row | None:
    """See `Comparison.best_baseline`."""
    known = [row for row in rows if row.baseline and not math.isnan(row.figures.jct_mean_s)]
    return min(known, key=lambda row: row.figures.jct_mean_s, default=None)


def _run_all(
    everyone: Sequence[Contender],
    cluster: Cluster,
    job_lists: Sequence[JobList],
    settings: Settings,
    report: Report | None,
) -> dict[str, list[Outcome]]:
    """Outcomes by policy, in the order of the seeds. Runs go on in threads: XLA works without Python's lock."""
    on_cpu = jax.default_backend() == "cpu"
    lanes = (len(job_lists) > 1 and not on_cpu) if settings.lanes is None else settings.lanes
    threads = (min(2, os.cpu_count() or 1) if on_cpu else 1) if settings.threads is None else settings.threads
    size = max(len(jobs) for jobs in job_lists)
    parts = [range(len(job_lists))] if lanes else [range(seed, seed + 1) for seed in range(len(job_lists))]
    prepared = {one.name: prepare(one, cluster, job_lists, settings, lanes=lanes) for one in everyone}
    native = {name for name, (program, _) in prepared.items() if plays(program.contender, program.config, settings)}
    stop = threading.Event()

    def run(name: str, part: range) -> list[Outcome]:
        program, params = prepared[name]
        lists = [job_lists[seed] for seed in part]
        if name not in native:
            return rollout(program, params, lists, settings, size=size, first_seed=part[0], report=report, stop=stop)
        one, config = program.contender, program.config
        return [
            rollout_natively(one, config, params, jobs, settings, seed=seed, report=report, stop=stop)
            for seed, jobs in zip(part, lists, strict=True)
        ]

    results: dict[str, dict[int, Outcome]] = {one.name: {} for one in everyone}
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        tasks = {pool.submit(run, one.name, part): (one.name, part) for part in parts for one in everyone}
        try:
            for task in as_completed(tasks):
                name, part = tasks[task]
                results[name].update(zip(part, task.result()))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: [by_seed[seed] for seed in sorted(by_seed)] for name, by_seed in results.items()}


def _row(one: Contender, outcomes: list[Outcome], gpus: int, bounds_s: np.ndarray) -> Row:
    """The policy's figures; the ratios come later. `bounds_s: float64[S]` of the seeds."""
    by_seed = [metrics(result, gpus) for result in outcomes]
    figures = Metrics(*np.mean([dataclasses.astuple(seed) for seed in by_seed], axis=0).tolist())
    if math.isnan(figures.jct_mean_s):
        interval = UNKNOWN
    elif len(by_seed) > 1:
        interval = mean_interval(np.array([seed.jct_mean_s for seed in by_seed]))
    else:
        interval = batch_interval(outcomes[0].jct_s[outcomes[0].finished])
    counts = [job_counts(result) for result in outcomes]
    lost: dict[str, int] = {}
    for result in outcomes:
        for reason, count in rejections(result).items():
            lost[reason] = lost.get(reason, 0) + count
    total = counts[0]
    for count in counts[1:]:
        total = total + count
    return Row(
        name=one.name,
        baseline=one.baseline,
        figures=figures,
        jct_ci95_s=interval,
        ratio=math.nan,
        ratio_ci95=UNKNOWN,
        gap=float(np.mean([seed.jct_mean_s for seed in by_seed] / bounds_s)),
        jobs=total,
        rejections=lost,
        notes=notes(outcomes),
        outcomes=outcomes,
    )


def _with_ratios(rows: list[Row]) -> list[Row]:
    best = best_baseline(rows)
    if best is None:
        return rows
    reference = np.array([result.jct_s[result.finished].mean() for result in best.outcomes])
    done = []
    for row in rows:
        if math.isnan(row.figures.jct_mean_s):
            done.append(row)
            continue
        ratios = np.array([result.jct_s[result.finished].mean() for result in row.outcomes]) / reference
        done.append(dataclasses.replace(row, ratio=float(ratios.mean()), ratio_ci95=mean_interval(ratios)))
    return done


def _runs(row: Row) -> dict[str, Any]:
    """What the report says of a policy beside its figures."""
    stats = [dataclasses.asdict(result.stats) for result in row.outcomes]
    return {
        "hand_written": row.baseline,
        "ratio_ci95": _known(row.ratio_ci95),
        "rejected_because": row.rejections,
        "notes": row.notes,
        "seeds": stats,
    }


def _known(interval: Interval) -> list[float] | None:
    """[low, high], or None where there is no interval."""
    return None if math.isnan(interval[0]) else list(interval)


def _plain(value: Any) -> Any:
    """The same with NaN and infinities as None, which JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
