"""Readers of job traces: Philly, Muri, Alibaba openb and our own CSV. The header tells which one a file is.

What a trace does not say is filled in with a seed: `gpus_per_worker` = 1; a share `ps_fraction` of the jobs of several
workers uses max(1, workers // 4) parameter servers, the others all-reduce (both assumptions); the model is drawn from
a mix; the home is round robin.

The native format: `job_id,submit_time_s,num_gpus,duration_s` and, optionally,
`model,num_workers,num_ps,gpus_per_worker,tenant,home,gpu_milli,gpu_type,ended`; an empty optional cell counts as not
given, and num_workers * gpus_per_worker must equal num_gpus. `gpu_milli` < 1000 is a job that shares its only GPU;
`gpu_type` is what its run time is on. `ended` is completed, cancelled or failed: Philly's `status` and openb's
`pod_phase` say so, too, where they are there. A trace that does not say has completed jobs.
"""

import csv
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from jaxsched.errors import UserError
from jaxsched.io.csv_file import Table, read_table
from jaxsched.io.files import atomic_path
from jaxsched.io.inputs import shortened
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.catalogue import BUILT_IN, Catalogue
from jaxsched.workload.jobs import ENDS, MOST_PS, WHOLE, JobList, make_job_list
from jaxsched.workload.mixes import Mix, get_mix
from jaxsched.workload.rows import Row, rows_of

PS_FRACTION = 0.5
_TENANT = re.compile("0|[1-9][0-9]{0,8}")  # written in one way only: 07 and 7 are two names


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One job as a trace gives it; None, and no name of a model: the trace does not say."""

    job_id: str
    submit_s: float
    duration_s: float
    workers: int
    gpus_per_worker: int = 1
    ps: int | None = None
    model: str = ""
    tenant: str = ""
    home: int | None = None
    milli: int = WHOLE
    gpu_type: str = ""
    ended: str = ENDS[0]


@dataclasses.dataclass(frozen=True)
class Format:
    """A trace format: `parse` gives a row's job, or the reason why the row is not one."""

    name: str
    required: tuple[str, ...]
    parse: Callable[[Row], Job | str]
    from_start: bool  # submit times count from the first job
    optional: tuple[str, ...] | None = None  # None: any other column may be there and is not read
    model: str = ""  # the column that names models, if they must be named


def _philly(row: Row) -> Job:
    """Microsoft Philly as ElasticFlow publishes it; `cluster` is the virtual cluster."""
    return Job(
        job_id=str(row.line - 2),
        submit_s=row.timestamp_s("timestamp"),
        duration_s=row.seconds("duration"),
        workers=row.whole("num_gpus", minimum=1),
        tenant=row.text("cluster"),
        ended=_ended(row, "status", {"Passed": "completed", "Killed": "cancelled", "Failed": "failed"}),
    )


def _muri(row: Row) -> Job:
    """Muri: `submit_time` and `duration` are milliseconds."""
    return Job(
        job_id=row.name("job_id"),
        submit_s=row.number("submit_time", minimum=0, maximum=1000 * LONGEST_S) / 1000,
        duration_s=row.seconds("duration", per_second=1000),
        workers=row.whole("num_gpu", minimum=1),
        model=row.text("model_name"),
    )


def _openb(row: Row) -> Job | str:
    """Alibaba openb pods, times in seconds. A pod of one GPU may ask for a share of it, `gpu_milli` thousandths."""
    gpus = row.whole("num_gpu", minimum=0)
    if gpus == 0:
        return "no GPU"
    milli = _milli(row, gpus)
    if not row.text("scheduled_time") and row.text("pod_phase") in ("Pending", ""):
        return "never scheduled"
    if not row.text("deletion_time"):
        return "never deleted"
    created = row.number("creation_time", minimum=0, maximum=LONGEST_S)
    started = row.number("scheduled_time", minimum=0, maximum=LONGEST_S) if row.text("scheduled_time") else created
    duration = row.number("deletion_time", minimum=0, maximum=LONGEST_S) - started
    if duration <= 0:
        return "no positive duration"
    ended = _ended(row, "pod_phase", {"Succeeded": "completed", "Failed": "failed"}, strictly=False)
    return Job(row.name("name"), created, max(duration, SHORTEST_S), workers=gpus, milli=milli, ended=ended)


def _native(row: Row) -> Job:
    """Our own format (see the module's docstring)."""
    gpus = row.whole("num_gpus", minimum=1)

    def given(field: str, minimum: int, maximum: int = 2**31 - 1) -> int | None:
        return row.whole(field, minimum=minimum, maximum=maximum) if row.text(field) else None

    workers, per_worker = given("num_workers", 1), given("gpus_per_worker", 1)
    per_worker = (1 if workers is None else gpus // workers) if per_worker is None else per_worker
    workers = gpus // max(per_worker, 1) if workers is None else workers
    if workers * per_worker != gpus:
        raise row.fail("num_gpus", f"num_workers * gpus_per_worker = {workers} * {per_worker} = {workers * per_worker}")
    return Job(
        job_id=row.name("job_id"),
        submit_s=row.number("submit_time_s", minimum=0, maximum=LONGEST_S),
        duration_s=row.seconds("duration_s"),
        workers=workers,
        gpus_per_worker=per_worker,
        ps=given("num_ps", 0, MOST_PS),
        model=row.text("model"),
        tenant=row.text("tenant"),
        home=given("home", 0),
        milli=_milli(row, gpus) if row.text("gpu_milli") else WHOLE,
        gpu_type=row.text("gpu_type"),
        ended=_ended(row, "ended", {name: name for name in ENDS}),
    )


def _ended(row: Row, field: str, names: Mapping[str, str], *, strictly: bool = True) -> str:
    """How the job ended, by the trace's own `names`; a trace that does not say has completed jobs."""
    text = row.text(field)
    if strictly and text and text not in names:
        raise row.fail(field, f"one of {', '.join(names)}")
    return names.get(text, ENDS[0])


def _milli(row: Row, gpus: int) -> int:
    """Thousandths of each GPU; only a job of one GPU may have fewer than all."""
    milli = row.whole("gpu_milli", minimum=1)
    if milli > WHOLE or (milli < WHOLE and gpus != 1):
        raise row.fail("gpu_milli", f"{WHOLE} thousandths, or fewer for a job of one GPU")
    return milli


FORMATS = (
    Format(
        "native",
        ("job_id", "submit_time_s", "num_gpus", "duration_s"),
        _native,
        from_start=False,
        optional=(
            "model",
            "num_workers",
            "num_ps",
            "gpus_per_worker",
            "tenant",
            "home",
            "gpu_milli",
            "gpu_type",
            "ended",
        ),
    ),
    Format(
        "muri",
        ("job_id", "num_gpu", "submit_time", "model_name", "duration"),
        _muri,
        from_start=False,
        model="model_name",
    ),
    Format("philly", ("timestamp", "duration", "num_gpus", "cluster"), _philly, from_start=True),
    Format("openb", ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"), _openb, True),
)


def detect_format(table: Table) -> Format:
    """The format whose columns stand in the header. UserError if there is none, with the known formats."""
    path, header = table.path, table.header
    for form in FORMATS:
        if set(form.required) <= set(header):
            unknown = set() if form.optional is None else set(header) - set(form.required) - set(form.optional)
            if unknown:
                raise UserError(
                    f"{path}, line 1: unknown column {shortened(sorted(unknown)[0])!r} in a {form.name} trace, should "
                    f"be one of {', '.join((*form.required, *(form.optional or ())))}"
                )
            return form
    known = "; ".join(f"{form.name} ({','.join(form.required)})" for form in FORMATS)
    found = shortened(",".join(header), 200)
    raise UserError(f"{path}, line 1: the header {found!r} is of no known trace format: {known}")


def read_trace(
    path: str | Path,
    *,
    seed: int = 0,
    ps_fraction: float = PS_FRACTION,
    mix: str | Mix | Mapping[str, float] = "default",
    catalogue: Catalogue = BUILT_IN,
) -> tuple[JobList, dict[str, int]]:
    """(jobs sorted by submit time, skipped rows by reason) of a trace in any of the known formats.

    `seed`, `ps_fraction` and `mix` fill in what the trace does not say (see the module's docstring). A UserError is
    one line with the file, the line, the field, what is wrong and what would be right.
    """
    path = Path(path)
    table = read_table(path)
    form = detect_format(table)
    jobs: list[Job] = []
    skipped: Counter[str] = Counter()
    lines: dict[str, int] = {}
    for row in rows_of(table):
        job = form.parse(row)
        if isinstance(job, str):
            skipped[job] += 1
            continue
        if (job.model or form.model) and job.model not in catalogue:
            raise row.fail(form.model or "model", f"one of the known models {', '.join(catalogue.names)}")
        first = lines.setdefault(job.job_id, row.line)
        if first != row.line:
            raise UserError(
                f"{path}, line {row.line}, {'name' if form.name == 'openb' else 'job_id'}: {shortened(job.job_id)!r} "
                f"stands in line {first} already, every job needs its own"
            )
        jobs.append(job)
    if not jobs:
        left = "".join(f", {count:,} rows left out ({reason})" for reason, count in skipped.items())
        raise UserError(f"{path}: no job in the file{left}, should have at least one")
    return _job_list(jobs, form, np.random.default_rng(seed), ps_fraction, get_mix(mix, catalogue)), dict(skipped)


def _job_list(jobs: list[Job], form: Format, rng: np.random.Generator, ps_fraction: float, mix: Mix) -> JobList:
    """Arrays of `jobs`, gaps filled in; models are places in the mix's catalogue.

    What is drawn depends on a job's place in the order of submission, not on that of lines.
    """
    catalogue, jobs = mix.catalogue, sorted(jobs, key=lambda job: job.submit_s)
    workers = np.array([job.workers for job in jobs])
    submit = np.array([job.submit_s for job in jobs])
    drawn_ps = draw_ps(rng, workers, ps_fraction)
    drawn_model = rng.choice(len(catalogue.models), size=len(jobs), p=mix.probabilities)
    return make_job_list(
        submit - submit.min() if form.from_start else submit,
        [job.duration_s for job in jobs],
        workers,
        gpus_per_worker=[job.gpus_per_worker for job in jobs],
        ps=_filled((job.ps for job in jobs), drawn_ps),
        model=_filled((catalogue.index(job.model) if job.model else None for job in jobs), drawn_model),
        models=len(catalogue.models),
        tenant=_tenants([job.tenant for job in jobs]),
        home=_filled((job.home for job in jobs), np.arange(len(jobs))),
        milli=[job.milli for job in jobs],
        gpu_type=[job.gpu_type for job in jobs],
        ended=[ENDS.index(job.ended) for job in jobs],
        given_s=submit,
        job_id=[job.job_id for job in jobs],
    )


def _filled(given: Iterable[int | None], otherwise: Int[np.ndarray, "J"]) -> Int[np.ndarray, "J"]:
    return np.array([other if value is None else value for value, other in zip(given, otherwise, strict=True)])


def _tenants(names: list[str]) -> Int[np.ndarray, "J"]:
    """Numbers as they are where all tenants are numbers, otherwise 0..V-1 in order of first appearance."""
    if all(_TENANT.fullmatch(name) for name in names):
        return np.array([int(name) for name in names])
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names])


def draw_ps(rng: np.random.Generator, workers: Int[np.ndarray, "J"], ps_fraction: float) -> Int[np.ndarray, "J"]:
    """max(1, workers // 4) PS for a random share `ps_fraction` of the jobs of several workers, else 0."""
    if not 0 <= ps_fraction <= 1:
        raise UserError(f"ps_fraction: {ps_fraction} should be between 0 and 1")
    return np.where((workers > 1) & (rng.random(len(workers)) < ps_fraction), np.maximum(1, workers // 4), 0)


def write_native(path: str | Path, jobs: JobList, catalogue: Catalogue = BUILT_IN) -> None:
    """Writes `jobs` in the native format; `read_trace` gives back the very same jobs."""
    columns = {
        "job_id": jobs.job_id,
        "submit_time_s": jobs.submit_s,
        "num_gpus": jobs.num_gpus,
        "duration_s": jobs.duration_s,
        "model": np.array(catalogue.names)[jobs.model],
        "num_workers": jobs.workers,
        "num_ps": jobs.ps,
        "gpus_per_worker": jobs.gpus_per_worker,
        "tenant": jobs.tenant,
        "home": jobs.home,
        **({"gpu_milli": jobs.milli} if (jobs.milli < WHOLE).any() else {}),
        **({"gpu_type": jobs.gpu_type} if (jobs.gpu_type != "").any() else {}),
        **({"ended": np.array(ENDS)[jobs.ended]} if jobs.ended.any() else {}),
    }
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
