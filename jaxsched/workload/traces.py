"""Reads job logs of every known source into job lists, and writes our own format. All columns tell which source it is.

What a log does not say is filled in with a seed: `gpus_per_worker` = 1; a share `ps_fraction` of the jobs of several
workers uses max(1, workers // 4) parameter servers, the others all-reduce (both assumptions); the model is drawn from
a mix; the home is round robin. A log that does not say how jobs ended has completed jobs.
"""

import csv
import dataclasses
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Shaped

from jaxsched.errors import NotRead, UserError
from jaxsched.io.files import atomic_path, shorten
from jaxsched.workload.catalogue import BUILT_IN, Catalogue, Mix, get_mix
from jaxsched.workload.jobs import ENDS, WHOLE, JobList, make_job_list
from jaxsched.workload.readers.batch_systems import SLURM, SWF
from jaxsched.workload.readers.cells import COLUMNS, LISTED, PLAN_COLUMNS, Cells, Findings, Source
from jaxsched.workload.readers.clusters import ACME, HELIOS, OPENB, PAI, PHILLY, PHILLY_LOG, SPOT
from jaxsched.workload.readers.native import NATIVE
from jaxsched.workload.readers.simulators import GAVEL, ITP, MURI, POLLUX, TIRESIAS
from jaxsched.workload.readers.table import read_log_table

PS_FRACTION = 0.5
FORMATS: tuple[Source, ...] = (
    *(NATIVE, SLURM, PHILLY, PHILLY_LOG, HELIOS, ACME, OPENB, PAI, SPOT),
    *(TIRESIAS, MURI, ITP, GAVEL, POLLUX, SWF),
)
_TENANT = re.compile("0|[1-9][0-9]{0,8}")  # written in one way only: 07 and 7 are two names


@dataclasses.dataclass(frozen=True)
class Log:
    """A job log as it was understood, before what it does not say is filled in."""

    path: Path
    source: Source
    header: tuple[str, ...]
    jobs: Mapping[str, Shaped[np.ndarray, "J"]]  # the names of `COLUMNS`, in order of submission
    skipped: dict[str, int]  # rows that are no jobs, by reason
    notes: dict[str, int]  # what else should be known, with the number of jobs that it is about
    dated: bool  # submit times are seconds since 1970

    @property
    def unread(self) -> tuple[str, ...]:
        """The file's columns that have no effect."""
        return self.source.unread(self.header)


def read_log(
    path: str | Path, *, catalogue: Catalogue = BUILT_IN, format: str | None = None, strict: bool = False
) -> Log:
    """Reads a job log: a file, packed with gzip or zstd or not, or `-`, standard input.

    Args:
        path: the file.
        catalogue: the models that it may name.
        format: the name of one of `FORMATS`, for a file that its columns do not tell.
        strict: rows that are no jobs are mistakes; otherwise they are left out and counted.

    Raises:
        UserError: with the line, the field, what is wrong and what would be right; `Mistakes` where there are several.
    """
    path = Path(path)
    table = read_log_table(path, FORMATS, format, strict)
    source, found = table.source, table.found
    pieces: list[dict[str, Any]] = []
    lines: list[np.ndarray] = []
    for piece in table.pieces:
        cells = Cells(piece, found)
        columns = dict(source.read(cells))
        columns["model"] = _models(cells, columns.get("model"), source, catalogue)
        lines.append(np.asarray(piece.numbers, np.int64)[cells.keep])
        pieces.append({name: _kept(columns[name], cells.keep) for name in columns if columns[name] is not None})
    numbers = np.concatenate(lines) if lines else np.zeros(0, np.int64)
    jobs = {name: _column(pieces, name, len(numbers)) for name in COLUMNS}
    if source.joined is None:
        _check_names(found, jobs["job_id"], numbers, source)
    found.check()
    if source.joined is not None and len(numbers):
        jobs = source.joined(jobs)
    if not len(jobs["job_id"]):
        raise UserError(f"{path}: no job in the file{left_out(found.skipped)}, should have at least one")
    order = np.argsort(jobs["submit_s"], kind="stable")
    dated = bool(found.dated) or (source.from_start and bool(jobs["submit_s"].max() > 1e8))
    ordered = {name: column[order] for name, column in jobs.items()}
    return Log(path, source, table.header, ordered, dict(found.skipped), dict(found.notes), dated)


def read_trace(
    path: str | Path,
    *,
    seed: int = 0,
    ps_fraction: float = PS_FRACTION,
    mix: str | Mix | Mapping[str, float] = "default",
    catalogue: Catalogue = BUILT_IN,
    format: str | None = None,
    strict: bool = False,
) -> tuple[JobList, dict[str, int]]:
    """(jobs sorted by submit time, skipped rows by reason) of a job log: see `read_log`.

    `seed`, `ps_fraction` and `mix` fill in what the log does not say (see the module's docstring). Columns that have no
    effect give the warning `NotRead`, and so do run times that were asked for, which are what policies see.
    """
    log = read_log(path, catalogue=catalogue, format=format, strict=strict)
    told = note_texts(log.notes)
    if log.unread:
        told.insert(0, f"not read: {', '.join(map(shorten, log.unread))}")
    if asked := int(np.isfinite(log.jobs["estimate_s"]).sum()):
        told.append(f"policies that know run times see those that users asked for, not the true ones ({asked:,} jobs)")
    if told:
        warnings.warn(f"{log.path}: {'; '.join(told)}", NotRead, stacklevel=2)
    return fill_in(log, seed=seed, ps_fraction=ps_fraction, mix=mix, catalogue=catalogue), log.skipped


def fill_in(
    log: Log,
    *,
    seed: int = 0,
    ps_fraction: float = PS_FRACTION,
    mix: str | Mix | Mapping[str, float] = "default",
    catalogue: Catalogue = BUILT_IN,
) -> JobList:
    """The jobs of a log, gaps filled in; models are places in the mix's catalogue.

    What is drawn depends on a job's place in the order of submission, not on that of lines.
    """
    jobs, mix = log.jobs, get_mix(mix, catalogue)
    rng, size = np.random.default_rng(seed), len(log.jobs["job_id"])
    drawn_ps = draw_ps(rng, jobs["workers"], ps_fraction)
    drawn_model = rng.choice(len(mix.catalogue.models), size=size, p=mix.probabilities)
    names, place = np.unique(jobs["model"], return_inverse=True)
    known = np.array([mix.catalogue.index(name) if name else -1 for name in names.tolist()])[place]
    model, submit = np.where(known < 0, drawn_model, known), jobs["submit_s"]
    alike = np.array([one.patterns is not None for one in mix.catalogue.models])[model]  # plans have no PS
    return make_job_list(
        submit - submit.min() if log.dated or log.source.from_start else submit,
        jobs["duration_s"],
        jobs["workers"],
        gpus_per_worker=jobs["gpus_per_worker"],
        ps=np.where(jobs["ps"] < 0, np.where(alike, 0, drawn_ps), jobs["ps"]),
        model=model,
        models=len(mix.catalogue.models),
        tenant=_tenants(jobs["tenant"].tolist()),
        tenant_name=jobs["tenant"] if (jobs["tenant"] != "").any() else None,
        user=jobs["user"],
        home=np.where(jobs["home"] < 0, np.arange(size), jobs["home"]),
        milli=jobs["milli"],
        gpu_type=jobs["gpu_type"],
        allowed=jobs["allowed"],
        cpu_milli=jobs["cpu_milli"],
        memory_mib=jobs["memory_mib"],
        ended=jobs["ended"],
        estimate_s=jobs["estimate_s"],
        due_s=jobs["due_s"],
        given_s=submit,
        job_id=jobs["job_id"],
    )


def left_out(skipped: Mapping[str, int]) -> str:
    """`, 2 rows left out (no GPU)` for every reason that there is."""
    told = [f", {count:,} row{'s' * (count > 1)} left out ({reason})" for reason, count in skipped.items() if count]
    return "".join(told)


def note_texts(notes: Mapping[str, int]) -> list[str]:
    """`text (2 jobs)` of the first notes, and how many more there are."""
    told = [f"{text} ({count:,} jobs)" for text, count in itertools.islice(notes.items(), LISTED)]
    return [*told, f"{len(notes) - LISTED:,} notes more"] if len(notes) > LISTED else told


def _kept(column: Any, keep: np.ndarray) -> Any:
    if isinstance(column, np.ndarray):
        return column[keep]
    return column if keep.all() else [entry for entry, kept in zip(column, keep) if kept]


def _column(pieces: Sequence[Mapping[str, Any]], name: str, size: int) -> Shaped[np.ndarray, "J"]:
    """A column of all pieces; the default of `COLUMNS` if the reader does not give it."""
    given = [np.asarray(piece[name]) for piece in pieces if name in piece and len(piece[name])]
    return np.concatenate(given) if given else np.full(size, COLUMNS[name])


def _models(cells: Cells, names: Any, source: Source, catalogue: Catalogue) -> Sequence[str] | None:
    """The models that the catalogue knows. Others are mistakes, or are drawn as if the log named none."""
    if names is None:
        return None
    unknown = {name for name in set(names) if name not in catalogue}
    if not unknown:
        return names
    if source.strict_models:
        if any("/" in name for name in unknown) and any(map(cells.has, PLAN_COLUMNS)):
            path = cells.found.path
            raise UserError(f"{path}: its rows have plans; name it as the file of models, too (--models {path})")
        bad = unknown - ({""} if source.strict_models in source.uses else set())
        wanted = f"one of the known models {', '.join(catalogue.names)}"
        cells.wrong(np.fromiter((name in bad for name in names), bool), source.strict_models, wanted)
    else:
        jobs = Counter(itertools.compress(names, cells.keep))
        for name in sorted(unknown & jobs.keys() - {""}):
            text = f"the model {shorten(name)!r} is not known, one is drawn instead (--models can name it)"
            cells.found.notes[text] += jobs[name]
    return ["" if name in unknown else name for name in names]


def _check_names(found: Findings, names: Shaped[np.ndarray, "J"], lines: Int[np.ndarray, "J"], source: Source) -> None:
    """A mistake for every job whose name another one has already."""
    listed = names.tolist()
    if len(set(listed)) == len(listed):
        return
    first: dict[str, int] = {}
    for name, line in zip(listed, lines.tolist()):
        if first.setdefault(name, line) != line:
            found.wrong(
                line,
                UserError(
                    f"{found.path}, {found.unit} {line}, {source.names}: {shorten(name)!r} stands in {found.unit} "
                    f"{first[name]} already, every job needs its own"
                ),
            )


def _tenants(names: list[str]) -> Int[np.ndarray, "J"]:
    """Numbers as they are where all tenants are numbers, otherwise 0..V-1 in order of first appearance."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if all(_TENANT.fullmatch(name) for name in number):
        number = {name: int(name) for name in number}
    return np.array([number[name] for name in names])


def draw_ps(rng: np.random.Generator, workers: Int[np.ndarray, "J"], ps_fraction: float) -> Int[np.ndarray, "J"]:
    """max(1, workers // 4) PS for a random share `ps_fraction` of the jobs of several workers, else 0."""
    if not 0 <= ps_fraction <= 1:
        raise UserError(f"ps_fraction: {ps_fraction} should be between 0 and 1")
    return np.where((workers > 1) & (rng.random(len(workers)) < ps_fraction), np.maximum(1, workers // 4), 0)


def write_native(path: str | Path, jobs: JobList, catalogue: Catalogue = BUILT_IN) -> None:
    """Writes `jobs` in the native format; `read_trace` gives back the very same jobs.

    Tenants whose names are no numbers are numbered anew, in order of submission.
    """
    _write(
        path,
        {
            "job_id": jobs.job_id,
            "submit_time_s": jobs.submit_s,
            "num_gpus": jobs.num_gpus,
            "duration_s": jobs.duration_s,
            **_model_columns(np.array(catalogue.names)[jobs.model]),
            "num_workers": jobs.workers,
            "num_ps": jobs.ps,
            "gpus_per_worker": jobs.gpus_per_worker,
            "tenant": jobs.tenant_name,
            "home": jobs.home,
            **({"user": jobs.user} if (jobs.user != "").any() else {}),
            **({"gpu_milli": jobs.milli} if (jobs.milli < WHOLE).any() else {}),
            **({"gpu_type": jobs.gpu_type} if (jobs.gpu_type != "").any() else {}),
            **({"cpu_milli": jobs.cpu_milli} if jobs.cpu_milli.any() else {}),
            **({"memory_mib": jobs.memory_mib} if jobs.memory_mib.any() else {}),
            **({"allowed_gpu_types": jobs.allowed} if (jobs.allowed != "").any() else {}),
            **({"ended": np.array(ENDS)[jobs.ended]} if jobs.ended.any() else {}),
            **({"estimate_s": jobs.estimate_s} if (jobs.estimate_ratio != 1).any() else {}),
            **({"deadline_s": _deadlines(jobs.submit_s, jobs.due_s)} if np.isfinite(jobs.due_s).any() else {}),
        },
    )


def write_log(path: str | Path, log: Log) -> None:
    """Writes a log in the native format: what it says, and nothing that would have to be drawn.

    `read_log` gives back the same jobs; times are seconds, from the first job on where the log has dates.
    """
    jobs, submit = log.jobs, log.jobs["submit_s"]
    wide = bool((jobs["gpus_per_worker"] > 1).any())
    submitted = submit - submit[0] if log.dated or log.source.from_start else submit
    optional: dict[str, tuple[Any, Any]] = {
        **{name: ((jobs["model"] != "").any(), column) for name, column in _model_columns(jobs["model"]).items()},
        "gpus_per_worker": (wide, jobs["gpus_per_worker"]),
        "num_ps": ((jobs["ps"] >= 0).any(), np.where(jobs["ps"] < 0, "", jobs["ps"].astype(str))),
        "tenant": ((jobs["tenant"] != "").any(), jobs["tenant"]),
        "user": ((jobs["user"] != "").any(), jobs["user"]),
        "home": ((jobs["home"] >= 0).any(), np.where(jobs["home"] < 0, "", jobs["home"].astype(str))),
        "gpu_milli": ((jobs["milli"] < WHOLE).any(), jobs["milli"]),
        "gpu_type": ((jobs["gpu_type"] != "").any(), jobs["gpu_type"]),
        "cpu_milli": (jobs["cpu_milli"].any(), jobs["cpu_milli"]),
        "memory_mib": (jobs["memory_mib"].any(), jobs["memory_mib"]),
        "allowed_gpu_types": ((jobs["allowed"] != "").any(), jobs["allowed"]),
        "ended": (jobs["ended"].any(), np.array(ENDS)[jobs["ended"]]),
        "estimate_s": (np.isfinite(jobs["estimate_s"]).any(), jobs["estimate_s"]),
        "deadline_s": (np.isfinite(jobs["due_s"]).any(), _deadlines(submitted, jobs["due_s"])),
    }
    _write(
        path,
        {
            "job_id": jobs["job_id"],
            "submit_time_s": submitted,
            "num_gpus": jobs["workers"] * jobs["gpus_per_worker"],
            "duration_s": jobs["duration_s"],
            **{name: column for name, (there, column) in optional.items() if there},
        },
    )


def _model_columns(names: Shaped[np.ndarray, "J"]) -> dict[str, Shaped[np.ndarray, "J"]]:
    """The column of models, and of plans that rows had."""
    distinct, place = np.unique(names, return_inverse=True)
    if not any("/" in name for name in distinct.tolist()):
        return {"model": names}
    from jaxsched.workload.llm import columns_of  # a fifth of a second, which other traces do not need

    found = [columns_of(name) for name in distinct.tolist()]
    return {column: np.array([str(one[column]) for one in found])[place] for column in found[0]}


def _deadlines(submit_s: Float64[np.ndarray, "J"], due_s: Float64[np.ndarray, "J"]) -> Float64[np.ndarray, "J"]:
    """On the clock of submissions; NaN, an empty cell, where there is none."""
    return np.where(np.isfinite(due_s), submit_s + due_s, np.nan)


def _write(path: str | Path, columns: Mapping[str, Shaped[np.ndarray, "J"]]) -> None:
    """A CSV file of these columns; NaN is an empty cell."""
    lists = [["" if x != x else x for x in column.tolist()] for column in columns.values()]
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*lists))
