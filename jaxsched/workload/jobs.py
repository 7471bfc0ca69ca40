"""Jobs: the host's list (exact float64 times) and the device's table (interval index plus offset in float32).

A float32 second has too few bits for a trace of months, so the device never sees absolute seconds: a job's submit time
is the boundary at which the scheduler first sees it and the lead, the seconds it was submitted before that boundary.

What a list asks of a cluster, its load, is here, too: stretched to another one, and with jobs that share GPUs.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Float64, Int, Int32, Int64, Shaped
from numpy.typing import ArrayLike

from jaxsched.border import checked, perhaps
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.pytree import Pytree, on_device
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.models import MODEL_NAMES

WHOLE = 1000  # thousandths of a GPU
MOST_PS = 2**15 - 1  # parameter servers of a job: a group may have all of them, which are counted in int16
MOST_ASKED = 2**30  # thousandths of cores, or MiB, that a worker reserves: int32 holds them
ENDS = ("completed", "cancelled", "failed")  # how a job ended, as its trace says
MILLI = np.float32(0.001)  # times `WHOLE` it is exactly 1


@dataclasses.dataclass(frozen=True)
class JobList:
    """Jobs on the host, sorted by submit time (stable)."""

    job_id: Shaped[np.ndarray, "J"]  # strings
    submit_s: Float64[np.ndarray, "J"]  # seconds from the trace's start
    duration_s: Float64[np.ndarray, "J"]  # run time on the ideal, uncontended placement, on GPUs of `gpu_type`
    workers: Int32[np.ndarray, "J"]
    gpus_per_worker: Int32[np.ndarray, "J"]
    ps: Int32[np.ndarray, "J"]  # 0 = all-reduce
    model: Int32[np.ndarray, "J"]  # index into the catalogue
    tenant: Int32[np.ndarray, "J"]  # 0..V-1, e.g. the virtual cluster
    home: Int32[np.ndarray, "J"]  # the scheduler that first gets the job is home % P
    estimate_ratio: Float64[np.ndarray, "J"]  # the duration that policies see over the true one
    milli: Int32[np.ndarray, "J"]  # thousandths of a GPU per worker; below 1000 (`WHOLE`) the job shares its only GPU
    gpu_type: Shaped[np.ndarray, "J"]  # strings: what run times are on; "" = the cluster's reference type
    ended: Int32[np.ndarray, "J"]  # index into ENDS: run times are those until then, whichever it was
    given_s: Float64[np.ndarray, "J"]  # when the input says it was submitted, whatever `submit_s` was made of it
    tenant_name: Shaped[np.ndarray, "J"]  # strings, as the input has them; else the number
    user: Shaped[np.ndarray, "J"]  # strings; "" = the input names none
    allowed: Shaped[np.ndarray, "J"]  # strings: the GPU types that it may use, `A100|H100`; "" = any
    cpu_milli: Int32[np.ndarray, "J"]  # thousandths of a CPU core that each worker reserves
    memory_mib: Int32[np.ndarray, "J"]  # likewise
    due_s: Float64[np.ndarray, "J"]  # seconds after its submission by which it should be done; inf: no deadline

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def estimate_s(self) -> Float64[np.ndarray, "J"]:
        """The duration that policies see."""
        return self.duration_s * self.estimate_ratio

    @property
    def num_gpus(self) -> Int64[np.ndarray, "J"]:
        """GPUs that the whole gang lies on."""
        return self.workers.astype(np.int64) * self.gpus_per_worker

    @property
    def gpu_demand(self) -> Float64[np.ndarray, "J"]:
        """GPUs that the whole gang reserves; a job that shares a GPU counts its fraction."""
        return self.num_gpus * self.milli / WHOLE


class JobTable(Pytree):
    """Jobs on the device, sorted by submit time; in batches the axis J comes last. Padding: arrival = NEVER.

    Whole numbers may be of smaller types: `look_up` reads them.
    """

    arrival: Int32[Array, "J"]  # boundary index at which the job is first seen
    lead_s: Float32[Array, "J"]  # seconds between submission and that boundary, in [0, interval)
    duration_s: Float32[Array, "J"]
    estimate_s: Float32[Array, "J"]  # the duration that policies see
    workers: Int[Array, "J"]
    gpus_per_worker: Int[Array, "J"]
    ps: Int[Array, "J"]
    model: Int[Array, "J"]
    tenant: Int[Array, "J"]
    home: Int[Array, "J"]  # partition of first arrival; -1: rejected, fits nowhere
    milli: Int32[Array, "Js"] = dataclasses.field(default_factory=lambda: on_device([], np.int32))
    """Thousandths of a GPU per worker; of size 0 where all jobs have whole GPUs."""
    allowed: Int32[Array, "Jb"] = dataclasses.field(default_factory=lambda: on_device([], np.int32))
    """The set of GPU types that it may use, an index of `EnvConfig.gpu_sets`; of size 0 where all may use any."""
    asks: Int32[Array, "r Jq"] = dataclasses.field(default_factory=lambda: on_device(np.zeros((0, 0)), np.int32))
    """What each worker reserves of its server, CPUs in thousandths and MiB; of size 0 where no job does."""


NEVER = np.int32(2**31 - 1)


def look_up(column: Int[Any, "J"], row: Int[Any, "*jobs"]) -> Int32[Any, "*jobs"]:
    """Whole numbers of the jobs in these rows, whatever their type in a `JobTable`; NumPy's arrays give such."""
    return column[row].astype(jnp.int32)


Texts = str | Sequence[str] | np.ndarray


class JobColumns(TypedDict, total=False):
    """What may be said of jobs beside submit time, run time and workers: one value for all, or one per job."""

    gpus_per_worker: ArrayLike  # left out: 1
    ps: ArrayLike  # 0
    model: ArrayLike  # 0
    tenant: ArrayLike  # 0
    home: ArrayLike | None  # round robin in order of submission
    milli: ArrayLike  # `WHOLE`
    gpu_type: Texts  # ""
    ended: ArrayLike  # 0
    given_s: ArrayLike | None  # `submit_s`
    estimate_s: ArrayLike | None  # the run time itself, and so where it is NaN
    tenant_name: Texts | None  # the tenant's number
    user: Texts  # ""
    cpu_milli: ArrayLike  # 0
    memory_mib: ArrayLike  # 0
    allowed: Texts  # GPU types that it may use, such as `A100` or `A100|H100`; "": any
    due_s: ArrayLike  # seconds from the submission to the deadline, above 0; inf, as where it is left out: none
    job_id: Texts | None  # the number in order of submission


_WHOLE_NUMBERS = {  # least, most, and what it is where nothing is said
    "gpus_per_worker": (1, np.inf, 1),
    "ps": (0, MOST_PS, 0),
    "model": (0, np.inf, 0),
    "tenant": (0, np.inf, 0),
    "milli": (1, WHOLE, WHOLE),
    "cpu_milli": (0, MOST_ASKED, 0),
    "memory_mib": (0, MOST_ASKED, 0),
    "ended": (0, len(ENDS) - 1, 0),
}


@checked
def make_job_list(
    submit_s: ArrayLike,
    duration_s: ArrayLike,
    workers: ArrayLike,
    *,
    models: int = len(MODEL_NAMES),
    **columns: Unpack[JobColumns],
) -> JobList:
    """Checked jobs, sorted by submit time (stable).

    Args:
        submit_s: seconds from the trace's start, one per job.
        duration_s: run times in seconds, one per job or one for all.
        workers: likewise.
        models: in the catalogue.
        columns: fields of `JobList`, as `JobColumns` has them.

    Returns:
        The list, whose arrays have one entry per job.

    Raises:
        UserError: names the field, the first bad job (its position in the arguments) and what would be right.
    """
    for name in columns:
        if name not in JobColumns.__annotations__:
            known = [*JobColumns.__annotations__, "models"]
            raise UserError(f"make_job_list: jobs have no {name!r}{perhaps(name, known)}; they have {', '.join(known)}")
    if models < 1:
        raise UserError(f"models: {models} should be at least 1, the models of the catalogue")
    given: dict[str, Any] = {name: values for name, values in columns.items() if values is not None}
    submit = np.atleast_1d(_numbers("submit_s", submit_s))
    size = len(submit)
    found = {
        "submit_s": _column("submit_s", submit, size, np.float64, 0.0),
        "duration_s": _column("duration_s", duration_s, size, np.float64, SHORTEST_S, maximum=LONGEST_S),
        "workers": _column("workers", workers, size, np.int32, 1),
        "given_s": _column("given_s", given.get("given_s", submit), size, np.float64, -np.inf),
        "estimate_ratio": np.ones(size),
    }
    for name, (least, most, usual) in _WHOLE_NUMBERS.items():
        most = models - 1 if name == "model" else most
        found[name] = _column(name, given.get(name, usual), size, np.int32, least, maximum=most)
    _check_fractions(found)
    if "estimate_s" in given:
        estimate = _one_each("estimate_s", _numbers("estimate_s", given["estimate_s"]), size)
        found["estimate_ratio"] = np.where(np.isfinite(estimate), estimate / found["duration_s"], 1.0)
    found["due_s"] = _due(given.get("due_s", np.inf), size)
    for name, usual in {"gpu_type": "", "tenant_name": found["tenant"], "user": "", "allowed": ""}.items():
        found[name] = _one_each(name, _texts(name, given.get(name, usual)), size)
    found["allowed"] = _gpu_types(found["allowed"])
    if "home" in given:
        found["home"] = _column("home", given["home"], size, np.int32, 0)
    if "job_id" in given:
        found["job_id"] = _job_ids(given["job_id"], size)
    order, numbers = np.argsort(submit, kind="stable"), np.arange(size, dtype=np.int32)
    found = {name: column[order] for name, column in found.items()}
    return JobList(**({"home": numbers, "job_id": numbers.astype(str)} | found))


def _due(values: ArrayLike, size: int) -> Float64[np.ndarray, "J"]:
    """Seconds from submissions to deadlines, checked to be above 0."""
    due = _one_each("due_s", _numbers("due_s", values), size)
    if not (due > 0).all():
        at = int((due > 0).argmin())
        raise UserError(f"due_s: job {at} has {due[at]:g}, should be above 0 (inf: no deadline)")
    return due


def split_types(text: str) -> tuple[str, ...]:
    """The GPU types of a list with bars between them: `A100|H100`; none where it is empty."""
    return tuple(filter(None, (name.strip() for name in text.split("|"))))


def join_types(names: Iterable[str]) -> str:
    """As `split_types` reads it: in alphabetical order, each once."""
    return "|".join(sorted(set(names)))


def _gpu_types(texts: Shaped[np.ndarray, "J"]) -> Shaped[np.ndarray, "J"]:
    """The lists in one way of writing. UserError on one that is not empty and names no type."""
    different, place = np.unique(texts, return_inverse=True)
    for text in different.tolist():
        if text and not split_types(text):
            raise UserError(f"allowed: {text!r} should be GPU types such as A100|H100, or empty for any")
    return np.array([join_types(split_types(text)) for text in different.tolist()], str)[place]


def _column(
    name: str,
    values: ArrayLike,
    size: int,
    dtype: type,
    minimum: float,
    *,
    exclusive: bool = False,
    maximum: float = np.inf,
) -> Shaped[np.ndarray, "J"]:
    """`values` as `size` values of `dtype`, checked to be finite, whole where `dtype` is, and within the limits."""
    raw = _one_each(name, _numbers(name, values), size)
    maximum = min(maximum, np.iinfo(np.int32).max) if dtype is np.int32 else maximum
    bad = ~np.isfinite(raw) | (raw > maximum) | (raw <= minimum if exclusive else raw < minimum)
    if dtype is np.int32:
        bad |= raw != np.round(raw)
    if bad.any():
        kind = "a whole number" if dtype is np.int32 else "a finite number"
        limit = f"{'>' if exclusive else '>='} {minimum:g}" + (f" and <= {maximum:g}" if np.isfinite(maximum) else "")
        raise UserError(f"{name}: job {int(bad.argmax())} has {raw[bad.argmax()]:g}, should be {kind} {limit}")
    return raw.astype(dtype)


def _numbers(name: str, values: ArrayLike) -> Float64[np.ndarray, "*shape"]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name}: {shorten(repr(values))} should be numbers") from None


def _texts(name: str, values: str | Sequence[str] | np.ndarray) -> Shaped[np.ndarray, "*shape"]:
    try:
        return np.asarray(values).astype(str)
    except (TypeError, ValueError):
        raise UserError(f"{name}: {shorten(repr(values))} should be texts") from None


def _one_each(name: str, values: Shaped[np.ndarray, "*shape"], size: int) -> Shaped[np.ndarray, "J"]:
    """One value for every job, or one per job."""
    if values.ndim > 1 or (values.ndim == 1 and len(values) != size):
        raise UserError(f"{name}: shape {values.shape}, should be one value or one per job ({size},)")
    return np.broadcast_to(values, (size,))


def _check_fractions(columns: dict[str, Shaped[np.ndarray, "J"]]) -> None:
    """UserError on a job that shares a GPU and is more than one worker of one GPU."""
    single = (columns["workers"] == 1) & (columns["gpus_per_worker"] == 1) & (columns["ps"] == 0)
    bad = (columns["milli"] < WHOLE) & ~single
    if bad.any():
        job = int(bad.argmax())
        raise UserError(
            f"milli: job {job} has {columns['milli'][job]} with {columns['workers'][job]} workers of "
            f"{columns['gpus_per_worker'][job]} GPUs and {columns['ps'][job]} PS, should be 1 worker of 1 GPU, no PS"
        )


def _job_ids(job_id: Sequence[str] | np.ndarray, size: int) -> Shaped[np.ndarray, "J"]:
    """The names as an array of `size` strings, checked to be unique."""
    ids = _texts("job_id", job_id)
    if ids.shape != (size,):
        raise UserError(f"job_id: shape {ids.shape}, should be one per job ({size},)")
    if len(set(ids.tolist())) < size:
        names, counts = np.unique(ids, return_counts=True)
        raise UserError(
            f"job_id: {str(names[counts > 1][0])!r} stands for {counts.max()} jobs, every job needs its own"
        )
    return ids


def take(jobs: JobList, index: slice | ArrayLike) -> JobList:
    """The jobs at `index` (slice, positions or mask), in order of submission; submit times stay as they are."""
    kept = np.sort(np.arange(len(jobs))[index if isinstance(index, slice) else np.asarray(index)])
    return JobList(**{f.name: getattr(jobs, f.name)[kept] for f in dataclasses.fields(JobList)})


def first_boundary(submit_s: Float64[np.ndarray, "J"], interval_s: float) -> Float64[np.ndarray, "J"]:
    """Whole numbers: the first i with `submit_s <= i * interval_s`."""
    boundary = np.ceil(submit_s / interval_s)
    boundary = np.where(boundary * interval_s < submit_s, boundary + 1, boundary)  # the division rounded down
    return np.where((boundary - 1) * interval_s >= submit_s, boundary - 1, boundary)  # or up


def gpu_sets(job_lists: Iterable[JobList]) -> tuple[str, ...]:
    """The different `allowed` of all jobs, "" first; none where every job may use any GPU."""
    sets = set().union(*(np.unique(jobs.allowed).tolist() for jobs in job_lists)) - {""}
    return ("", *sorted(sets)) if sets else ()


def ask_for_more(job_lists: Iterable[JobList]) -> bool:
    """Whether some job reserves CPUs or memory beside GPUs."""
    return any(bool(jobs.cpu_milli.any() or jobs.memory_mib.any()) for jobs in job_lists)


def to_table(
    jobs: JobList,
    interval_s: float,
    home: Int[np.ndarray, "J"] | None = None,
    *,
    sets: Sequence[str] = (),
    asks: bool = False,
) -> JobTable:
    """The jobs on the device: `arrival` is the first boundary i with `submit_s <= i * interval_s` (in float64).

    Run times must be on the cluster's reference GPU type: see `dynamics.reference.on_reference`. `home` replaces
    the jobs' own. `sets`: as of `gpu_sets`. `asks`: as of `ask_for_more`. UserError if `interval_s` is not positive
    or a boundary exceeds int32.
    """
    if not (np.isfinite(interval_s) and interval_s > 0):
        raise UserError(f"interval_s: {interval_s} should be a finite number > 0")
    boundary = first_boundary(jobs.submit_s, interval_s)
    if len(jobs) and boundary[-1] >= NEVER:
        raise UserError(
            f"interval_s: {interval_s:g} s is too short for a trace of {jobs.submit_s[-1]:g} s (2^31 boundaries)"
        )
    below = np.nextafter(np.float32(interval_s), np.float32(0))
    lead = np.minimum((boundary * interval_s - jobs.submit_s).astype(np.float32), below)
    homes = jobs.home if home is None else _column("home", home, len(jobs), np.int32, -1)
    return JobTable(
        arrival=on_device(boundary, np.int32),
        lead_s=on_device(lead, np.float32),
        duration_s=on_device(jobs.duration_s, np.float32),
        estimate_s=on_device(jobs.estimate_s, np.float32),
        workers=on_device(jobs.workers, np.int32),
        gpus_per_worker=on_device(jobs.gpus_per_worker, np.int32),
        ps=on_device(jobs.ps, np.int32),
        model=on_device(jobs.model, np.int32),
        tenant=on_device(jobs.tenant, np.int32),
        home=on_device(homes, np.int32),
        milli=on_device(jobs.milli, np.int32),
        asks=on_device([jobs.cpu_milli, jobs.memory_mib] if asks else np.zeros((0, 0)), np.int32),
        allowed=on_device([sets.index(text) for text in jobs.allowed.tolist()] if sets else [], np.int32),
    )


# What a padding row holds: never arrives, and harmless where it is computed with all the same.
_PADDING = {"arrival": NEVER, "duration_s": 1.0, "estimate_s": 1.0, "workers": 1, "gpus_per_worker": 1, "milli": WHOLE}


def pad_table(table: JobTable, size: int) -> JobTable:
    """`table` with its trailing axis padded to `size` jobs that never arrive. UserError if it has more already."""
    missing = size - table.arrival.shape[-1]
    if missing < 0:
        raise UserError(f"size: {size} is less than the {table.arrival.shape[-1]} jobs of the table")

    def pad(name: str, leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, missing)], constant_values=_PADDING.get(name, 0))

    leaves = {field.name: getattr(table, field.name) for field in dataclasses.fields(JobTable)}
    here = table.arrival.shape[-1]
    return JobTable(**{name: pad(name, leaf) if leaf.shape[-1] == here else leaf for name, leaf in leaves.items()})


def from_start(jobs: JobList) -> JobList:
    """The same jobs with the first one submitted at 0 s."""
    return dataclasses.replace(jobs, submit_s=jobs.submit_s - (jobs.submit_s[0] if len(jobs) else 0.0))


def offered_load(jobs: JobList, total_gpus: int) -> float:
    """sum(GPUs * duration) / (span * total_gpus), span = last - first submit; fractions of GPUs count as such.

    UserError if the span is 0.
    """
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0]) if len(jobs) else 0.0
    if span_s <= 0 or total_gpus < 1:
        raise UserError(
            f"load: needs jobs at two different times and total_gpus >= 1, not span {span_s:g} s, {total_gpus} GPUs"
        )
    return float(jobs.gpu_demand @ jobs.duration_s) / (span_s * total_gpus)


def thousandths(share: float) -> int:
    """A share of a GPU in thousandths. UserError unless it is from 0.001 to 1."""
    if not 1 / WHOLE <= share <= 1.0:
        raise UserError(f"gpu_share: {share} should be from {1 / WHOLE:g} to 1")
    return round(share * WHOLE)


def sharing(jobs: JobList, share: float) -> JobList:
    """The same jobs; those of one whole GPU, without parameter servers, ask for `share` of it, in thousandths.

    UserError if `share` is out of its range, or less than 1 and for none of the jobs.
    """
    milli, alone = thousandths(share), (jobs.num_gpus == 1) & (jobs.ps == 0) & (jobs.milli == WHOLE)
    if milli < WHOLE and not alone.any():
        raise UserError(f"gpu_share: {share} of a GPU is for jobs of one whole GPU, and there are none")
    return dataclasses.replace(jobs, milli=np.where(alone, milli, jobs.milli).astype(np.int32))


def rescale_to_load(jobs: JobList, total_gpus: int, load: float) -> JobList:
    """The same jobs, submit times stretched about the first so that `offered_load` is `load`; the first is at 0 s."""
    if not (np.isfinite(load) and load > 0):
        raise UserError(f"load: {load} should be a finite number > 0")
    stretch = offered_load(jobs, total_gpus) / load
    return dataclasses.replace(jobs, submit_s=(jobs.submit_s - jobs.submit_s[0]) * stretch)
