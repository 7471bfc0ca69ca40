"""How GPUs were used and shared out while jobs arrived, and who was treated unfairly. All of runs that are complete.

What is known of a job is when it was submitted, started first and finished, and for how long it held GPUs. Of a job
that was stopped on the way it is taken that it held them evenly from its first start to its finish.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from jaxsched.simulation.outcome import Outcome
from jaxsched.workload.jobs import ENDS


@dataclasses.dataclass(frozen=True)
class Steps:
    """A number that changes at certain times: `height[i]` from `at_s[i]` on, 0 before."""

    at_s: Float64[np.ndarray, "N"]  # ascending
    height: Float64[np.ndarray, "N"]

    def integral(self, until_s: Float64[np.ndarray, "M"]) -> Float64[np.ndarray, "M"]:
        """The integral from the beginning up to each of these times."""
        before = np.concatenate([[0.0], np.cumsum(self.height[:-1] * np.diff(self.at_s))])
        i = np.maximum(np.searchsorted(self.at_s, until_s, side="right") - 1, 0)
        return before[i] + self.height[i] * np.maximum(until_s - self.at_s[i], 0.0)

    def mean(self, from_s: float, to_s: float) -> float:
        """The mean height between two times in seconds, the second the later."""
        return float(np.diff(self.integral(np.array([from_s, to_s])))[0] / (to_s - from_s))

    def highest(self, from_s: float, to_s: float) -> float:
        """The greatest height between two times in seconds, both included."""
        first = max(int(np.searchsorted(self.at_s, from_s, side="right")) - 1, 0)
        return float(self.height[first : max(int(np.searchsorted(self.at_s, to_s, side="right")), first + 1)].max())


def steps(*parts: tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]) -> Steps:
    """The sum of pieces (from, to, height), times in seconds; what is NaN never happens."""
    times = np.concatenate([np.concatenate([begin, end]) for begin, end, _ in parts])
    jumps = np.concatenate([np.concatenate([height, -height]) for _, _, height in parts])
    happens = ~np.isnan(times)
    at_s, place = np.unique(times[happens], return_inverse=True)
    return Steps(at_s, np.cumsum(np.bincount(place, jumps[happens])))


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
