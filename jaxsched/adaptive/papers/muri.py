"""Muri's simulator (Zhao et al., SIGCOMM 2022), by its rules, for the rigid policies of its Figures 9 and 10.

Its rules are not those of this project, so it has a loop of its own. Something happens when a job is submitted, when
one ends, and when one falls to the next queue of Tiresias. Then, and this is what it adds, every running job loses the
seconds that a start takes, whether it starts or not: of the time since the event before, so many do nothing. The end
of a job is foreseen without that loss, so what ends next loses nothing. Iterations take 1.5% longer than measured.

Source of rules and figures: Rivendile/Muri, simulator/run_sim.py and jobs.py, in our words.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.errors import UserError
from jaxsched.io.csv_file import read_table
from jaxsched.workload.rows import Row, rows_of

LONGER = 1.015  # than measured is an iteration
# Seconds that a start takes, as its authors measured it, by GPUs and model; and where they measured nothing.
WIDTHS = (1, 2, 4, 8, 16, 32)
START_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
UNKNOWN_START_S = 10
FALL_GPU_S = (3250.0, 7200.0)  # GPU-seconds after which a job is in the second and in the third queue of Tiresias
SAME = 1e-9  # times that differ by no more, relatively, are one event


class RigidJobs(NamedTuple):
    """Jobs in the order of submission."""

    names: Sequence[str]
    submit_s: Float64[np.ndarray, "J"]
    gpus: Int64[np.ndarray, "J"]
    iterations: Float64[np.ndarray, "J"]
    iteration_s: Float64[np.ndarray, "J"]
    start_s: Float64[np.ndarray, "J"]  # what a start takes


def start_seconds(model: str, gpus: int) -> int:
    """Seconds that a start takes. Widths that were not measured count as the next narrower one."""
    known = START_S.get(model)
    return UNKNOWN_START_S if known is None else known[sum(width <= gpus for width in WIDTHS[1:])]


@dataclasses.dataclass
class Loop:
    """A run: what has become of the jobs, and what happens next. Jobs are rows of `jobs`."""

    jobs: RigidJobs
    loses: bool  # seconds at every event
    now_s: float = 0.0
    arrived: int = 0

    def __post_init__(self) -> None:
        """Nobody has begun."""
        size = len(self.jobs.submit_s)
        self.left = self.jobs.iterations.copy()
        self.finish_s = np.full(size, np.inf)
        self.ran_s = np.zeros(size)
        self.lost_s = self.jobs.start_s * self.loses
        self.running: list[int] = []  # in the policy's order

    def next_arrival_s(self) -> float:
        """When the next job is submitted; inf: never."""
        return float(self.jobs.submit_s[self.arrived]) if self.arrived < len(self.left) else math.inf

    def next_end(self) -> tuple[float, list[int]]:
        """When the next jobs end that run, and which."""
        if not self.running:
            return math.inf, []
        end_s = self.now_s + self.left[self.running] * self.jobs.iteration_s[self.running]
        same = np.isclose(end_s, end_s.min(), rtol=SAME, atol=0.0)
        return float(end_s[same.argmax()]), [job for job, ends in zip(self.running, same) if ends]

    def pass_to(self, time_s: float, ending: Sequence[int], arrives: bool) -> list[int]:
        """Time passes; jobs end; returns those that arrive."""
        self.finish_s[list(ending)] = time_s
        gone = set(ending)
        self.running = [job for job in self.running if job not in gone]
        rows = np.array(self.running, int)
        useful_s = np.maximum(time_s - self.now_s - self.lost_s[rows], 0.0)
        self.left[rows] -= useful_s / self.jobs.iteration_s[rows]
        self.ran_s[rows] = self.ran_s[rows] + time_s - self.now_s  # in this order, as theirs rounds
        self.now_s = time_s
        came = []
        while arrives and math.isclose(self.next_arrival_s(), time_s, rel_tol=SAME):
            came.append(self.arrived)
            self.arrived += 1
        return came


def play_shortest(jobs: RigidJobs, nodes: Sequence[int], by_gpus: bool, loses: bool = True) -> Float64[np.ndarray, "J"]:
    """When jobs end with the shortest time left first (`by_gpus`: GPU time), whoever fits into the nodes.

    A job of at most a node's GPUs takes the first node with room; a wider one whole nodes, and the rest on one more.

    Args:
        jobs: what is submitted.
        nodes: GPUs of every node, all the same.
        by_gpus: time left counts times GPUs.
        loses: jobs lose seconds at every event.
    """
    loop, there = Loop(jobs, loses), np.zeros(0, int)
    weight = jobs.iteration_s * (jobs.gpus if by_gpus else 1)
    while loop.arrived < len(jobs.names) or len(there):
        arrival_s, (end_s, ending) = loop.next_arrival_s(), loop.next_end()
        came = loop.pass_to(min(arrival_s, end_s), ending if end_s <= arrival_s else (), arrival_s <= end_s)
        there = np.concatenate([there[np.isinf(loop.finish_s[there])], np.array(came, int)])
        there = there[np.argsort(loop.left[there] * weight[there], kind="stable")]
        loop.running = _fitting(there, jobs.gpus, list(nodes))
    return loop.finish_s


def _fitting(order: Int64[np.ndarray, "A"], gpus: Int64[np.ndarray, "J"], free: list[int]) -> list[int]:
    size, chosen, wide = free[0], [], gpus[order]
    widths, counts = (found.tolist() for found in np.unique(wide, return_counts=True))
    after = dict(zip(widths, counts))
    for job, width in zip(order.tolist(), wide.tolist()):
        after[width] -= 1
        if _take(free, width, size):
            chosen.append(job)
            left = sum(free)
            if not any(count and other <= left for other, count in after.items()):
                break
    return chosen


def _take(free: list[int], width: int, size: int) -> bool:
    if width <= size:
        node = next((node for node, left in enumerate(free) if left >= width), None)
        if node is not None:
            free[node] -= width
        return node is not None
    whole, rest = divmod(width, size)
    full = [node for node, left in enumerate(free) if left == size][:whole]
    last = next((node for node, left in enumerate(free) if rest and left >= rest and node not in full), None)
    if len(full) < whole or (rest and last is None):
        return False
    for node in full:
        free[node] = 0
    if last is not None:
        free[last] -= rest
    return True


def play_tiresias(jobs: RigidJobs, nodes: Sequence[int], loses: bool = True) -> Float64[np.ndarray, "J"]:
    """When jobs end with three queues by GPU time so far; in each first those that run. Free GPUs are only counted."""
    loop, running, pending = Loop(jobs, loses), [[], [], []], [[], [], []]
    total, queue = sum(nodes), np.zeros(len(jobs.names), int)
    while loop.arrived < len(jobs.names) or any(running) or any(pending):
        arrival_s, (end_s, ending) = loop.next_arrival_s(), loop.next_end()
        event_s, fall_s = min(arrival_s, end_s), max(_next_fall_s(loop, queue), np.nextafter(loop.now_s, math.inf))
        if event_s > fall_s:
            event_s, arrival_s, end_s = fall_s, math.inf, math.inf
        came = loop.pass_to(event_s, ending if end_s == event_s else (), arrival_s == event_s)
        running = [[job for job in some if loop.finish_s[job] == math.inf] for some in running]
        fallen = _fall(loop, queue, running)
        pending[0] += came
        free = total
        for level in range(3):
            free, running[level], pending[level] = _first_fit(
                jobs.gpus, free, running[level], pending[level], fallen[level]
            )
        loop.running = sorted(job for some in running for job in some)
    return loop.finish_s


def _next_fall_s(loop: Loop, queue: Int64[np.ndarray, "J"]) -> float:
    rows = [job for job in loop.running if queue[job] < len(FALL_GPU_S)]
    return min(
        (math.ceil(FALL_GPU_S[queue[job]] / loop.jobs.gpus[job]) - float(loop.ran_s[job]) + loop.now_s for job in rows),
        default=math.inf,
    )


def _fall(loop: Loop, queue: Int64[np.ndarray, "J"], running: list[list[int]]) -> list[list[int]]:
    """Those that come to each queue, in the order of submission."""
    fallen: list[list[int]] = [[], [], []]
    for job in loop.running:
        level = queue[job]
        if level < len(FALL_GPU_S) and loop.ran_s[job] * loop.jobs.gpus[job] >= FALL_GPU_S[level]:
            queue[job] += 1
            running[level].remove(job)
            fallen[level + 1].append(job)
    return fallen


def _first_fit(
    gpus: Int64[np.ndarray, "J"], free: int, runs: list[int], waits: list[int], fallen: list[int]
) -> tuple[int, list[int], list[int]]:
    """Of a queue: what is free after it, who runs, and who waits."""
    going: list[int] = []
    waiting: list[int] = []
    order = [*runs, *waits, *fallen]
    for at, job in enumerate(order):
        if not free:
            waiting += order[at:]
            break
        if gpus[job] <= free:
            free -= int(gpus[job])
            going.append(job)
        else:
            waiting.append(job)
    return free, going, waiting


PLAYS: dict[str, Callable[..., Float64[np.ndarray, "J"]]] = {
    "SRTF": lambda jobs, nodes, loses: play_shortest(jobs, nodes, False, loses),
    "SRSF": lambda jobs, nodes, loses: play_shortest(jobs, nodes, True, loses),
    "Tiresias": play_tiresias,
}


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
