"""What became of every job as a table: CSV, Parquet, or a data frame."""

import csv
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Shaped

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.io.files import atomic_path, check_ending
from jaxsched.simulation.outcome import STATUS, Outcome
from jaxsched.workload.jobs import WHOLE

if TYPE_CHECKING:
    import pandas

JOB_COLUMNS = (
    "job_id", "given_submit_s", "submit_s", "start_s", "finish_s", "num_gpus", "model", "gpu_type", "scheduler",
    "forwards", "status", "jct_s", "queueing_s", "ideal_s", "slowed_s", "slowdown", "placement",
)  # fmt: skip
STOPPED_COLUMNS = ("stops", "failures", "restarts_s", "lost_s")  # after those, where jobs may be stopped
OWNER_COLUMNS = ("tenant", "user")  # after those, where the jobs have several tenants, or users
PARQUET = ".parquet"


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

    In CSV unknown times are empty.
    """
    columns = job_columns(result, cluster, slowed)
    with atomic_path(path) as temporary:
        if Path(path).suffix.lower() == PARQUET:
            check_jobs_file(Path(path))
            import pyarrow
            from pyarrow import parquet

            arrays = {name: pyarrow.array(column.tolist(), from_pandas=True) for name, column in columns.items()}
            parquet.write_table(pyarrow.table(arrays), temporary)  # NaN is null there
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
