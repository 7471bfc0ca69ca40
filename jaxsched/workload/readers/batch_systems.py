"""Accounts of batch systems: Slurm's `sacct -P` and `sacct --json`, and the Standard Workload Format.

Slurm: slurm.schedmd.com/sacct.html (fields of --format); slurm.schedmd.com/rest_api.html, v0.0.40 to v0.0.42 (`job`,
`job_time`, `tres`). Steps (`1001.batch`) belong to their jobs and are left out. GPUs are what was allocated, else
requested: `gres/gpu=8`, or the sum of `gres/gpu:a100=8` and the like. Types that were requested are those that a job
may use; that one was allocated binds nobody. Run times are `ElapsedRaw` or `Elapsed`, else End - Start. What users
asked for, `Timelimit`, is the estimate.

The Standard Workload Format of the Parallel Workloads Archive, version 2.2, has 18 numbers a line, -1 is "not known":
cs.huji.ac.il/labs/parallel/workload/swf.html. Processors count as GPUs: as many as were allocated, else as were
requested. The requested time is the estimate, the group the tenant.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S
from jaxsched.workload.jobs import join_types
from jaxsched.workload.readers.cells import (
    CANCELLED,
    COMPLETED,
    FAILED,
    Cells,
    Columns,
    Source,
    estimates,
    needs_column,
)

EXPORT = (
    "sacct -aXP --starttime=2025-01-01 --state=CD,F,CA,TO,NF,OOM "
    "--format=JobID,User,Account,State,Submit,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,ReqTRES"
)
_TRES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_REQUESTED = ("ReqTRES", "ReqGRES")
_GPU = re.compile(r"(?:gres/)?gpu(?::(?P<type>[^=:,]+))?[=:](?P<count>[0-9]+)(?:\(.*?\))?")
_SPAN = re.compile(r"(?:(?:(?P<days>[0-9]+)-)?(?P<hours>[0-9]+):)?(?P<minutes>[0-9]+):(?P<seconds>[0-9]+)(?:\.[0-9]+)?")


def _read_slurm(cells: Cells) -> Columns:
    steps = np.fromiter(("." in job for job in cells.text("JobID")), bool, len(cells))
    cells.leave_out(steps, "a step of another job", "JobID", "a job")
    ended = cells.ends("State")
    given = [field for field in _TRES if cells.has(field)]
    if not given:
        needs_column(cells.found.path, "AllocTRES or ReqTRES, which say how many GPUs", f"export with {EXPORT}")
    if cells.has("Start"):
        cells.leave_out(cells.absent("Start"), "never started", "Start", "a date and time")
    if cells.has("End"):
        cells.leave_out(cells.absent("End"), "no end", "End", "a date and time")
    gpus = np.zeros(len(cells), np.int64)
    for field in reversed(given):  # the first one that says it counts
        here = _counted(cells.text(field))
        gpus = np.where(here > 0, here, gpus)
    cells.leave_out(gpus == 0, "no GPU", given[0], "with gres/gpu=N")
    cells.wrong(gpus >= 2**31, given[0], "fewer GPUs")
    allowed = _types(next((cells.text(field) for field in _REQUESTED if cells.has(field)), [""] * len(cells)))
    typed = cells.where(given[0], lambda cell: "gpu:" in cell) & (np.array(allowed) == "")
    cells.note(typed, "had GPUs of a type that they did not ask for by name: they run on any")
    limit = next((field for field in ("TimelimitRaw", "Timelimit") if cells.has(field)), "")
    estimate_s = _spans(cells.text(limit), 60) if limit else np.full(len(cells), np.nan)
    return {
        "job_id": cells.names("JobID"),
        "submit_s": cells.submitted("Submit"),
        "duration_s": _run_s(cells, ended),
        "workers": np.clip(gpus, 1, 2**31 - 1),
        "allowed": allowed,
        "tenant": cells.labels("Account"),
        "user": cells.labels("User"),
        "ended": ended,
        "estimate_s": estimates(estimate_s),
    }


def _run_s(cells: Cells, ended: np.ndarray) -> np.ndarray:
    if cells.has("ElapsedRaw"):
        return cells.run_s("ElapsedRaw", ended)
    if cells.has("Elapsed"):
        took = _spans(cells.text("Elapsed"), None)
        cells.wrong(np.isnan(took), "Elapsed", "a time like 1-02:03:04")
        return cells.between(np.zeros(len(cells)), took, ended, "Elapsed")
    if cells.has("Start") and cells.has("End"):
        return cells.between(cells.submitted("Start"), cells.submitted("End"), ended, "End")
    needs_column(cells.found.path, "ElapsedRaw, Elapsed, or Start and End", f"export with {EXPORT}")


def _counted(column: Iterable[str]) -> np.ndarray:
    """GPUs of cells like `cpu=8,gres/gpu=2` or `gres/gpu:a100=2,gres/gpu:v100=1`: the total if it is there."""
    known: dict[str, int] = {}
    column = list(column)
    for cell in set(column):
        found = [_GPU.fullmatch(part.strip()) for part in cell.split(",")]
        counts = [(one["type"], int(one["count"][:12])) for one in found if one is not None]
        totals = [count for kind, count in counts if kind is None]
        known[cell] = totals[0] if totals else sum(count for _, count in counts)
    return np.array([known[cell] for cell in column], np.int64)


def _types(column: Iterable[str]) -> list[str]:
    """The types of cells like `cpu=8,gres/gpu:a100=2`, with bars between them; '' where none is named."""
    known: dict[str, str] = {}
    column = list(column)
    for cell in set(column):
        found = [_GPU.fullmatch(part.strip()) for part in cell.split(",")]
        known[cell] = join_types(one["type"] for one in found if one is not None and one["type"])
    return [known[cell] for cell in column]


def _spans(column: Iterable[str], per_number_s: int | None) -> np.ndarray:
    """Seconds of cells like `1-02:03:04`, `02:03`, or plain numbers of `per_number_s` seconds; NaN for any other."""
    known: dict[str, float] = {}
    column = list(column)
    for cell in set(column):
        if (span := _SPAN.fullmatch(cell)) and len(cell) < 40:
            days, hours, minutes, seconds = (int(part or 0) for part in span.groups())
            known[cell] = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        else:
            whole = per_number_s is not None and cell.isascii() and cell.isdigit() and len(cell) < 12
            known[cell] = float(cell) * (per_number_s or 0) if whole else float("nan")
    return np.array([known[cell] for cell in column], np.float64)


def _rows(value: Any) -> Iterable[dict[str, str]] | None:
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        return None
    return map(_row, jobs)


def _row(job: dict[str, Any]) -> dict[str, str]:
    """A job of the JSON under the names that `sacct -P` has for its columns."""
    time, tres, state, array = (_object(job.get(key)) for key in ("time", "tres", "state", "array"))
    task = _number(array.get("task_id"))
    current = state.get("current", "")
    used = ("job_id", "array", "time", "tres", "state", "user", "account")
    return {
        **{key: "" for key in job if key not in used},
        **{f"time.{key}": "" for key in time if key not in ("submission", "start", "end", "elapsed", "limit")},
        "JobID": f"{_number(array.get('job_id'))}_{task}" if task else str(job.get("job_id", "")),
        "User": str(job.get("user") or ""),
        "Account": str(job.get("account") or ""),
        "State": str(current[0] if isinstance(current, list) and current else current),
        "Submit": _number(time.get("submission")),
        "Start": _started(time.get("start")),
        "End": _started(time.get("end")),
        "ElapsedRaw": _number(time.get("elapsed")),
        "TimelimitRaw": _number(time.get("limit")),
        "AllocTRES": _tres(tres.get("allocated")),
        "ReqTRES": _tres(tres.get("requested")),
    }


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> str:
    """A number, or one as `{"set": true, "infinite": false, "number": 5}`; '' where it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return "" if value is None else str(value)


def _started(value: Any) -> str:
    return "" if _number(value) == "0" else _number(value)


def _tres(value: Any) -> str:
    """`[{"type": "gres", "name": "gpu:a100", "count": 2}]` as `gres/gpu:a100=2`."""
    if not isinstance(value, list):
        return ""
    some = [(one.get("type"), one.get("name"), one.get("count")) for one in value if isinstance(one, dict)]
    return ",".join(f"{kind}/{name}={count}" if name else f"{kind}={count}" for kind, name, count in some)


_USES = ("User", "Account", "Start", "End", "ElapsedRaw", "Elapsed", "TimelimitRaw", "Timelimit", *_TRES)
SLURM = Source(
    "slurm",
    "Slurm's sacct",
    ("JobID", "Submit", "State"),
    _read_slurm,
    uses=_USES,
    rows=_rows,
    export=f"Slurm's has JobID, Submit and State; export with {EXPORT}",
    names="JobID",
    remark="tenants are accounts; a job runs on any server, whichever its partition and nodes were",
)


SWF_HEADER = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time", "used_memory"),
    *("requested_processors", "requested_time", "requested_memory", "status", "user", "group", "executable", "queue"),
    *("partition", "preceding_job", "think_time"),
)
_STATUS = {0: FAILED, 1: COMPLETED, 5: CANCELLED}  # -1: not known


def _read_swf(cells: Cells) -> Columns:
    status = cells.whole("status", minimum=-1)
    cells.leave_out(np.isin(status, (2, 3, 4)), "a part of another job", "status", "0, 1, 5 or -1")
    ended = np.array([_STATUS.get(int(code), COMPLETED) for code in status], np.int64)
    allocated = cells.whole("allocated_processors", minimum=-1)
    requested = cells.whole("requested_processors", minimum=-1)
    gpus = np.where(allocated > 0, allocated, requested)
    cells.leave_out(gpus <= 0, "no processors", "allocated_processors", "a whole number >= 1")
    unknown = cells.where("run_time", lambda cell: plain_number(cell) < 0)
    cells.leave_out(unknown, "no run time", "run_time", "a number > 0")
    asked = cells.number("requested_time", minimum=-1, maximum=LONGEST_S)
    return {
        "job_id": cells.names("job_number"),
        "submit_s": cells.number("submit_time", minimum=0, maximum=LONGEST_S),
        "duration_s": cells.run_s("run_time", ended),
        "workers": np.maximum(gpus, 1),
        "tenant": _known(cells.labels("group")),
        "user": _known(cells.labels("user")),
        "ended": ended,
        "estimate_s": estimates(asked),
    }


def _known(column: Sequence[str]) -> list[str]:
    return ["" if cell == "-1" else cell for cell in column]


def _fits_swf(cells: Sequence[str]) -> bool:
    return sum(math.isfinite(plain_number(cell)) for cell in cells) > len(cells) // 2


SWF = Source(
    "swf",
    "the Standard Workload Format",
    (),
    _read_swf,
    uses=(
        *("job_number", "submit_time", "run_time", "allocated_processors", "requested_processors", "requested_time"),
        *("status", "user", "group"),
    ),
    bare=(SWF_HEADER,),
    separator=" ",
    comment=";",
    fits=_fits_swf,
    from_start=False,
    names="job_number",
    remark="processors count as GPUs",
)
