"""What a log was understood as, for a person who has to trust the results: figures, and the lines that tell them."""

import datetime
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsched.io.files import shorten
from jaxsched.workload.jobs import ENDS, JobList, offered_load
from jaxsched.workload.traces import Log, left_out, note_texts

_TOP = 3  # tenants, and sets of GPU types, that are named


def understood(log: Log, jobs: JobList, gpus: int | None = None) -> dict[str, Any]:
    """Figures of a log and of its jobs, as JSON has them.

    Args:
        log: the log.
        jobs: its jobs (`traces.fill_in`).
        gpus: of a cluster, to say what load the jobs are there; None: not asked.
    """
    gpu_s = jobs.gpu_demand * jobs.duration_s
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0])
    tenants = {name: float(share) for name, share in _shares(log.jobs["tenant"], gpu_s).items()}
    return {
        "file": str(log.path),
        "format": log.source.name,
        "of": log.source.about,
        "jobs": len(jobs),
        "left_out": log.skipped,
        "columns_read": [name for name in log.header if name not in log.unread],
        "columns_not_read": list(log.unread),
        "remarks": [*([log.source.remark] if log.source.remark else []), *note_texts(log.notes)],
        "unit_of_run_times": log.source.unit,
        "times": "dates, UTC where they name no zone" if log.dated else "counted from any start, without a time zone",
        "first_submit": _date(log.jobs["submit_s"][0]) if log.dated else float(log.jobs["submit_s"][0]),
        "last_submit": _date(log.jobs["submit_s"][-1]) if log.dated else float(log.jobs["submit_s"][-1]),
        "span_s": span_s,
        "gpu_hours": float(gpu_s.sum() / 3600),
        "gpus_busy": float(gpu_s.sum() / span_s) if span_s > 0 else None,
        "gpus": gpus,
        "offered_load": offered_load(jobs, gpus) if gpus and span_s > 0 else None,
        "widest_gang": int(jobs.num_gpus.max()),
        "run_time_s": {"mean": float(jobs.duration_s.mean()), "median": float(np.median(jobs.duration_s))},
        "ended": {name: int((jobs.ended == code).sum()) for code, name in enumerate(ENDS)},
        "tenants": tenants,
        "users": len(np.unique(jobs.user[jobs.user != ""])),
        "gpu_types": sorted(set(jobs.gpu_type.tolist()) - {""}),
        "bound_to_gpu_types": dict(Counter(jobs.allowed[jobs.allowed != ""].tolist()).most_common()),
        "jobs_with_cpus_or_memory": int(((jobs.cpu_milli > 0) | (jobs.memory_mib > 0)).sum()),
        "jobs_with_estimates": int(np.isfinite(log.jobs["estimate_s"]).sum()),
        "jobs_with_deadlines": int(np.isfinite(log.jobs["due_s"]).sum()),
        "jobs_without_model": int((log.jobs["model"] == "").sum()),
    }


def headline(found: Mapping[str, Any]) -> str:
    """The format, how many jobs, and how many rows are none, by reason."""
    jobs = f"{found['jobs']:,} job{'s' * (found['jobs'] > 1)}"
    return f"a trace, format {found['format']}, of {jobs}{left_out(found['left_out'])}"


def details(found: Mapping[str, Any]) -> list[str]:
    """Everything else, a line for each thing."""
    busy, load = found["gpus_busy"], found["offered_load"]
    asked = "all jobs come at once" if busy is None else f"{busy:,.1f} GPUs busy on average, if no job ever waited"
    if load is not None:
        asked += f": load {load:.3g} on {found['gpus']:,} GPUs"
    run = found["run_time_s"]
    ends = ", ".join(f"{count:,} {name}" for name, count in found["ended"].items() if count)
    drawn, jobs = found["jobs_without_model"], found["jobs"]
    lines = {
        "source": found["of"],
        "read": _listed(found["columns_read"]),
        "not read": _listed(found["columns_not_read"]) or "nothing: every column is read",
        "times": f"{found['times']}; run times in {found['unit_of_run_times']}",
        "submitted": f"{_when(found['first_submit'])} to {_when(found['last_submit'])}, {_span(found['span_s'])}",
        "asked for": f"{found['gpu_hours']:,.1f} GPU hours, {asked}",
        "jobs": f"widest gang {found['widest_gang']:,} GPUs; run times {_span(run['mean'])} on average, median "
        f"{_span(run['median'])}; {ends}",
        "tenants": _tenants(found["tenants"], found["users"]),
        "GPU types": ", ".join(found["gpu_types"]) and f"run times are on {', '.join(found['gpu_types'])}",
        "bound": _bound(found["bound_to_gpu_types"]),
        "reserved": f"CPUs or memory, by {found['jobs_with_cpus_or_memory']:,} jobs"
        if found["jobs_with_cpus_or_memory"]
        else "",
        "estimates": f"policies see what users asked for, of {found['jobs_with_estimates']:,} jobs"
        if found["jobs_with_estimates"]
        else "",
        "deadlines": f"of {found['jobs_with_deadlines']:,} jobs" if found["jobs_with_deadlines"] else "",
        "drawn": f"{'the models of ' + format(drawn, ',') + ' jobs' if drawn < jobs else 'models'} (--mix, --seed)"
        if drawn
        else "",
    }
    told = [f"  {name:10}{text}" for name, text in lines.items() if text]
    return told + [f"  {'note' if i == 0 else '':10}{text}" for i, text in enumerate(found["remarks"])]


def _shares(names: np.ndarray, gpu_s: np.ndarray) -> dict[str, float]:
    """Every tenant's share of the GPU time, the largest first."""
    known, place = np.unique(names, return_inverse=True)
    share = np.bincount(place, gpu_s) / gpu_s.sum()
    return {str(known[i]): share[i] for i in np.argsort(-share, kind="stable") if known[i]}


def _tenants(shares: Mapping[str, float], users: int) -> str:
    named = [f"{shorten(name)} {share:.0%}" for name, share in list(shares.items())[:_TOP]]
    more = [f"{len(shares) - _TOP:,} more"] if len(shares) > _TOP else []
    told = [f"{len(shares):,} ({', '.join([*named, *more])} of the GPU time)"] if shares else []
    return "; ".join([*told, *([f"{users:,} users"] if users else [])])


def _bound(jobs: Mapping[str, int]) -> str:
    """How many jobs may use some GPU types only, and which."""
    named = [f"{shorten(name)} {count:,}" for name, count in list(jobs.items())[:_TOP]]
    more = [f"{len(jobs) - _TOP:,} more sets"] if len(jobs) > _TOP else []
    return f"{sum(jobs.values()):,} jobs to GPU types ({', '.join([*named, *more])})" if jobs else ""


def _listed(names: list[str]) -> str:
    return ", ".join(map(shorten, names))


def _date(epoch_s: float) -> str:
    try:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=float(epoch_s))
    except OverflowError:
        return f"{epoch_s:g}"
    return moment.isoformat(sep=" ", timespec="seconds") + " UTC"


def _when(moment: str | float) -> str:
    return moment if isinstance(moment, str) else f"{moment:,.0f} s"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.3g} s"
