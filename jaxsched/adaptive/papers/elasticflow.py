"""ElasticFlow's deadlines (Gu et al., ASPLOS 2023), and EDF, in a loop of their own; and its table, played again.

Jobs have a fixed batch and as many GPUs as a power of two. Their pace at each number is known, and so is the work
left. Time goes in slots. A job is admitted if then all admitted jobs can still be done by their deadlines. The table,
shares of deadlines met, is from Microsoft's ITP logs.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.adaptive.papers.muri import RigidJobs, play_tiresias, read_rows
from jaxsched.errors import UserError
from jaxsched.workload.rows import Row

SLOT_S = 60.0
RESTART_S = 20.0  # that a change of GPUs takes: the most that ElasticFlow's testbed counts


class DueJobs(NamedTuple):
    """Jobs with deadlines, in the order of submission. L numbers of GPUs, the powers of two from 1 on."""

    names: Sequence[str]
    submit_s: Float64[np.ndarray, "J"]
    deadline_s: Float64[np.ndarray, "J"]
    iterations: Float64[np.ndarray, "J"]
    gpus: Int64[np.ndarray, "J"]  # that its user asked for
    pace: Float64[np.ndarray, "J L"]  # iterations per second; 0: not measured


@dataclasses.dataclass
class Run:
    """What has become of the jobs so far."""

    jobs: DueJobs
    total: int
    slot_s: float
    restart_s: float

    def __post_init__(self) -> None:
        """Nobody has GPUs, or is admitted."""
        size = len(self.jobs.names)
        self.left = self.jobs.iterations.copy()
        self.held = np.full(size, -1)  # place in the numbers of GPUs; -1: none
        self.wait_s = np.zeros(size)  # what is left of a restart
        self.finish_s = np.full(size, np.inf)

    def fastest(self, job: int) -> int:
        """The number of GPUs of the highest pace, as a place."""
        return int(self.jobs.pace[job].argmax())

    def pass_slot(self, now_s: float, chosen: dict[int, int]) -> None:
        """Gives jobs their GPUs, by place, and lets a slot pass."""
        for job in np.flatnonzero(self.held >= 0):
            if int(job) not in chosen:
                self.held[job] = -1
        for job, place in chosen.items():
            if self.held[job] != place:
                self.held[job], self.wait_s[job] = place, self.restart_s
            pace = self.jobs.pace[job, place]
            wait_s = min(self.wait_s[job], self.slot_s)
            self.wait_s[job] -= wait_s
            need_s = self.left[job] / pace
            if wait_s + need_s <= self.slot_s:
                self.finish_s[job], self.held[job], self.left[job] = now_s + wait_s + need_s, -1, 0.0
            else:
                self.left[job] -= pace * (self.slot_s - wait_s)


# Who runs in the next slot, and on how many GPUs (a place); jobs that are left out of the list are dropped.
Decide = Callable[[Run, float, list[int], list[int]], tuple[dict[int, int], list[int]]]


def play_deadlines(
    jobs: DueJobs, total: int, decide: Decide, slot_s: float = SLOT_S, restart_s: float = RESTART_S
) -> Float64[np.ndarray, "J"]:
    """When jobs end; inf: dropped.

    Args:
        jobs: what is submitted.
        total: GPUs that there are.
        decide: of a run, the time, the jobs that are there and those that are new: who gets what, and who stays.
        slot_s: seconds between decisions.
        restart_s: seconds in which a job whose GPUs have changed does nothing.
    """
    run, there, arrived, slot = Run(jobs, total, slot_s, restart_s), [], 0, 0
    while there or arrived < len(jobs.names):
        if not there:
            slot = max(slot, int(np.ceil(jobs.submit_s[arrived] / slot_s)))
        now_s, first = slot * slot_s, arrived
        while arrived < len(jobs.names) and jobs.submit_s[arrived] <= now_s:
            arrived += 1
        chosen, there = decide(run, now_s, there, list(range(first, arrived)))
        run.pass_slot(now_s, chosen)
        there = [job for job in there if run.finish_s[job] == np.inf]
        slot += 1
    return run.finish_s


def edf(run: Run, now_s: float, there: list[int], new: list[int]) -> tuple[dict[int, int], list[int]]:
    """Earliest deadline first, each on the GPUs with which it is fastest, of those that are left. Nobody is dropped."""
    free, chosen, there = run.total, {}, [*there, *new]
    for job in sorted(there, key=lambda job: run.jobs.deadline_s[job]):
        places = [
            place for place in range(run.fastest(job) + 1) if 1 << place <= free and run.jobs.pace[job, place] > 0
        ]
        if places:
            chosen[job] = max(places, key=lambda place: run.jobs.pace[job, place])
            free -= 1 << chosen[job]
    return chosen, there


def elasticflow(run: Run, now_s: float, there: list[int], new: list[int]) -> tuple[dict[int, int], list[int]]:
    """The smallest shares by which all admitted jobs are in time; the rest to whom it costs least GPU time."""
    for job in new:
        if _plans(run, now_s, [*there, job], strict=True) is not None:
            there = [*there, job]
    plans = _plans(run, now_s, there, strict=False)
    assert plans is not None
    return _spend(run, plans), there


class Plan(NamedTuple):
    """The smallest sufficient share of a job."""

    now: int  # place of its GPUs in the slot that begins; -1: none
    share: int  # place of the most GPUs that it may have


def _plans(run: Run, now_s: float, there: Sequence[int], *, strict: bool) -> dict[int, Plan] | None:
    """By deadline, one after another out of what is left; None if `strict` and a job cannot be in time."""
    if not there:
        return {}
    slots = int(np.ceil(max(run.jobs.deadline_s[list(there)].max() - now_s, 1.0) / run.slot_s))
    free, found = np.full(max(slots, 1), run.total), {}
    for job in sorted(there, key=lambda job: run.jobs.deadline_s[job]):
        used = _fill(run, now_s, job, free)
        if used is None and strict:
            return None
        if used is None:
            used = _late(run, job, free)
        places, share = used
        free[: len(places)] -= np.where(places < 0, 0, 1 << np.maximum(places, 0))
        found[job] = Plan(int(places[0]), share)
    return found


def _fill(run: Run, now_s: float, job: int, free: Int64[np.ndarray, "S"]) -> tuple[Int64[np.ndarray, "s"], int] | None:
    """Places slot by slot up to the end of the job, at the smallest share with which it is in time; and that share."""
    left_s = run.jobs.deadline_s[job] - now_s
    if left_s <= 0:
        return None
    slots = min(int(np.ceil(left_s / run.slot_s)), len(free))
    room = np.where(free[:slots] > 0, np.log2(np.maximum(free[:slots], 1)).astype(int), -1)
    seconds = np.full(slots, run.slot_s)
    seconds[-1] = left_s - (slots - 1) * run.slot_s
    pace = np.append(run.jobs.pace[job], 0.0)  # the last is that of no GPUs
    for share in range(run.fastest(job) + 1):
        if pace[share] == 0.0:
            continue
        places = np.minimum(room, share)
        useful_s = seconds - np.where(places[0] == run.held[job], run.wait_s[job], run.restart_s) * (
            np.arange(slots) == np.argmax(places >= 0)
        )
        done = np.cumsum(pace[places] * np.maximum(useful_s, 0.0))
        if done[-1] >= run.left[job]:
            return places[: int(np.argmax(done >= run.left[job])) + 1], share
    return None


def _late(run: Run, job: int, free: Int64[np.ndarray, "S"]) -> tuple[Int64[np.ndarray, "1"], int]:
    """A job that cannot be in time any more: what is left of this slot, up to where it is fastest."""
    share = run.fastest(job)
    place = min(share, int(free[0]).bit_length() - 1)
    return np.array([place]), share


def _spend(run: Run, plans: dict[int, Plan]) -> dict[int, int]:
    """GPUs that no plan needs now go one step after another to whom they cost least GPU time for each GPU."""
    chosen = {job: plan.now for job, plan in plans.items()}
    free = run.total - sum(1 << place for place in chosen.values() if place >= 0)

    def cost(job: int) -> tuple[float, int] | None:
        """Of the next step: GPU time for each GPU, and the place; None if there is none."""
        place, pace = chosen[job], run.jobs.pace[job]
        to = place + 1
        if to > run.fastest(job) or pace[to] == 0.0 or (1 << to) - (1 << place if place >= 0 else 0) > free:
            return None
        before = place if place >= 0 else plans[job].share
        more = (1 << to) / pace[to] - (1 << before) / pace[before]
        return run.left[job] * more / ((1 << to) - (1 << place if place >= 0 else 0)), to

    while free > 0:
        steps = [(found[0], job, found[1]) for job in chosen if (found := cost(job)) is not None]
        if not steps:
            break
        _, job, to = min(steps)
        free -= (1 << to) - (1 << chosen[job] if chosen[job] >= 0 else 0)
        chosen[job] = to
    return {job: place for job, place in chosen.items() if place >= 0}


DECIDES: dict[str, Decide] = {"EDF": edf, "ElasticFlow": elasticflow}


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
