"""ElasticFlow's share of deadlines met (Gu et al., ASPLOS 2023), played again from Microsoft's ITP logs."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from jaxsched.adaptive.papers.elasticflow import DECIDES, DueJobs, play_deadlines
from jaxsched.adaptive.papers.muri import RigidJobs, play_tiresias
from jaxsched.adaptive.papers.muri_table import read_rows
from jaxsched.errors import UserError
from jaxsched.workload.rows import Row

NODES = (8,) * 16  # GPUs of its testbed
LEVELS = 8  # numbers of GPUs: 1 to 128
JOBS = "195job.csv"
COLUMNS = (
    *("job_id", "submission_time", "num_iteration", "model_name", "deadline", "batch_size", "num_gpu", "duration"),
)
# Shares as printed: of the testbed with these jobs and GPUs (Figure 6b), and of a simulation with Pollux (Figure 8a),
# whose jobs are not public.
TESTBED = {"EDF": 0.0872, "Tiresias": 0.4564, "ElasticFlow": 0.6667}
WITH_POLLUX = {"EDF": 0.118, "Tiresias": 0.287, "ElasticFlow": 0.728}


class DueLine(NamedTuple):
    """A row of our table: shares of deadlines met."""

    policy: str
    met: float
    dropped: float  # share of jobs that were not admitted


# Of one job: policy, name, when it ends (inf: dropped), deadline.
DueJob = tuple[str, str, float, float]


def play_elasticflow(data: str | Path, report: Callable[[DueLine], object] = print) -> list[DueJob]:
    """Plays EDF, Tiresias and ElasticFlow on the 195 jobs, and hands out a line for each; returns the end of every job.

    Args:
        data: holds `195job.csv`, by itself or in `itp`. How fast jobs are is taken from all logs of that folder.
        report: is called with every line.

    Raises:
        UserError: a file is missing, or is not what it should be.
    """
    folder = next((path for path in (Path(data), Path(data) / "itp") if (path / JOBS).is_file()), None)
    if folder is None:
        raise UserError(f"{data}: holds no {JOBS}, should hold it, by itself or in a folder itp")
    rows = sorted(read_rows(folder / JOBS, COLUMNS), key=lambda row: row.number("submission_time"))
    jobs = _jobs(rows, paces(sorted(folder.glob("*.csv"))))
    ends = {"EDF": play_deadlines(jobs, sum(NODES), DECIDES["EDF"]), "Tiresias": _tiresias(rows, jobs)}
    ends["ElasticFlow"] = play_deadlines(jobs, sum(NODES), DECIDES["ElasticFlow"])
    found: list[DueJob] = []
    for policy, finish_s in ends.items():
        report(DueLine(policy, float((finish_s <= jobs.deadline_s).mean()), float(np.isinf(finish_s).mean())))
        columns = zip(jobs.names, finish_s.tolist(), jobs.deadline_s.tolist(), strict=True)
        found += [(policy, *of_job) for of_job in columns]
    return found


def paces(paths: list[Path]) -> dict[tuple[str, int], Float64[np.ndarray, "L"]]:
    """Iterations per second by model and batch: medians of what logs say at each number of GPUs; 0 where none does.

    In these logs iterations are run time times a measured pace, so that every job gives that of its model, batch and
    GPUs, to a rounding.
    """
    seen: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for row in read_rows(path, COLUMNS):
            pace = row.number("num_iteration", minimum=0.0, exclusive=True) / row.seconds("duration")
            seen[row.name("model_name"), row.whole("batch_size", minimum=1)][row.whole("num_gpu", minimum=1)].append(
                pace
            )
    return {
        kind: np.array([np.median(of.get(1 << level, [0.0])) for level in range(LEVELS)]) for kind, of in seen.items()
    }


def _jobs(rows: list[Row], pace: dict[tuple[str, int], Float64[np.ndarray, "L"]]) -> DueJobs:
    for row in rows:
        if row.number("deadline") <= row.number("submission_time"):
            raise row.fail("deadline", f"after the submission at {row.number('submission_time'):.12g}")
    kinds = [(row.name("model_name"), row.whole("batch_size", minimum=1)) for row in rows]
    return DueJobs(
        names=[row.name("job_id") for row in rows],
        submit_s=np.array([row.number("submission_time") for row in rows]),
        deadline_s=np.array([row.number("deadline") for row in rows]),
        iterations=np.array([row.number("num_iteration") for row in rows]),
        gpus=np.array([row.whole("num_gpu", minimum=1, maximum=sum(NODES)) for row in rows]),
        pace=np.array([pace[kind] for kind in kinds]),
    )


def _tiresias(rows: list[Row], jobs: DueJobs) -> Float64[np.ndarray, "J"]:
    """Rigid jobs, on the GPUs that their users asked for; starts are free."""
    size = len(rows)
    run_s = np.array([row.seconds("duration") for row in rows])
    return play_tiresias(
        RigidJobs(jobs.names, jobs.submit_s, jobs.gpus, run_s, np.ones(size), np.zeros(size)), NODES, False
    )
