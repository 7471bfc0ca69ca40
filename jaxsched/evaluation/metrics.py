"""Figures of one run, all in one list: a new one is a line of `METRICS`, and nothing else; and confidence intervals.

Tables, JSON, saved results and pages have what stands there. Beside them: the account of every job, and what a reader
must know. What is known of a job is when it was submitted, started first and finished, and for how long it held GPUs.
Of a job that was stopped on the way it is taken that it held them evenly from its first start to its finish. Intervals
are over independent seeds, and over the correlated jobs of one run.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Num

from jaxsched.env.state import FINISHED, RUNNING, WAITING
from jaxsched.evaluation.timelines import steps
from jaxsched.simulation.outcome import REJECTED, Outcome
from jaxsched.workload.jobs import ENDS

UNSTABLE_SHARE, UNSTABLE_JOBS = 0.1, 10


@dataclasses.dataclass(frozen=True)
class FinishedJobs:
    """The finished jobs of a run on a cluster of `total_gpus` GPUs, at least one: what `METRICS` look at."""

    result: Outcome
    total_gpus: int

    @functools.cached_property
    def jct_s(self) -> Float64[np.ndarray, "J"]:
        """Finish - submit."""
        return self.result.jct_s[self.result.finished]

    @functools.cached_property
    def gpus(self) -> Float64[np.ndarray, "J"]:
        """What each holds, fractions as such."""
        return self.result.jobs.gpu_demand[self.result.finished]

    @functools.cached_property
    def makespan_s(self) -> float:
        """Last finish - first submit."""
        done = self.result.finished
        return float(self.result.finish_s[done].max() - self.result.jobs.submit_s[done].min())

    @functools.cached_property
    def over_arrivals(self) -> tuple[float, float, float]:
        """See `measure_arrivals`."""
        return measure_arrivals(self.result, self.total_gpus)

    @functools.cached_property
    def fairness(self) -> Float64[np.ndarray, "J"]:
        """See `finish_time_fairness`."""
        return finish_time_fairness(self.result, self.total_gpus)

    def stopped(self, column: str) -> Num[np.ndarray, "J"]:
        """A column of `Outcome.interruptions`; zeros where jobs are not stopped."""
        again = self.result.interruptions
        return np.zeros(len(self.gpus)) if again is None else getattr(again, column)[self.result.finished]

    def stopped_gpu_s(self, *columns: str) -> float:
        """GPU-seconds of such columns together."""
        return sum(float(self.gpus @ self.stopped(column)) for column in columns)


class Metric(NamedTuple):
    """A figure of one run, as a number; a policy's is the mean over its runs."""

    name: str  # in JSON and in saved results
    of: Callable[[FinishedJobs], float]
    unit: str  # s and share are shown as such: the former in the table's unit, the latter in per cent
    header: str = ""  # of its column; without one it stands in JSON only
    swept: str = ""  # of its column in the tables of sweeps, likewise


# JCT = finish - submit; percentiles interpolate linearly between jobs. Queueing time = start - submit. Where jobs are
# stopped, queueing is all the time without GPUs, and finish - start the time with them.
METRICS = (
    Metric("jct_mean_s", lambda run: float(run.jct_s.mean()), "s", "mean JCT", "JCT (s)"),
    Metric("jct_p50_s", lambda run: float(np.percentile(run.jct_s, 50)), "s", "median"),
    Metric("jct_p95_s", lambda run: float(np.percentile(run.jct_s, 95)), "s", "p95"),
    Metric("jct_p99_s", lambda run: float(np.percentile(run.jct_s, 99)), "s", "p99", "p99 (s)"),
    Metric("queue_mean_s", lambda run: float(run.result.queue_s[run.result.finished].mean()), "s", "queueing"),
    Metric("makespan_s", lambda run: run.makespan_s, "s", "makespan"),
    Metric("gpu_utilisation", lambda run: utilisation(run), "share", "GPU use"),
    Metric("slowdown_mean", lambda run: slowdown(run), "", "slowdown"),
    Metric("stops_mean", lambda run: float(run.stopped("stops").mean()), "per job"),
    Metric(  # to restarts and work done twice
        "lost_gpu_h", lambda run: run.stopped_gpu_s("restarting_s", "fallen_s", "lost_s") / 3600.0, "GPU h"
    ),
    Metric("failures_mean", lambda run: float(run.stopped("failure_restarts").mean()), "per job"),
    Metric("restarts_gpu_h", lambda run: run.stopped_gpu_s("restarting_s") / 3600.0, "GPU h"),  # of what is lost
    Metric("failures_gpu_h", lambda run: run.stopped_gpu_s("fallen_s") / 3600.0, "GPU h"),  # done twice after failures
    Metric("goodput", lambda run: goodput(run.result), "share"),
    Metric("gpu_utilisation_arrivals", lambda run: run.over_arrivals[0], "share"),
    Metric("queued_mean", lambda run: run.over_arrivals[1], "jobs"),
    Metric("queued_max", lambda run: run.over_arrivals[2], "jobs"),
    Metric("deadlines_met", lambda run: deadlines(run.result)[0], "share"),
    Metric("late_mean_s", lambda run: deadlines(run.result)[1], "s"),
    Metric("fairness_p95", lambda run: float(np.percentile(run.fairness, 95)), ""),
    Metric("fairness_max", lambda run: float(run.fairness.max()), ""),
)
COLUMNS = tuple(metric for metric in METRICS if metric.header)
SWEPT = tuple(metric for metric in METRICS if metric.swept)
_Figures: Any = dataclasses.make_dataclass("_Figures", [(metric.name, float) for metric in METRICS], frozen=True)


class Metrics(_Figures):
    """A field for each of `METRICS`; NaN in a run that was cut off: the jobs that had finished are the lucky ones."""


def metrics(result: Outcome, total_gpus: int) -> Metrics:
    """The figures of a run over its finished jobs.

    Args:
        result: one policy on one job list.
        total_gpus: of the cluster.
    """
    if result.cut_off is not None or not result.finished.any():
        return Metrics(*[math.nan] * len(METRICS))
    run = FinishedJobs(result, total_gpus)
    return Metrics(*(metric.of(run) for metric in METRICS))


def utilisation(run: FinishedJobs) -> float:
    """GPU-seconds held (GPUs x (finish - start)) / (total GPUs x makespan)."""
    held = float(run.gpus @ run.result.run_s[run.result.finished])
    return held / (run.total_gpus * run.makespan_s)


def slowdown(run: FinishedJobs) -> float:
    """The mean of (finish - start) / duration: 1 is the ideal, uncontended placement; queueing is not part of it."""
    done = run.result.finished
    return float((run.result.run_s[done] / run.result.jobs.duration_s[done]).mean())


def goodput(result: Outcome) -> float:
    """GPU time of useful work over GPU time held: the durations of jobs that users did not cancel and that ran through.

    Slowdowns, restarts, work done twice, and jobs that were cancelled or failed in the end make it less than 1.
    """
    done, jobs = result.finished, result.jobs
    useful = done & (jobs.ended == 0)
    return float(jobs.gpu_demand[useful] @ jobs.duration_s[useful] / (jobs.gpu_demand[done] @ result.run_s[done]))


def deadlines(result: Outcome) -> tuple[float, float]:
    """Of the jobs that have a deadline, the share that met it, and how late the finished ones were on average.

    A job that was rejected has not met it. One that was in time is 0 s late. NaN where no job has a deadline.
    """
    due_s, done = result.jobs.due_s, result.finished
    has = np.isfinite(due_s)
    if not (has & done).any():
        return (0.0 if has.any() else math.nan), math.nan
    late_s = np.maximum(result.jct_s[has & done] - due_s[has & done], 0.0)
    return float((late_s == 0.0).sum() / has.sum()), float(late_s.mean())


def measure_arrivals(result: Outcome, total_gpus: int) -> tuple[float, float, float]:
    """From the first to the last submission: the share of GPU time held, and the mean and the most jobs queued.

    NaN where all jobs are submitted at once.
    """
    done, jobs = result.finished, result.jobs
    submit, start, finish = jobs.submit_s[done], result.start_s[done], result.finish_s[done]
    first, last = float(submit.min()), float(submit.max())
    if last <= first:
        return np.nan, np.nan, np.nan
    held = np.clip(result.run_s[done] / np.maximum(finish - start, 1e-12), 0.0, 1.0)
    held[held > 1 - 1e-9] = 1.0
    gpus = steps((start, finish, jobs.gpu_demand[done] * held))
    queued = steps((submit, start, np.ones(len(submit))), (start, finish, 1 - held))
    return gpus.mean(first, last) / total_gpus, queued.mean(first, last), queued.highest(first, last)


def finish_time_fairness(result: Outcome, total_gpus: int) -> Float64[np.ndarray, "J"]:
    """`rho` of every finished job: its JCT over that alone on a fair share of the cluster; above 1 is unfair.

    As Themis has it (Mahajan et al., NSDI 2020): the share is 1/N of the GPUs, N the number of jobs in the system. Ours
    is N's mean over the job's stay, itself included. Alone a job takes its duration, and longer in proportion if its
    gang is wider than the share (an assumption; it needs no profile of the job at other widths).
    """
    done, jobs = result.finished, result.jobs
    submit, finish = jobs.submit_s[done], result.finish_s[done]
    present = steps((submit, finish, np.ones(len(submit))))
    jct = finish - submit
    others = (present.integral(finish) - present.integral(submit)) / jct
    return jct / (jobs.duration_s[done] * np.maximum(1.0, others * jobs.gpu_demand[done] / total_gpus))


def tenant_shares(result: Outcome) -> dict[str, float]:
    """The share of all GPU time held that each tenant had, by its name, in order of their numbers."""
    done, jobs = result.finished, result.jobs
    held = np.bincount(jobs.tenant[done], jobs.gpu_demand[done] * result.run_s[done])
    tenants, first = np.unique(jobs.tenant[done], return_index=True)
    names = jobs.tenant_name[done][first]
    return {str(name): float(held[tenant] / held.sum()) for tenant, name in zip(tenants, names)}


def group_by_end(result: Outcome) -> dict[str, dict[str, float]]:
    """Jobs, mean JCT and GPU hours held of those that completed, were cancelled and failed, as the trace says."""
    jobs, figures = result.jobs, {}
    for code, name in enumerate(ENDS):
        some = result.finished & (jobs.ended == code)
        if some.any():
            hours = float(jobs.gpu_demand[some] @ result.run_s[some]) / 3600
            figures[name] = {"jobs": float(some.sum()), "jct_mean_s": float(result.jct_s[some].mean()), "gpu_h": hours}
    return figures


def mean_of(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over those that have it."""
    names = dict.fromkeys(name for each in figures for name in each)
    return {name: float(np.mean([each[name] for each in figures if name in each])) for name in names}


@dataclasses.dataclass(frozen=True)
class JobCounts:
    """arrived = finished + running + queued + rejected."""

    arrived: int
    finished: int
    running: int
    queued: int
    rejected: int

    def __add__(self, other: "JobCounts") -> "JobCounts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return JobCounts(*(one + two for one, two in pairs))


def job_counts(result: Outcome) -> JobCounts:
    """The account of all jobs that have arrived."""
    finished, running, queued, rejected = (
        int((result.status == code).sum()) for code in (FINISHED, RUNNING, WAITING, REJECTED)
    )
    return JobCounts(finished + running + queued + rejected, finished, running, queued, rejected)


def count_waiting(result: Outcome, time_s: float) -> int:
    """Jobs that were submitted by `time_s` and had not started then."""
    submitted = (result.jobs.submit_s <= time_s) & (result.status != REJECTED)
    return int((submitted & ~(result.start_s <= time_s)).sum())


def unstable(result: Outcome) -> str | None:
    """Why the policy did not keep up with the arrivals, if so.

    A queue that grows as long as jobs arrive gives a mean JCT that says more about the trace's length than about the
    policy. Our test of it: more than 10% of the jobs, and more than 10 jobs, waited when the last one arrived, and more
    than 1.5 times as many as when half of them had.
    """
    submit = result.jobs.submit_s
    last, half = count_waiting(result, submit[-1]), count_waiting(result, submit[(len(submit) - 1) // 2])
    if last <= max(UNSTABLE_SHARE * len(submit), UNSTABLE_JOBS) or last <= 1.5 * half:
        return None
    return f"{last:,} of {len(submit):,} jobs were waiting when the last one arrived ({half:,} at half time)"


def notes(outcomes: Sequence[Outcome], seeds: Sequence[int]) -> list[str]:
    """What a reader must know beside a policy's figures; there is one outcome per seed."""

    def which(some: Sequence[int]) -> str:
        return "" if len(outcomes) == 1 else f" on {len(some)} of {len(outcomes)} seeds ({', '.join(map(str, some))})"

    found = []
    cut = {seed: result for seed, result in zip(seeds, outcomes, strict=True) if result.cut_off is not None}
    if cut:
        counts = [job_counts(result) for result in cut.values()]
        left = sum(count.arrived - count.finished - count.rejected for count in counts)
        later = sum(len(result.jobs) for result in cut.values()) - sum(count.arrived for count in counts)
        still = f"{left:,} jobs had not finished" + (f" and {later:,} had not arrived" if later else "")
        why = next(iter(cut.values())).cut_off
        found.append(f"cut off{which([*cut])} {why}: {still}, so there are no averages")
    growing = {seed: why for seed, result in zip(seeds, outcomes) if seed not in cut and (why := unstable(result))}
    if growing:
        found.append(f"unstable{which([*growing])}: {next(iter(growing.values()))}")
    illegal = sum(result.stats.illegal for result in outcomes)
    if illegal:
        found.append(f"{illegal:,} illegal actions counted as waiting")
    return found


# Two-sided 95% quantiles of Student's t for 1 to 10 degrees of freedom; above, the expansion in `t_quantile`.
_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z95 = 1.959964
BATCHES = 20
SMALLEST_BATCH = 10  # jobs; with fewer there is no interval

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


def t_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t (Abramowitz & Stegun 26.7.5 above 10 degrees of freedom, to 2e-4)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return sum(term / freedom**power for power, term in enumerate(terms))


def mean_interval(values: Float64[np.ndarray, "n"]) -> Interval:
    """95% t interval of the mean of independent `values`; NaN for fewer than two."""
    if len(values) < 2:
        return UNKNOWN
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def batch_interval(values: Float64[np.ndarray, "n"]) -> Interval:
    """95% interval of the mean of correlated `values`, in their order, by 20 batch means.

    Neighbouring jobs wait in the same queue, so that their JCTs are far from independent: the values are cut into 20
    consecutive batches, whose means are treated as independent (Law & Kelton). NaN for fewer than 200 values. Where
    congestion lasts longer than a batch the interval is still too narrow: seeds say more.
    """
    if len(values) < BATCHES * SMALLEST_BATCH:
        return UNKNOWN
    means = np.array([batch.mean() for batch in np.array_split(values, BATCHES)])
    middle = float(np.mean(values))
    half = t_quantile(BATCHES - 1) * float(np.std(means, ddof=1)) / math.sqrt(BATCHES)
    return middle - half, middle + half


RESAMPLES = 2000  # of a bootstrap


def interquartile_mean(scores: Float64[np.ndarray, "runs tasks"]) -> float:
    """The mean of the middle half of all scores: a quarter of them, rounded down, is cut off at either end.

    Less moved by single runs than the mean, and of more of them than the median (Agarwal et al., NeurIPS 2021).
    """
    ordered = np.sort(scores, axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def probability_of_improvement(
    one: Float64[np.ndarray, "runs tasks"], other: Float64[np.ndarray, "runs tasks"]
) -> float:
    """How likely a run of the one is below a run of the other on the same task, ties by half, over all tasks alike.

    That is the mean over tasks of the Mann-Whitney statistic over the number of pairs (Agarwal et al., NeurIPS 2021).
    """
    pairs = one[:, None], other[None]
    return float(((pairs[0] < pairs[1]) + 0.5 * (pairs[0] == pairs[1])).mean())


def bootstrap_interval(
    statistic: Callable[..., float], *samples: Float64[np.ndarray, "runs tasks"], seed: int = 0
) -> Interval:
    """95% percentile interval of a statistic of samples, whose runs are drawn anew with replacement, task by task.

    NaN where a sample has fewer than two runs. With few runs such an interval is too narrow.
    """
    if any(len(sample) < 2 for sample in samples):
        return UNKNOWN
    rng, found = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        rows = [rng.integers(len(sample), size=sample.shape) for sample in samples]
        found.append(
            statistic(*(np.take_along_axis(sample, row, 0) for sample, row in zip(samples, rows, strict=True)))
        )
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
