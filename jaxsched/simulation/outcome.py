"""What became of every job of a run, in exact seconds on the host, and as a file: CSV or Parquet.

Every attempt at a job, too: from a start until it is done, stopped, or its server fails (docs/semantics.md, section
10). Where jobs are neither stopped nor fail, a job has one attempt, and nothing is kept for it.
"""

import csv
import dataclasses
import functools
import importlib.util
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int8, Int16, Int32, Int64, Shaped

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import FINISHED, State
from jaxsched.errors import UserError
from jaxsched.io.files import atomic_path, check_ending, shorten
from jaxsched.simulation.settings import Settings
from jaxsched.workload.catalogue import BUILT_IN
from jaxsched.workload.jobs import WHOLE, JobList

if TYPE_CHECKING:
    import pandas

DONE, STOPPED, FAILED, RUNNING = range(4)
ENDED = ("done", "stopped", "server failed", "still running")  # by these codes

Log = Mapping[str, Any]  # columns of starts, NumPy, in order of time: see `env.extensions.starts.Starts`


@dataclasses.dataclass(frozen=True)
class Attempts:
    """One entry per attempt, in order of start; `NK` GPU groups of the partition on one axis."""

    job: Int64[np.ndarray, "A"]  # position in the job list
    partition: Int64[np.ndarray, "A"]
    start_s: Float64[np.ndarray, "A"]
    end_s: Float64[np.ndarray, "A"]  # of one that goes on: the end of the run
    restart_s: Float64[np.ndarray, "A"]  # from its start on spent on a restart
    ended: Int8[np.ndarray, "A"]  # index into ENDED
    workers: Int8[np.ndarray, "A NK"]
    ps: Int16[np.ndarray, "A NK"] | None  # None: where `place_ps` puts them
    gpu: Int32[np.ndarray, "A"] | None  # shared GPU of the partition; -1: whole ones; None: nobody shares


def attempts_of_log(
    log: Log, now: Any, finish_s: Float64[np.ndarray, "J"], end_s: float, interval_s: float, restart_s: float
) -> Attempts:
    """The attempts of a run from the log of its starts.

    An attempt that is followed by another lasted as long as the job has held GPUs in between, and what grew in between,
    stops or failures, ended it.

    Args:
        now: a table with what the log has in its columns `ran`, `stops` and `failure_restarts`, at the end, per job.
        finish_s: NaN of jobs that have not finished.
        end_s: of the run.
        restart_s: what a start costs from the second on.
    """
    job = np.asarray(log["job"], np.int64)
    order = np.argsort(job, kind="stable")
    follows = np.append(job[order][1:] == job[order][:-1], False)
    following = np.append(order[1:], -1)

    def after(name: str) -> Int64[np.ndarray, "A"]:
        """The value at the job's next start, or at the end of the run."""
        column, found = np.asarray(log[name], np.int64), np.empty(len(job), np.int64)
        found[order] = np.where(follows, column[following], np.asarray(now[name], np.int64)[job[order]])
        return found

    before = {name: np.asarray(log[name], np.int64) for name in ("ran", "stops", "failure_restarts")}
    start_s = np.asarray(log["boundary"], np.float64) * interval_s
    stopped, failed = (after(name) > before[name] for name in ("stops", "failure_restarts"))
    done = ~stopped & ~failed & ~np.isnan(finish_s[job])
    held_s = (after("ran") - before["ran"]) * interval_s
    last_s = np.where(done, finish_s[job], np.where(stopped | failed, start_s + held_s, end_s))
    again = before["stops"] + before["failure_restarts"] > 0
    return Attempts(
        job=job,
        partition=np.asarray(log["partition"], np.int64),
        start_s=start_s,
        end_s=last_s,
        restart_s=np.where(again, np.minimum(restart_s, last_s - start_s), 0.0),
        ended=np.select([stopped, failed, done], [STOPPED, FAILED, DONE], RUNNING).astype(np.int8),
        workers=log["workers"],
        ps=log.get("ps"),
        gpu=log.get("gpu"),
    )


def single_attempts(
    started: Bool[np.ndarray, "J"],
    start_s: Float64[np.ndarray, "J"],
    finish_s: Float64[np.ndarray, "J"],
    end_s: float,
    columns: Mapping[str, Shaped[np.ndarray, "J ..."] | None],
) -> Attempts:
    """Where every job starts at most once; `columns` are `partition`, `workers`, `ps` and `gpu`, per job."""
    job = np.flatnonzero(started)
    job = job[np.argsort(start_s[job], kind="stable")]
    done = ~np.isnan(finish_s[job])
    own = {name: None if column is None else column[job] for name, column in columns.items()}
    return Attempts(
        job=job,
        start_s=start_s[job],
        end_s=np.where(done, finish_s[job], end_s),
        restart_s=np.zeros(len(job)),
        ended=np.where(done, DONE, RUNNING).astype(np.int8),
        **{**own, "partition": np.asarray(own["partition"], np.int64)},
    )


STATUS = ("queued", "running", "finished", "rejected", "not arrived")
REJECTED, NOT_ARRIVED = 3, 4  # beside the codes of `env.state`
TOO_LARGE = "larger than any partition"
ASKS_TOO_MUCH = "larger than any partition in GPUs, CPUs or memory"
NO_TYPE = "for which no partition has enough GPUs of {}"
JOB_COLUMNS = (
    "job_id", "given_submit_s", "submit_s", "start_s", "finish_s", "num_gpus", "model", "gpu_type", "scheduler",
    "forwards", "status", "jct_s", "queueing_s", "ideal_s", "slowed_s", "slowdown", "placement",
)  # fmt: skip
OWNER_COLUMNS = ("tenant", "user")  # after those, where the jobs have several tenants, or users
STOPPED_COLUMNS = ("stops", "failures", "restarts_s", "lost_s")  # after those, where jobs may be stopped


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
    failure_restarts: Int64[np.ndarray, "J"]  # times that a failure stopped the job
    fallen_s: Float64[np.ndarray, "J"]  # ideal seconds of work done twice after those

    @classmethod
    def of(cls, service: Any, finish_s: Float64[np.ndarray, "J"], interval_s: float) -> "Interruptions":
        """From the columns of the table that an engine keeps, by name."""
        ran, since = (np.asarray(service[name], np.float64) * interval_s for name in ("ran", "since"))
        return cls(
            stops=np.asarray(service["stops"], np.int64),
            held_s=ran + finish_s - since,
            restarting_s=np.asarray(service["restarting_s"], np.float64),
            lost_s=np.asarray(service["lost_s"], np.float64),
            failure_restarts=np.asarray(service["failure_restarts"], np.int64),
            fallen_s=np.asarray(service["fallen_s"], np.float64),
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
    forwards: Int8[np.ndarray, "J"]  # how often a scheduler handed the job on
    workers: Int8[np.ndarray, "J NK"] | None  # per GPU group of the partition, if recorded
    cut_off: str | None  # why the run ended before every job had finished
    stats: RunStats
    interruptions: Interruptions | None = None  # None where jobs are not stopped
    models: tuple[str, ...] = BUILT_IN.names  # names of the catalogue that the jobs' models are from
    ps: Int16[np.ndarray, "J NK"] | None = None  # parameter servers, if recorded; None: where `place_ps` puts them
    gpu: Int32[np.ndarray, "J"] | None = None  # shared GPU of the partition, if recorded; -1: whole ones
    logged: Attempts | None = None  # where jobs are stopped, and placements recorded: see `Attempts`

    @property
    def finished(self) -> Bool[np.ndarray, "J"]:
        """Which jobs have finished."""
        return self.status == FINISHED

    @property
    def unfinished(self) -> bool:
        """Some job is queued or running, or has not arrived."""
        return bool(((self.status != FINISHED) & (self.status != REJECTED)).any())

    @property
    def end_s(self) -> float:
        """When the run ended."""
        return max(self.stats.simulated_s, float(np.nanmax(self.finish_s, initial=0.0)))

    @functools.cached_property
    def attempts(self) -> Attempts:
        """Every time that a job held GPUs. UserError unless placements were recorded."""
        if self.workers is None or (self.interruptions is not None and self.logged is None):
            raise UserError(f"{self.policy!r}: its placements were not recorded (record_placements)")
        if self.logged is not None:
            return self.logged
        columns = {"partition": self.partition, "workers": self.workers, "ps": self.ps, "gpu": self.gpu}
        return single_attempts(self.partition >= 0, self.start_s, self.finish_s, self.end_s, columns)

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

    def to_pandas(self, cluster: Cluster | None = None) -> "pandas.DataFrame":
        """A line per job with the columns of `--jobs-out`, indexed by `job_id`; `placement` needs the cluster.

        UserError without pandas.
        """
        return data_frame(self, cluster)


def outcome(
    policy: str, jobs: JobList, state: State, settings: Settings, stats: RunStats, log: Log | None = None
) -> Outcome:
    """The outcome of `jobs` from the last state of their run (NumPy leaves, one run; its table may be padded).

    `log` holds all starts, if they were logged.
    """
    count = len(jobs)
    records: Any = state.records  # of NumPy arrays
    interval_s = float(settings.interval_s)
    status = np.where(np.asarray(state.jobs.home)[:count] < 0, REJECTED, records.status[:count])
    status = np.where(np.arange(count) < int(state.next_job), status, NOT_ARRIVED).astype(np.int8)
    finish_s = records.finish[:count] * interval_s + records.finish_offset_s[:count].astype(np.float64)
    finish_s = np.where(status == FINISHED, finish_s, np.nan)
    ended = bool(np.isin(status, (FINISHED, REJECTED)).all())  # the clock may have skipped far beyond the last finish
    simulated_s = float(np.nanmax(finish_s, initial=0.0) if ended else state.clock * interval_s)
    found = Outcome(
        policy=policy,
        jobs=jobs,
        status=status,
        partition=records.partition[:count],
        start_s=np.where(records.partition[:count] >= 0, records.start[:count] * interval_s, np.nan),
        finish_s=finish_s,
        workers=records.workers[:count] if settings.record_placements else None,
        cut_off=None,
        stats=dataclasses.replace(stats, illegal=int(state.illegal), simulated_s=simulated_s),
        ps=records.ps[:count] if settings.record_placements else None,
        gpu=records.gpu[:count] if settings.record_placements and records.gpu.size else None,
        forwards=np.asarray(records.forwards[:count], np.int8),
    )
    service: Any = state.service
    if not service.there:
        return found
    faults: Any = state.faults
    columns = {name: getattr(service, name)[:count] for name in ("ran", "since", "stops", "restarting_s", "lost_s")}
    columns["failure_restarts"] = faults.count[:count] if faults.there else np.zeros(count)
    columns["fallen_s"] = faults.lost_s[:count] if faults.there else np.zeros(count)
    return add_interruptions(found, columns, settings, log)


def add_interruptions(result: Outcome, service: Any, settings: Settings, log: Log | None) -> Outcome:
    """The outcome of a run in which jobs may be stopped.

    Args:
        service: columns of the table that an engine keeps, by name.
        log: all starts; None unless they were logged.
    """
    again = Interruptions.of(service, result.finish_s, settings.interval_s)
    if log is None:
        return dataclasses.replace(result, interruptions=again)
    restart_s = float(np.float32(settings.restart_s))
    logged = attempts_of_log(log, service, result.finish_s, result.end_s, settings.interval_s, restart_s)
    return dataclasses.replace(result, interruptions=again, logged=logged)


def rejections(result: Outcome) -> dict[str, int]:
    """Rejected jobs by reason."""
    jobs, reasons = result.jobs, Counter[str]()
    asks = (jobs.cpu_milli > 0) | (jobs.memory_mib > 0)
    for job in np.flatnonzero(result.status == REJECTED):
        bound = NO_TYPE.format(shorten(str(jobs.allowed[job]))) if jobs.allowed[job] else ""
        reasons[bound or (ASKS_TOO_MUCH if asks[job] else TOO_LARGE)] += 1
    return dict(reasons.most_common())


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


def gpu_types(result: Outcome, cluster: Cluster, job: int) -> str:
    """The GPU types that a job ran on, joined by `+`; '' for one that has not started."""
    if result.workers is None or result.partition[job] < 0:
        return ""
    kinds = np.asarray(cluster.group_gpu_type)[result.partition[job]].reshape(-1)
    return "+".join(cluster.gpu_types[kind] for kind in np.unique(kinds[result.workers[job].reshape(-1) > 0]))


def job_columns(
    result: Outcome, cluster: Cluster | None, slowed: Mapping[str, Float[np.ndarray, "J"]] | None = None
) -> dict[str, Shaped[np.ndarray, "J"]]:
    """The columns `JOB_COLUMNS`; unknown times are NaN, the scheduler of a job that has not started is -1.

    `given_submit_s` is the time of submission in the input, `submit_s` that of the run: from the first job on, and at
    the load that was asked for. `jct_s` is `queueing_s` (from submission to the first start) + `ideal_s` (the run time
    alone, on the ideal placement) + `slowed_s` (all that came on top). Without the cluster `placement` and `gpu_type`
    are empty. `OWNER_COLUMNS` are there where they tell jobs apart. `slowed` are columns that `slowed_s` is the sum of
    (`evaluation.parts`), and come last.

    Where schedulers stop jobs or servers fail, `start_s` is the first start, `placement` the last one, and `queueing_s`
    all the time without GPUs. `STOPPED_COLUMNS` follow: stops by schedulers and by failures, and of `slowed_s` the
    seconds of restarts and of work that was done twice.
    """
    jobs = result.jobs
    size = range(len(jobs))
    places = ["" if cluster is None else placement(result, cluster, job) for job in size]
    columns = (
        jobs.job_id,
        jobs.given_s,
        jobs.submit_s,
        result.start_s,
        result.finish_s,
        jobs.gpu_demand,
        np.array(result.models)[jobs.model],
        np.array(["" if cluster is None else gpu_types(result, cluster, job) for job in size]),
        result.partition,
        result.forwards,
        np.array(STATUS)[result.status],
        result.jct_s,
        result.queue_s,
        jobs.duration_s,
        result.jct_s - result.queue_s - jobs.duration_s,
        result.run_s / jobs.duration_s,
        np.array(places),
    )
    found: dict[str, np.ndarray] = dict(zip(JOB_COLUMNS, columns, strict=True))
    for name, owners in zip(OWNER_COLUMNS, (jobs.tenant_name, jobs.user)):
        if (owners != (owners[:1] if name == "tenant" else "")).any():
            found[name] = owners
    again = result.interruptions
    if again is not None:
        known = np.where(result.finished, 0.0, np.nan)
        more = again.stops, again.failure_restarts, again.restarting_s + known, again.lost_s + again.fallen_s + known
        found |= dict(zip(STOPPED_COLUMNS, more, strict=True))
    return found | dict(slowed or {})


def data_frame(result: Outcome, cluster: Cluster | None = None) -> "pandas.DataFrame":
    """See `Outcome.to_pandas`."""
    if importlib.util.find_spec("pandas") is None:
        raise UserError("to_pandas: needs pandas; install the extra: pip install 'jaxsched[tables]'")
    import pandas

    return pandas.DataFrame(job_columns(result, cluster)).set_index("job_id")


PARQUET = ".parquet"


def check_jobs_file(path: Path | None) -> None:
    """UserError if the name of a table of jobs does not say how it is written, or nothing is there that writes it."""
    check_ending(path, ".csv", PARQUET)
    if path is not None and path.suffix.lower() == PARQUET and importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            f"{path}: Parquet needs pyarrow; install the extra, pip install 'jaxsched[tables]', or take .csv"
        )


def write_jobs(
    path: str | Path, result: Outcome, cluster: Cluster, slowed: Mapping[str, Float[np.ndarray, "J"]] | None = None
) -> None:
    """Writes `job_columns`, one line per job in order of submission: Parquet if `path` ends so, else CSV.

    In CSV unknown times, and the scheduler of a job that has not started, are empty, in Parquet null.
    """
    columns = job_columns(result, cluster, slowed)
    with atomic_path(path) as temporary:
        if Path(path).suffix.lower() == PARQUET:
            check_jobs_file(Path(path))
            import pyarrow
            from pyarrow import parquet

            started = {"scheduler": pyarrow.array(columns["scheduler"], mask=columns["scheduler"] < 0)}
            arrays = {name: pyarrow.array(column.tolist(), from_pandas=True) for name, column in columns.items()}
            parquet.write_table(pyarrow.table(arrays | started), temporary)  # NaN is null there
            return
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(_as_text(name, column) for name, column in columns.items())))


def _as_text(name: str, column: Shaped[np.ndarray, "J"]) -> list[str]:
    if name == "scheduler":
        return ["" if partition < 0 else str(partition) for partition in column]
    if name == "num_gpus":
        return [f"{gpus:g}" for gpus in column]
    if column.dtype.kind == "f":
        return ["" if np.isnan(value) else repr(round(float(value), 6)) for value in column]
    return column.tolist()
