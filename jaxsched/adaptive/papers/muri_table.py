"""Figures 9 and 10 of Muri (Zhao et al., SIGCOMM 2022), played again: SRTF, SRSF and Tiresias on its traces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from jaxsched.adaptive.papers.muri import LONGER, PLAYS, RigidJobs, start_seconds
from jaxsched.errors import UserError
from jaxsched.io.csv_file import read_table
from jaxsched.workload.rows import Row, rows_of

NODES = (8,) * 8  # GPUs
COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "iteration_time")
PUBLISHED = "muri_published.csv"
AT_ONCE = "'"  # the mark of a trace's twin, whose jobs are all submitted at 0


class MuriLine(NamedTuple):
    """A row of our table, in seconds."""

    figure: str  # mean_jct or makespan
    policy: str
    trace: str
    ours_s: float  # by the rules of Muri's simulator
    published_s: float  # NaN: not published
    plain_s: float  # the same without what that simulator adds


# Of one job: policy, trace, name, JCT.
MuriJob = tuple[str, str, str, float]


def play_muri(data: str | Path, report: Callable[[MuriLine], object] = print) -> list[MuriJob]:
    """Plays every trace of a folder and its twin, and hands out the lines; returns the JCT of every job.

    Args:
        data: holds `muri_published.csv` (figure,policy,trace,seconds) and, there or in `traces` in it or beside it,
            `muri_traceN.csv` or `traceN.csv`, as Rivendile/Muri has them.
        report: is called with every line.

    Raises:
        UserError: a file is missing, or is not what it should be.
    """
    published, traces = _published(Path(data)), _traces(Path(data))
    times: list[MuriJob] = []
    for name, path in traces.items():
        for trace in (name, name + AT_ONCE):
            jobs, plain = (read_rigid(path, longer, at_once=trace != name) for longer in (LONGER, 1.0))
            for policy, play in PLAYS.items():
                finish_s, plain_s = play(jobs, NODES, True), play(plain, NODES, False)
                for figure, of in FIGURES.items():
                    known = published.get((figure, policy, trace), float("nan"))
                    report(MuriLine(figure, policy, trace, of(jobs, finish_s), known, of(plain, plain_s)))
                jct_s = map(float, finish_s - jobs.submit_s)
                times += [(policy, trace, job, jct) for job, jct in zip(jobs.names, jct_s, strict=True)]
    return times


FIGURES: Mapping[str, Callable[[RigidJobs, Float64[np.ndarray, "J"]], float]] = {
    "mean_jct": lambda jobs, finish_s: float((finish_s - jobs.submit_s).mean()),
    "makespan": lambda jobs, finish_s: float(finish_s.max()),
}


def read_rows(path: str | Path, columns: Sequence[str]) -> list[Row]:
    """The jobs of a published list. UserError: one of `columns` is missing, or there is no job."""
    table = read_table(path)
    for name in columns:
        if name not in table.header:
            raise UserError(f"{path}: no column {name}, should have {','.join(columns)}")
    if not table.rows:
        raise UserError(f"{path}: no jobs, should have one at least")
    return list(rows_of(table))


def read_rigid(path: str | Path, longer: float = LONGER, *, at_once: bool = False) -> RigidJobs:
    """The jobs of one of Muri's traces, whose times are milliseconds.

    Args:
        path: of the file.
        longer: an iteration takes so many times what was measured.
        at_once: all jobs are submitted at 0.

    Raises:
        UserError: a column is missing, or a cell is no such number; a job is wider than the cluster.
    """
    total = sum(NODES)
    read = [_job(row, total) for row in read_rows(path, COLUMNS)]
    read = sorted(read, key=lambda job: 0 if at_once else job[1])
    names, submit_s, gpus, iterations, iteration_s, start_s = zip(*read, strict=True)
    return RigidJobs(
        names=names,
        submit_s=np.zeros(len(read)) if at_once else np.array(submit_s),
        gpus=np.array(gpus),
        iterations=np.array(iterations, float),
        iteration_s=np.array([measured * longer / 1000 for measured in iteration_s]),
        start_s=np.array(start_s, float),
    )


def _job(row: Row, total: int) -> tuple[str, float, int, int, float, int]:
    gpus = row.whole("num_gpu", minimum=1)
    if gpus > total:
        raise row.fail("num_gpu", f"at most {total}, the GPUs of Muri's cluster")
    return (
        row.name("job_id"),
        row.number("submit_time", minimum=0.0) / 1000,
        gpus,
        row.whole("iterations", minimum=1),
        row.number("iteration_time", minimum=0.0, exclusive=True),
        start_seconds(row.name("model_name"), gpus),
    )


def _published(folder: Path) -> dict[tuple[str, str, str], float]:
    path = next((path for path in (folder / PUBLISHED, folder / "adaptive" / PUBLISHED) if path.is_file()), None)
    if path is None:
        raise UserError(f"{folder}: holds no {PUBLISHED}, should hold it (figure,policy,trace,seconds)")
    rows = rows_of(read_table(path))
    return {(row.name("figure"), row.name("policy"), row.name("trace")): row.number("seconds") for row in rows}


def _traces(folder: Path) -> dict[str, Path]:
    """By the number in their names."""
    found = dict(sorted(pair for place in (folder.parent / "traces", folder / "traces", folder) for pair in _in(place)))
    if not found:
        raise UserError(
            f"{folder}: holds no muri_traceN.csv, should hold one at least, in a folder traces or by itself"
        )
    return found


def _in(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.glob("*trace*.csv"):
        number = path.stem.removeprefix("muri_").removeprefix("trace")
        if number.isdigit():
            yield number, path
