"""What finished jobs tell (section 9 of `docs/semantics.md`, "History"): whole numbers and single 32-bit operations."""

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from tests.oracle.cluster import Job

if TYPE_CHECKING:
    from tests.oracle.state import State

BINS = 32


@functools.cache
def steps(x: np.float32) -> int:
    """How many of 2^(1/16), 2^(2/16), ... are at most x."""
    return sum(bool(np.float32(2 ** (i / 16)) <= x) for i in range(1, 433))


@functools.cache
def served_bin(x: np.float32) -> int:
    """The bin of so many GPU-seconds."""
    return sum(bool(np.float32(64 * 2**i) <= x) for i in range(BINS - 1))


def classes(job: Job) -> list[tuple]:
    """From all jobs to those of the same size, tenant and model."""
    size = min(math.ceil(math.log2(job.W * job.g)), 15)
    return [(), (size,), (size, job.tenant), (size, job.tenant, job.model)]


def gpus(job: Job) -> np.float32:
    """GPUs that a job reserves."""
    return np.float32(job.W * job.g) * (np.float32(job.milli) * np.float32(0.001))


def expected_s(finished: list[Job], job: Job) -> float:
    """The run time that the finished jobs let one expect."""
    mean = 64 * 189
    for k, own in enumerate(classes(job)):
        alike = [steps(np.float32(other.duration_s)) for other in finished if classes(other)[k] == own]
        mean = (64 * sum(alike) + 8 * mean) // (len(alike) + 8)
    return float(np.float32(2 ** (mean / 1024)))


def estimate_s(state: "State", j: int, ran: int) -> float:
    """Of a job that has held GPUs for so many intervals."""
    finished = [state.jobs[r.job] for r, _ in state.finished]
    ran_s = np.float32(ran) * np.float32(state.interval_s)
    return max(expected_s(finished, state.jobs[j]), float(np.float32(2) * ran_s))


def gittins_level(state: "State", attained: float) -> int:
    """Of a job that has received so many GPU-seconds."""
    count = [1] * BINS
    for r, _ in state.finished:
        job = state.jobs[r.job]
        count[served_bin(np.float32(job.duration_s) * gpus(job))] += 1
    own = served_bin(np.float32(attained))
    best = np.float32(np.inf)
    for k in range(1, 9):
        inside = count[own : own + k]
        cost = sum(c * (3 * 2**i - 2) for i, c in enumerate(inside)) + sum(count[own + k :]) * 2 * (2**k - 1)
        best = min(best, np.float32(cost) / np.float32(sum(inside)))
    return 16 * own + steps(best)


def themis_level(state: "State", j: int, ran: int) -> int:
    """The lower, the longer a job has waited for its size."""
    job = state.jobs[j]
    arrival = math.ceil(job.submit_s / state.interval_s - 1)
    while arrival * state.interval_s < job.submit_s:
        arrival += 1
    waited = np.float32(state.boundary - arrival - ran)
    ratio = np.float32(1) + waited * np.float32(state.interval_s) / np.float32(state.estimate_s(j))
    return -steps(ratio)
