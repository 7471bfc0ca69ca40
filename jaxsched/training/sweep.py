"""Many runs from one file: trained in as few programs as they have shapes, measured on the same jobs, one row each.

The folder of a sweep gets `rows.jsonl` (a row per finished point), `baselines.jsonl` (the hand-written policies, once
per test), `points/` (each run's policy and curves) and, while runs go on, what is needed to resume them. A sweep that
was killed goes on: finished rows stay, trained policies are only measured, interrupted runs resume.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxsched.files import write_text
from jaxsched.locks import locked
from jaxsched.training.batched import seconds_of, train_batched
from jaxsched.training.json_lines import append, mend, read_rows
from jaxsched.training.loop import METRICS_FILE, POLICY_FOLDER, STATE_FOLDER, train
from jaxsched.training.measure import BASELINES_FILE, measure
from jaxsched.training.shared_programs import SharedPrograms
from jaxsched.training.state import has_step, saved_config
from jaxsched.training.sweep_file import Point, Sweep, digest
from jaxsched.training.sweep_plan import ROWS_FILE, flat, programs, rows_of
from jaxsched.versions import versions

DONE_FILE = "trained"
Report = Callable[[str, int, int, float], None]  # name, chunks done, of so many, seconds


def run(sweep: Sweep, report: Report | None = None) -> None:
    """Train and measure every point that has no row yet. UserError where a run cannot be made.

    One process at a time: the folder is locked.
    """
    with locked(sweep.out):
        _run(sweep, report)


def _run(sweep: Sweep, report: Report | None) -> None:
    for name in (ROWS_FILE, BASELINES_FILE):
        mend(sweep.out / name)
    finished = {row["id"] for row in rows_of(sweep)}
    for program in programs(sweep):
        points = [point for point in program.points if sweep.id_of(point) not in finished]
        untrained = [point for point in points if not (_folder(sweep, point) / DONE_FILE).exists()]
        if untrained:
            shared = SharedPrograms([point.config for point in untrained])
            for first in range(0, len(untrained), program.runs_at_once):
                part = range(first, min(first + program.runs_at_once, len(untrained)))
                _train(sweep, shared, [untrained[i] for i in part], part, report)
                _measure(sweep, [untrained[i] for i in part])
        _measure(sweep, [point for point in points if point not in untrained])


def _folder(sweep: Sweep, point: Point) -> Path:
    return sweep.out / "points" / digest(flat(point.config))


def _train(sweep: Sweep, shared: SharedPrograms, points: Sequence[Point], part: range, report: Report | None) -> None:
    folders = [_folder(sweep, point) for point in points]
    chunks = points[0].config.ppo.chunks
    if len(points) == 1:
        (point,), (folder,) = points, folders
        state = folder / STATE_FOLDER
        resume = has_step(state) and saved_config(state) == point.config
        tell = None if report is None else lambda row: report(point.name, int(row["chunk"]), chunks, row["wall_s"])
        train(point.config, folder, resume=resume, report=tell, programs=shared.of_run(part[0]))
    else:
        state = sweep.out / STATE_FOLDER / digest([flat(point.config) for point in points])
        name = f"{points[0].name} and {len(points) - 1} more"
        tell = None if report is None else lambda done, seconds: report(name, done, chunks, seconds)
        train_batched(shared, part, folders, state, report=tell)
    for folder in folders:
        write_text(folder / DONE_FILE, f"{len(points)}\n")
    shutil.rmtree(state)


def _measure(sweep: Sweep, points: Sequence[Point]) -> None:
    """Adds the rows of trained points."""
    for point in points:
        folder = _folder(sweep, point)
        policy = folder / POLICY_FOLDER
        wall, cpu = time.perf_counter(), time.process_time()
        tests = measure(sweep, point.config.env, point.config.workload, policy)
        curve = [
            {"chunk": row["chunk"], "jct_s": row["validation_jct_s"]}
            for row in read_rows(folder / METRICS_FILE)
            if "validation_jct_s" in row
        ]
        row = {
            "id": sweep.id_of(point),
            "point": point.name,
            "group": point.group,
            "variant": point.variant,
            "changes": point.changes,
            "seed": point.config.seed,
            "validation": {"best_jct_s": min(one["jct_s"] for one in curve), "curve": curve},
            "tests": tests,
            "training": {"runs_at_once": int((folder / DONE_FILE).read_text())} | seconds_of(folder),
            "measuring": {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu},
            "versions": versions(),
            "folder": str(folder),
        }
        append(sweep.out / ROWS_FILE, row)
