"""Lists of jobs that adapt, read from CSV files as Pollux' and Sia's workloads are.

    name,time,application,num_replicas,batch_size
    cifar10-0,107,cifar10,6,2048

Optional columns: min_replicas and max_replicas, and deadline (seconds, as `time`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxsched.adaptive.profiles import Application
from jaxsched.adaptive.state import AdaptiveJobs
from jaxsched.adaptive.tables import Plan
from jaxsched.errors import UserError
from jaxsched.io.csv_file import read_table
from jaxsched.pytree import on_device
from jaxsched.workload.rows import Row

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
OPTIONAL = ("min_replicas", "max_replicas", "deadline")
RESTART_S = 30.0


class Job(NamedTuple):
    """A line of a workload."""

    row: Row
    name: str
    submit_s: float
    application: str
    gpus: int
    batch: int
    least: int
    most: int
    deadline_s: float


def read_workload(path: str | Path, apps: Mapping[str, Application]) -> list[Job]:
    """The jobs of a file, in the order of submission. UserError with file, line and column on any mistake."""
    table = read_table(path)
    for name in COLUMNS:
        if name not in table.header:
            raise UserError(f"{path}: no column {name}, should have {','.join(COLUMNS)}")
    for name in table.header:
        if name not in (*COLUMNS, *OPTIONAL):
            raise UserError(f"{path}: the column {name} means nothing here, should be one of {','.join(OPTIONAL)}")
    if not table.rows:
        raise UserError(f"{path}: no jobs, should have one at least")
    rows = [Row(table.path, line, dict(zip(table.header, cells, strict=True))) for line, cells in table.rows]
    jobs = [_job(row, apps) for row in rows]
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise job.row.fail("name", "one that no job before has")
        seen.add(job.name)
    return sorted(jobs, key=lambda job: job.submit_s)


def applications_in(path: str | Path) -> set[str]:
    """The names that the column `application` of a file has; none without such a column."""
    table = read_table(path)
    if "application" not in table.header:
        return set()
    at = table.header.index("application")
    return {cells[at].strip() for _, cells in table.rows}


def _job(row: Row, apps: Mapping[str, Application]) -> Job:
    name, submit_s = row.name("name"), row.number("time", minimum=0.0, maximum=1e9)
    app = apps.get(row.text("application"))
    if app is None:
        raise row.fail(
            "application", f"the name of a folder of profiles, such as {', '.join(apps) or 'none of this file'}"
        )
    smallest = int(app.batches[0])
    batch = row.whole("batch_size", minimum=1)
    if batch < smallest:
        raise row.fail("batch_size", f"at least {smallest}, the smallest of {app.name}'s validation files")
    if batch > app.batches[-1]:
        raise row.fail("batch_size", f"at most {app.batches[-1]}, the largest of {app.name}'s validation files")
    least = row.whole("min_replicas", minimum=1) if row.text("min_replicas") else 1
    most = row.whole("max_replicas", minimum=least) if row.text("max_replicas") else 1 << 20
    gpus = row.whole("num_replicas", minimum=least)
    if gpus > most:
        raise row.fail("num_replicas", f"at most max_replicas, {most}")
    deadline_s = row.number("deadline") if row.text("deadline") else np.inf
    if deadline_s <= submit_s:
        raise row.fail("deadline", f"after the submission at {submit_s:g}")
    return Job(row, name, submit_s, app.name, gpus, batch, least, most, deadline_s)


def plan_of(job: Job, apps: Mapping[str, Application], own_batch: bool) -> Plan:
    """What a job does: it chooses its batch if it may, and if its application has more than one."""
    only = apps[job.application].limits.batch
    return Plan(job.application, (only if own_batch else job.batch))


def to_arrays(
    jobs: Sequence[Job],
    plans: Sequence[Plan],
    ranges: Sequence[tuple[int, int]],
    apps: Mapping[str, Application],
    own_batch: bool,
    size: int,
    restart_s: Mapping[str, float] | float = RESTART_S,
) -> AdaptiveJobs:
    """The jobs as arrays of `size` rows. `ranges` has the fewest and the most GPUs of each."""
    number = {plan: i for i, plan in enumerate(plans)}
    plan = [number[plan_of(job, apps, own_batch)] for job in jobs]

    def column(values: Sequence, dtype: type, rest: float = 0) -> jax.Array:
        return on_device(np.array([*values, *([rest] * (size - len(jobs)))], dtype), dtype)

    restart = [
        restart_s.get(job.application, RESTART_S) if isinstance(restart_s, Mapping) else restart_s for job in jobs
    ]
    return AdaptiveJobs(
        real=column([True] * len(jobs), np.bool_),
        submit_s=column([job.submit_s for job in jobs], np.float64, np.inf),
        plan=column(plan, np.int32),
        tuned_gpus=column([job.gpus for job in jobs], np.int32, 1),
        least_gpus=column([least for least, _ in ranges], np.int32, 1),
        most_gpus=column([most for _, most in ranges], np.int32, 1),
        restart_s=column(restart, np.float64, RESTART_S),
        deadline_s=column([job.deadline_s for job in jobs], np.float64, np.inf),
    )
