"""Many runs from one file: trained in as few programs as they have shapes, measured on the same jobs, one row each.

The folder of a sweep gets `rows.jsonl` (a row per finished point), `baselines.jsonl` (the hand-written policies, once
per test), `points/` (each run's policy and curves) and, while runs go on, what is needed to resume them. A sweep that
was killed goes on: finished rows stay, trained policies are only measured, interrupted runs resume.

Only this process writes rows. What trains and measures is an executor's business: this process, or many machines.
"""

import dataclasses
import secrets
import shutil
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from jaxsched.executors import Executor, LocalExecutor, Task
from jaxsched.io.files import write_text
from jaxsched.io.json_file import append, mend
from jaxsched.io.locks import locked
from jaxsched.sweeps.file import Point, Sweep
from jaxsched.sweeps.measure import BASELINES_FILE, tests_of, with_ratios
from jaxsched.sweeps.plan import programs, rows_of
from jaxsched.sweeps.rows import ROWS_FILE, read_baselines
from jaxsched.sweeps.tasks import (
    TOKEN_FILE,
    WORKING_FOLDER,
    Part,
    SweepContext,
    TaskResult,
    folder_of,
    is_trained,
    measure_baselines,
    parts_of,
    train_and_measure,
    unpack,
)


class Report(Protocol):
    """Hears how far a piece of work is: so many chunks of so many, or what else `unit` says, in so many seconds."""

    def __call__(self, name: str, done: int, total: int, passed_s: float, unit: str = ..., /) -> None: ...


def run(sweep: Sweep, report: Report | None = None, executor: Executor | None = None) -> None:
    """Train and measure every point that has no row yet. UserError where a run cannot be made.

    One process at a time: the folder is locked. Without an executor all is done in this process.
    """
    with locked(sweep.out):
        for name in (ROWS_FILE, BASELINES_FILE):
            mend(sweep.out / name)
        _run(sweep, report, executor or LocalExecutor())


def _run(sweep: Sweep, report: Report | None, executor: Executor) -> None:
    rules = {row["id"]: row["jct_by_list_s"] for row in read_baselines(sweep.out / BASELINES_FILE)}
    finished = {row["id"] for row in rows_of(sweep)}
    tasks = [*_baseline_tasks(sweep, finished, rules.keys()), *_training_tasks(sweep, finished)]
    waiting: list[dict[str, Any]] = []
    for result in _results(sweep, tasks, report, executor):
        for row in result.baselines:
            append(sweep.out / BASELINES_FILE, row)
            rules[row["id"]] = row["jct_by_list_s"]
        unpack(sweep, result.files)
        waiting += result.rows
        ready = [row for row in waiting if all(test["id"] in rules for test in row["tests"].values())]
        waiting = [row for row in waiting if row not in ready]
        for row in ready:
            append(sweep.out / ROWS_FILE, _whole(sweep, row, rules))


def _results(sweep: Sweep, tasks: list[Task], report: Report | None, executor: Executor) -> Iterator[TaskResult]:
    """What the tasks give, as it comes."""
    token = secrets.token_hex(8)
    write_text(sweep.out / TOKEN_FILE, token)
    tell = None if report is None else lambda _, told: report(*told)
    common = SweepContext(dataclasses.replace(sweep, out=sweep.out.absolute()), token)
    try:
        for _, result in executor.run(common, tasks, tell):
            yield result
        shutil.rmtree(sweep.out / WORKING_FOLDER, ignore_errors=True)
    finally:
        (sweep.out / TOKEN_FILE).unlink(missing_ok=True)


def _whole(sweep: Sweep, row: dict[str, Any], rules: dict[str, dict[str, list[float | None]]]) -> dict[str, Any]:
    """The row with the ratios to the hand-written policies, and the folder as this machine has it."""
    tests = {}
    for name, found in row["tests"].items():
        figures = {key: value for key, value in found.items() if key not in ("id", "prior")}
        tests[name] = with_ratios(figures, rules[found["id"]], found["prior"], sweep.tests.policies)
    point = next(point for point in sweep.points if sweep.id_of(point) == row["id"])
    return row | {"tests": tests, "folder": str(folder_of(sweep, point))}


def _baseline_tasks(sweep: Sweep, finished: Iterable[str], known: Iterable[str]) -> list[Task]:
    """One per test of an unfinished point that is not known, whatever was trained."""
    found = {}
    for point in _unfinished(sweep, sweep.points, finished):
        for test in tests_of(sweep.tests, point.config):
            found.setdefault(test.id, test)
    wanted = [test for key, test in found.items() if key not in known]
    return [Task(f"hand-written policies on {test.name}", measure_baselines, test) for test in wanted]


def _training_tasks(sweep: Sweep, finished: Iterable[str]) -> list[Task]:
    """Parts of programs, then what a killed sweep has trained and not measured."""
    parts: list[Part] = []
    for program in programs(sweep):
        points = _unfinished(sweep, program.points, finished)
        for trained in (False, True):
            alike = [point for point in points if is_trained(sweep, point) == trained]
            parts += parts_of(alike, program.runs_at_once)
    return [Task(part.points[0].name, train_and_measure, part) for part in parts]


def _unfinished(sweep: Sweep, points: Iterable[Point], finished: Iterable[str]) -> list[Point]:
    return [point for point in points if sweep.id_of(point) not in finished]
