"""Figures of one run: completion times, queueing, utilisation, fairness, and the account of every job.

What is known of a job is when it was submitted, started first and finished, and for how long it held GPUs. Of a job
that was stopped on the way it is taken that it held them evenly from its first start to its finish.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from jaxsched.env.state import FINISHED, RUNNING, WAITING
from jaxsched.evaluation.timelines import steps
from jaxsched.simulation.outcome import REJECTED, Outcome
from jaxsched.workload.jobs import ENDS

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
    goodput: float  # this and all that follows: see `evaluation.metrics`
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


def over_arrivals(result: Outcome, total_gpus: int) -> tuple[float, float, float]:
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


def goodput(result: Outcome) -> float:
    """GPU time of useful work over GPU time held: the durations of jobs that users did not cancel and that ran through.

    Slowdowns, restarts, work done twice, and jobs that were cancelled or failed in the end make it less than 1.
    """
    done, jobs = result.finished, result.jobs
    useful = done & (jobs.ended == 0)
    return float(jobs.gpu_demand[useful] @ jobs.duration_s[useful] / (jobs.gpu_demand[done] @ result.run_s[done]))


def tenant_shares(result: Outcome) -> dict[str, float]:
    """The share of all GPU time held that each tenant had, by its number."""
    done, jobs = result.finished, result.jobs
    held = np.bincount(jobs.tenant[done], jobs.gpu_demand[done] * result.run_s[done])
    return {str(tenant): float(held[tenant] / held.sum()) for tenant in np.unique(jobs.tenant[done])}


def by_end(result: Outcome) -> dict[str, dict[str, float]]:
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
