"""Figures of one run: completion times, queueing, utilisation, and the account of every job."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxsched.env.state import FINISHED, RUNNING, WAITING
from jaxsched.evaluation.usage import finish_time_fairness, goodput, over_arrivals
from jaxsched.simulation.outcome import REJECTED, Outcome

UNSTABLE_SHARE, UNSTABLE_JOBS = 0.1, 10


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


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Figures of one run; NaN in a run that was cut off: the jobs that had finished by then are the lucky ones."""

    jct_mean_s: float
    jct_p50_s: float
    jct_p95_s: float
    jct_p99_s: float
    queue_mean_s: float
    makespan_s: float
    gpu_utilisation: float
    slowdown_mean: float
    stops_mean: float  # per job
    lost_gpu_h: float  # to restarts and work done twice
    failures_mean: float  # stops by failures of servers, per job
    restarts_gpu_h: float  # of these, to restarts
    failures_gpu_h: float  # and to work done twice after failures
    goodput: float  # this and all that follows: see `evaluation.usage`
    gpu_utilisation_arrivals: float
    queued_mean: float
    queued_max: float
    fairness_p95: float
    fairness_max: float


def job_counts(result: Outcome) -> JobCounts:
    """The account of all jobs that have arrived."""
    finished, running, queued, rejected = (
        int((result.status == code).sum()) for code in (FINISHED, RUNNING, WAITING, REJECTED)
    )
    return JobCounts(finished + running + queued + rejected, finished, running, queued, rejected)


def metrics(result: Outcome, total_gpus: int) -> Metrics:
    """The figures of `result` over its finished jobs, on a cluster of `total_gpus` GPUs.

    - JCT = finish - submit; percentiles interpolate linearly between jobs;
    - queueing time = start - submit; makespan = last finish - first submit of the jobs that were not rejected;
    - GPU utilisation = GPU-seconds held (GPUs * (finish - start)) / (total_gpus * makespan), fractions as such;
    - slowdown = (finish - start) / duration, so 1 is the ideal, uncontended placement; queueing is not part of it.

    Where jobs are stopped, queueing is all the time without GPUs, and finish - start the time with them.
    """
    done = result.finished
    if result.cut_off is not None or not done.any():
        return Metrics(*[math.nan] * len(dataclasses.fields(Metrics)))
    jct, jobs = result.jct_s[done], result.jobs
    makespan = float(result.finish_s[done].max() - jobs.submit_s[done].min())
    held = float(jobs.gpu_demand[done] @ result.run_s[done])
    again = result.interruptions
    gpus = jobs.gpu_demand[done]
    restarts_s = 0.0 if again is None else float(gpus @ again.restarting_s[done])
    fallen_s = 0.0 if again is None else float(gpus @ again.fallen_s[done])
    lost_s = 0.0 if again is None else restarts_s + fallen_s + float(gpus @ again.lost_s[done])
    used, queued_mean, queued_max = over_arrivals(result, total_gpus)
    fairness = finish_time_fairness(result, total_gpus)
    p50, p95, p99 = np.percentile(jct, [50, 95, 99])
    return Metrics(
        jct_mean_s=float(jct.mean()),
        jct_p50_s=float(p50),
        jct_p95_s=float(p95),
        jct_p99_s=float(p99),
        queue_mean_s=float(result.queue_s[done].mean()),
        makespan_s=makespan,
        gpu_utilisation=held / (total_gpus * makespan),
        slowdown_mean=float((result.run_s[done] / jobs.duration_s[done]).mean()),
        stops_mean=0.0 if again is None else float(again.stops[done].mean()),
        lost_gpu_h=lost_s / 3600.0,
        failures_mean=0.0 if again is None else float(again.falls[done].mean()),
        restarts_gpu_h=restarts_s / 3600.0,
        failures_gpu_h=fallen_s / 3600.0,
        goodput=goodput(result),
        gpu_utilisation_arrivals=used,
        queued_mean=queued_mean,
        queued_max=queued_max,
        fairness_p95=float(np.percentile(fairness, 95)),
        fairness_max=float(fairness.max()),
    )


def waiting_at(result: Outcome, time_s: float) -> int:
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
    last, half = waiting_at(result, submit[-1]), waiting_at(result, submit[(len(submit) - 1) // 2])
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
