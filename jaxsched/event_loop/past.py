"""What the event loop notes of finished jobs, and of which classes each job is (docs/semantics.md, section 9)."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from jaxsched.env.history import BIN_EDGES, GRID, SECONDS, class_counts, classes_of
from jaxsched.semantics import SERVICE_BINS
from jaxsched.workload.jobs import JobTable


class Past(NamedTuple):
    """As `env.state.History`, with what each job adds to it; without rows if policies do not know it."""

    classes: Int64[np.ndarray, "J stages"]
    steps: Int64[np.ndarray, "J"]  # its run time
    bin: Int64[np.ndarray, "J"]  # its service
    grid: Float32[np.ndarray, "steps"]
    seconds: Float32[np.ndarray, "means"]


class Known(NamedTuple):
    """What has been noted; see `env.state.History`."""

    jobs: Int64[np.ndarray, "classes"]
    steps: Int64[np.ndarray, "classes"]
    served: Int64[np.ndarray, "bins"]
    levels: Int64[np.ndarray, "bins"]  # of the order `gittins`


def past_of(jobs: JobTable, tenants: int, models: int) -> Past:
    """What jobs with whole GPUs will add."""
    run_s, gpus = np.asarray(jobs.duration_s), np.asarray(jobs.workers) * np.asarray(jobs.gpus_per_worker)
    columns = {name: np.asarray(getattr(jobs, name)) for name in ("workers", "gpus_per_worker", "tenant", "model")}
    rows = np.arange(len(gpus))
    classes: Any = classes_of(jobs.replace(**columns), rows, tenants, models)  # pyright: ignore (of NumPy's arrays)
    return Past(
        classes=np.stack(classes, -1).astype(np.int64),
        steps=np.searchsorted(GRID, run_s, side="right"),
        bin=np.searchsorted(BIN_EDGES, run_s * gpus.astype(np.float32), side="right"),
        grid=GRID,
        seconds=SECONDS,
    )


def no_past() -> Past:
    """Where policies do not know it."""
    none = np.zeros(0, np.int64)
    return Past(classes=np.zeros((0, 0), np.int64), steps=none, bin=none, grid=GRID, seconds=SECONDS)


def nothing_known(tenants: int, models: int) -> Known:
    """Before the first job has finished."""
    classes, bins = sum(class_counts(tenants, models)), np.zeros(SERVICE_BINS, np.int64)
    return Known(np.zeros(classes, np.int64), np.zeros(classes, np.int64), bins, bins.copy())
