"""Many runs from one file: trained in as few programs as they have shapes, measured on the same jobs, one row each.

The folder of a sweep gets `rows.jsonl` (a row per finished point), `baselines.jsonl` (the hand-written policies, once
per test), `points/` (each run's policy and curves) and, while runs go on, what is needed to resume them. A sweep that
was killed goes on: finished rows stay, trained policies are only measured, interrupted runs resume.

Only this process writes rows. What trains and measures is an executor's business: this process, or many machines. The
tasks are functions that any process can run.
"""

import contextlib
import dataclasses
import functools
import math
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxsched.executors import Executor, LocalExecutor, Task, Tell
from jaxsched.io.files import locked, write_bytes, write_text
from jaxsched.io.json_file import append, mend, read_rows
from jaxsched.learning.config import TrainConfig
from jaxsched.learning.devices import provide_devices
from jaxsched.learning.loop import METRICS_FILE, POLICY_FOLDER, STATE_FOLDER, train
from jaxsched.learning.setting import is_same_run
from jaxsched.learning.state import has_step, read_saved_config
from jaxsched.learning.untrained import UNTRAINED_FOLDER, curve_of, has_untrained
from jaxsched.machine import versions
from jaxsched.simulation import engine
from jaxsched.sweeps.measure import BASELINES_FILE, Test, baselines, measure, same_policy, tests_of, with_ratios
from jaxsched.sweeps.plan import Point, Sweep, digest, flat, names_of, programs, rows_of
from jaxsched.sweeps.rows import ROWS_FILE, read_baselines
from jaxsched.sweeps.shared_programs import SharedPrograms, sum_seconds, train_batched

DONE_FILE, TOKEN_FILE, WORKING_FOLDER = "trained", ".token", "working"
LOCK_WAIT_S = 600.0  # for a process that only seemed to be lost


class SweepContext(NamedTuple):
    """What all tasks of a sweep share. `token` is the content of a file of the sweep's folder, an absolute path."""

    sweep: Sweep
    token: str


class Part(NamedTuple):
    """Points that are trained at once: those from `first` on of the points that share a program."""

    points: tuple[Point, ...]
    program: tuple[Point, ...]
    first: int


class TaskResult(NamedTuple):
    """What comes back of a task.

    `rows` lack the ratios to the hand-written policies: their tests have `measure`'s figures and the test's `id`.
    `files`, by path in the sweep's folder, are empty where the worker sees that folder.
    """

    baselines: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    files: dict[str, bytes]


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


def measure_baselines(common: SweepContext, test: Test, tell: Tell) -> TaskResult:
    """The hand-written policies on one test."""
    return TaskResult([baselines(test)], [], {})


def train_and_measure(common: SweepContext, part: Part, tell: Tell) -> TaskResult:
    """Trains the points of a part that are not trained yet, and measures all; `tell`: see `Report`."""
    with _place(common) as sweep:
        name = digest([flat(point.config) for point in part.points])
        with locked(sweep.out / WORKING_FOLDER / name, LOCK_WAIT_S):
            if not all(is_trained(sweep, point) for point in part.points):
                _train(sweep, part, tell)
        rows = _measure_points(sweep, part.points, tell)
        files = {} if sweep.out == common.sweep.out else _pack(sweep)
    return TaskResult([], rows, files)


def folder_of(sweep: Sweep, point: Point) -> Path:
    """Where a point's policy and curves are."""
    return sweep.out / "points" / digest(flat(point.config))


def is_trained(sweep: Sweep, point: Point) -> bool:
    """The point's policy is there."""
    return (folder_of(sweep, point) / DONE_FILE).exists()


def unpack(sweep: Sweep, files: dict[str, bytes]) -> None:
    """Puts the files that came back into the sweep's folder."""
    for name, content in files.items():
        path = sweep.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)


@contextlib.contextmanager
def _place(common: SweepContext) -> Iterator[Sweep]:
    """The sweep with its folder, if this machine sees it, else with a folder for this task alone."""
    sweep, token = common.sweep, common.sweep.out / TOKEN_FILE
    if token.exists() and token.read_text(encoding="utf-8") == common.token:
        yield sweep
        return
    with tempfile.TemporaryDirectory(prefix="jaxsched-") as folder:
        yield dataclasses.replace(sweep, out=Path(folder))


def _pack(sweep: Sweep) -> dict[str, bytes]:
    paths = [path for path in (sweep.out / "points").rglob("*") if path.is_file()]
    paths.sort(key=lambda path: path.name == DONE_FILE)  # last, so that it says that all others are there
    return {path.relative_to(sweep.out).as_posix(): path.read_bytes() for path in paths}


@functools.lru_cache(maxsize=1)
def _shared(configs: tuple[TrainConfig, ...]) -> SharedPrograms:
    """The same for all tasks of a program that one process gets: it compiles once."""
    return SharedPrograms(configs)


def _train(sweep: Sweep, part: Part, tell: Tell) -> None:
    points = part.points
    if part.program[1:]:
        provide_devices()  # of a worker; this machine's were provided before JAX looked at them
    shared = _shared(tuple(point.config for point in part.program))
    folders = [folder_of(sweep, point) for point in points]
    chunks = points[0].config.ppo.chunks
    if len(points) == 1:
        (point,), (folder,) = points, folders
        state = folder / STATE_FOLDER
        resume = has_step(state) and is_same_run(read_saved_config(state), point.config)
        report = lambda row: tell((point.name, int(row["chunk"]), chunks, row["wall_s"]))
        train(point.config, folder, resume=resume, report=report, programs=shared.of_run(part.first))
    else:
        state = sweep.out / STATE_FOLDER / digest([flat(point.config) for point in points])
        name = f"{points[0].name} and {len(points) - 1} more"
        indices = range(part.first, part.first + len(points))
        train_batched(shared, indices, folders, state, report=lambda done, seconds: tell((name, done, chunks, seconds)))
    for folder in folders:
        write_text(folder / DONE_FILE, f"{len(points)}\n")
    shutil.rmtree(state)


def _measure_points(sweep: Sweep, points: Sequence[Point], tell: Tell) -> list[dict[str, Any]]:
    """The rows of trained points, see `TaskResult`; all that have a test in common are measured by it at once.

    Each row has an equal part of the seconds of measuring.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    tests: dict[str, tuple[Test, list[Point]]] = {}
    for point in points:
        for test in tests_of(sweep.tests, point.config):
            tests.setdefault(test.id, (test, []))[1].append(point)
    found: dict[str, dict[str, Any]] = {sweep.id_of(point): {} for point in points}
    for key, (test, of) in tests.items():
        policies, first = [folder_of(sweep, point) / POLICY_FOLDER for point in of], {}
        for point in of:  # of trainings that begin with the same weights, once
            if has_untrained(folder_of(sweep, point)):
                untrained = folder_of(sweep, point) / UNTRAINED_FOLDER
                first.setdefault(same_policy(untrained), untrained)
        what = of[0].name if len(of) == 1 else f"{len(of)} policies"
        report = _report_runs(f"{what} on {test.name}", (len(of) + len(first)) * sweep.tests.seeds, tell)
        figures = measure(test, [*policies, *first.values()], report)
        before = dict(zip(first, figures[len(of) :], strict=True))
        for point, one in zip(of, figures, strict=False):
            untrained = folder_of(sweep, point) / UNTRAINED_FOLDER
            known = {"untrained": before[same_policy(untrained)]} if has_untrained(untrained.parent) else {}
            found[sweep.id_of(point)][test.name] = {"id": key, "prior": test.prior} | one | known
    took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    each = {name: seconds / len(points) for name, seconds in took.items()}
    return [_row(sweep, point, found[sweep.id_of(point)], each) for point in points]


def _report_runs(name: str, runs: int, tell: Tell) -> engine.Report:
    """Tells how many runs are over; called by several threads at once."""
    begin, lock, over = time.perf_counter(), threading.Lock(), set()

    def report(progress: engine.Progress) -> None:
        with lock:
            if progress.over and not progress.compiling:
                over.add((progress.policy, progress.seed))
                tell((name, len(over), runs, time.perf_counter() - begin, "runs"))

    return report


def _row(sweep: Sweep, point: Point, tests: dict[str, Any], measuring: dict[str, float]) -> dict[str, Any]:
    folder = folder_of(sweep, point)
    rows = read_rows(folder / METRICS_FILE)
    curve = [{"chunk": chunk, "jct_s": math.inf if jct_s is None else jct_s} for chunk, jct_s in curve_of(folder, rows)]
    return {
        "id": sweep.id_of(point),
        **names_of(point),
        "seed": point.config.seed,
        "validation": {"best_jct_s": min(one["jct_s"] for one in curve if one["chunk"] > 0), "curve": curve},
        "tests": tests,
        "training": {"runs_at_once": int((folder / DONE_FILE).read_text())}
        | sum_seconds(folder)
        | {"decisions": sum(row["decisions"] for row in rows)},
        "measuring": measuring,
        "versions": versions(),
        "folder": str(folder),
    }


def parts_of(points: Sequence[Point], at_once: int) -> list[Part]:
    """The parts of points that share a program, all of them trained or none."""
    whole = tuple(points)
    return [Part(whole[first : first + at_once], whole, first) for first in range(0, len(whole), at_once)]
