"""What became of every job of a run, in exact seconds on the host."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int16, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import FINISHED, RUNNING, State
from jaxsched.files import atomic_path
from jaxsched.simulation.settings import Settings
from jaxsched.workload.catalogue import BUILT_IN
from jaxsched.workload.jobs import WHOLE, JobList

STATUS = ("queued", "running", "finished", "rejected", "not arrived")
REJECTED, NOT_ARRIVED = 3, 4  # beside the codes of `env.state`
TOO_LARGE = "larger than any partition"


@dataclasses.dataclass(frozen=True)
class RunStats:
    """How a run went; `compile_s` is not part of `wall_s`."""

    wall_s: float
    compile_s: float
    steps: int  # decision rounds
    simulated_s: float
    running_slots: int  # the largest tables of the run
    queue_slots: int
    peak_running: int
    peak_queue: int
    illegal: int  # actions that were not legal and counted as waiting
    engine: str  # jax or compiled, see `Settings`


@dataclasses.dataclass(frozen=True)
class Interruptions:
    """What being stopped and started again did to the jobs; see `env.state.Service`."""

    stops: Int64[np.ndarray, "J"]
    held_s: Float64[np.ndarray, "J"]  # for which the job held its GPUs, restarts included; NaN where not finished
    restarting_s: Float64[np.ndarray, "J"]
    lost_s: Float64[np.ndarray, "J"]  # ideal seconds of work done twice, after stops by schedulers
    falls: Int64[np.ndarray, "J"]  # times that a failure stopped the job
    fallen_s: Float64[np.ndarray, "J"]  # ideal seconds of work done twice after those

    @classmethod
    def of(cls, service: Any, finish_s: Float64[np.ndarray, "J"], interval_s: float) -> "Interruptions":
        """From the columns of the table that an engine keeps, by name."""
        ran, since = (np.asarray(column, np.float64) * interval_s for column in (service("ran"), service("since")))
        return cls(
            stops=np.asarray(service("stops"), np.int64),
            held_s=ran + finish_s - since,
            restarting_s=np.asarray(service("restarting_s"), np.float64),
            lost_s=np.asarray(service("lost_s"), np.float64),
            falls=np.asarray(service("falls"), np.int64),
            fallen_s=np.asarray(service("fallen_s"), np.float64),
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One policy on one job list; arrays have one entry per job of `jobs`, `NK` GPU groups on one axis."""

    policy: str
    jobs: JobList
    status: Int8[np.ndarray, "J"]  # index into STATUS
    partition: Int16[np.ndarray, "J"]  # -1 before the start
    start_s: Float64[np.ndarray, "J"]  # NaN before the start
    finish_s: Float64[np.ndarray, "J"]  # NaN before the finish
    workers: Int8[np.ndarray, "J NK"] | None  # per GPU group of the partition, if recorded
    cut_off: str | None  # why the run ended before every job had finished
    stats: RunStats
    interruptions: Interruptions | None = None  # None where jobs are not stopped
    models: tuple[str, ...] = BUILT_IN.names  # names of the catalogue that the jobs' models are from

    @property
    def finished(self) -> Bool[np.ndarray, "J"]:
        """Which jobs have finished."""
        return self.status == FINISHED

    @property
    def unfinished(self) -> bool:
        """Some job is queued or running, or has not arrived."""
        return bool(((self.status != FINISHED) & (self.status != REJECTED)).any())

    @property
    def jct_s(self) -> Float64[np.ndarray, "J"]:
        """Finish - submit; NaN where not finished."""
        return self.finish_s - self.jobs.submit_s

    @property
    def queue_s(self) -> Float64[np.ndarray, "J"]:
        """First start - submit; where jobs are stopped JCT - `run_s`. NaN where not started (finished)."""
        if self.interruptions is not None:
            return self.jct_s - self.interruptions.held_s
        return self.start_s - self.jobs.submit_s

    @property
    def run_s(self) -> Float64[np.ndarray, "J"]:
        """Seconds for which GPUs were held: finish - start where jobs are not stopped; NaN where not finished."""
        if self.interruptions is not None:
            return self.interruptions.held_s
        return self.finish_s - self.start_s


def outcome(policy: str, jobs: JobList, state: State, settings: Settings, stats: RunStats) -> Outcome:
    """The outcome of `jobs` from the last state of their run (NumPy leaves, one run; its table may be padded)."""
    count = len(jobs)
    records: Any = state.records  # of NumPy arrays
    interval_s = float(settings.interval_s)
    status = np.where(np.asarray(state.jobs.home)[:count] < 0, REJECTED, records.status[:count])
    status = np.where(np.arange(count) < int(state.next_job), status, NOT_ARRIVED).astype(np.int8)
    started = (status == RUNNING) | (status == FINISHED)
    finish_s = records.finish[:count] * interval_s + records.finish_offset_s[:count].astype(np.float64)
    ended = bool(np.isin(status, (FINISHED, REJECTED)).all())  # the clock may have skipped far beyond the last finish
    service: Any = state.service
    interruptions = None
    if service is not None:
        ends = np.where(status == FINISHED, finish_s, np.nan)
        faults: Any = state.faults
        nothing = np.zeros(count)
        felt = {
            "falls": nothing if faults is None else faults.count[:count],
            "fallen_s": nothing if faults is None else faults.lost_s[:count],
        }
        interruptions = Interruptions.of(
            lambda name: felt[name] if name in felt else getattr(service, name)[:count], ends, interval_s
        )
    simulated_s = float(finish_s[status == FINISHED].max(initial=0) if ended else state.clock * interval_s)
    return Outcome(
        policy=policy,
        jobs=jobs,
        status=status,
        partition=records.partition[:count],
        start_s=np.where(started, records.start[:count] * interval_s, np.nan),
        finish_s=np.where(status == FINISHED, finish_s, np.nan),
        workers=records.workers[:count] if settings.record_placements else None,
        cut_off=None,
        stats=dataclasses.replace(stats, illegal=int(state.illegal), simulated_s=simulated_s),
        interruptions=interruptions,
    )


def placement(result: Outcome, cluster: Cluster, job: int) -> str:
    """`server:group:gpus` items joined by `+`, server = row in the inventory; '' for a job that has not started.

    A job that shares a GPU has a fraction of one, e.g. `12:0:0.46`.
    """
    if result.workers is None or result.partition[job] < 0:
        return ""
    servers = np.asarray(cluster.server_id)[result.partition[job]]
    counts = result.workers[job].reshape(cluster.shape[1:])
    size = result.jobs.gpus_per_worker[job] * result.jobs.milli[job] / WHOLE
    return "+".join(f"{servers[n]}:{k}:{counts[n, k] * size:g}" for n, k in zip(*np.nonzero(counts)))


JOB_COLUMNS = (
    "job_id", "submit_s", "start_s", "finish_s", "num_gpus", "model", "scheduler", "status", "jct_s", "queueing_s",
    "ideal_s", "slowed_s", "slowdown", "placement",
)  # fmt: skip


def write_jobs(path: str | Path, result: Outcome, cluster: Cluster) -> None:
    """Writes one line per job, in order of submission, with the columns `JOB_COLUMNS`; unknown times are empty.

    `jct_s` is `queueing_s` (from submission to the
    first start) + `ideal_s` (the run time alone, on the ideal placement) + `slowed_s` (all that came on top).
    """
    jobs = result.jobs
    slowed_s = result.jct_s - result.queue_s - jobs.duration_s

    def seconds(values: Float64[np.ndarray, "J"]) -> list[str]:
        return ["" if np.isnan(value) else repr(round(float(value), 6)) for value in values]

    columns = (
        jobs.job_id.tolist(),
        seconds(jobs.submit_s),
        seconds(result.start_s),
        seconds(result.finish_s),
        [f"{gpus:g}" for gpus in jobs.gpu_demand],
        [result.models[model] for model in jobs.model],
        ["" if partition < 0 else str(partition) for partition in result.partition],
        [STATUS[code] for code in result.status],
        seconds(result.jct_s),
        seconds(result.queue_s),
        seconds(jobs.duration_s),
        seconds(slowed_s),
        seconds(result.run_s / jobs.duration_s),
        [placement(result, cluster, job) for job in range(len(jobs))],
    )
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(JOB_COLUMNS)
        writer.writerows(zip(*columns))


def rejections(result: Outcome) -> dict[str, int]:
    """Rejected jobs by reason."""
    count = int((result.status == REJECTED).sum())
    return {TOO_LARGE: count} if count else {}
