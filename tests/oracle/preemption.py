"""Stopping jobs (section 8 of `docs/semantics.md`): what is kept, levels, and who is displaced."""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tests.oracle import history
from tests.oracle.cluster import Job

if TYPE_CHECKING:
    from tests.oracle.state import Running, State

TABLE = "table"  # its levels are given
ORDERS = ("srtf", "srsf", "las", "mlfq", "tiresias", "gittins", "themis")
CONTINUOUS = ORDERS[:3]


@dataclasses.dataclass(frozen=True)
class Preemption:
    """What the world says of it."""

    restart_s: float = 60.0
    checkpoint_interval_s: float = 0.0
    min_run_s: float = 0.0

    def kept_s(self, done: float, before: float) -> float:
        """Work that is kept by a job that has done so much and had so much at its last start."""
        c = self.checkpoint_interval_s
        return done if c == 0 else max(before, min(done, c * math.floor(done / c + 0.001)))


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a preemptive policy says."""

    order: str
    backfill: bool
    hysteresis: float = 0.0
    threshold: float = 18000.0
    table: list[list[int]] | None = None  # levels of the order `table`
    table_margin: int = 0

    @property
    def margin(self) -> int:
        """Levels."""
        if self.order == TABLE:
            return self.table_margin
        if self.order in ORDERS[5:]:
            return math.floor(16 * math.log2(1 + self.hysteresis) + 0.5)
        return math.floor(100 * math.log(1 + self.hysteresis) + 0.5) if self.order in CONTINUOUS else 0


def continuous(x: float) -> int:
    """100 levels per factor e."""
    return math.floor(100 * math.log(max(x, 0.001)) + 0.123)


def ran(state: "State", j: int) -> int:
    """Intervals in which a job has held GPUs."""
    run = running(state, j)
    return state.ran[j] + (0 if run is None else state.boundary - run.since)


def running(state: "State", j: int) -> "Running | None":
    """The run of a job."""
    return next((r for runs in state.running for r in runs if r.job == j), None)


def attained(state: "State", j: int) -> float:
    """Attained service in GPU-seconds, a 32-bit float."""
    job: Job = state.jobs[j]
    gpus = np.float32(job.W * job.g) * (np.float32(job.milli) * np.float32(0.001))
    return float(np.float32(ran(state, j)) * np.float32(state.interval_s) * gpus)


def left_s(state: "State", j: int) -> float:
    """What is left of a job by its estimate."""
    run = running(state, j)
    return state.left_by_estimate_s(j, state.left_s[j] if run is None else run.remaining_s)


def level(state: "State", rule: Rule, j: int) -> int:
    """The lower the earlier."""
    job: Job = state.jobs[j]
    if rule.order == TABLE:
        assert rule.table is not None
        width = max(k for k in range(8) if 2**k <= job.W * job.g)
        seconds = float(np.float32(ran(state, j)) * np.float32(state.interval_s))
        return rule.table[width][sum(seconds >= 60 * 2**k for k in range(20))]
    if rule.order == "srtf":
        return continuous(left_s(state, j))
    if rule.order == "srsf":
        return continuous(left_s(state, j) * job.W * job.g * job.milli / 1000)
    if rule.order == "gittins":
        return history.gittins_level(state, attained(state, j))
    if rule.order == "themis":
        return history.themis_level(state, j, ran(state, j))
    if rule.order == "las":
        return continuous(attained(state, j))
    if rule.order == "mlfq":
        seconds = float(np.float32(ran(state, j)) * np.float32(state.interval_s))
        return sum(seconds >= 3600 * 4**i for i in range(8))
    return int(attained(state, j) >= rule.threshold)


def displaced(state: "State", p: int, queue: list[int], rule: Rule) -> list[int]:
    """Running jobs that a partition stops for the sake of one of its queue, which is in order."""
    for j in queue if rule.backfill else queue[:1]:
        mine = level(state, rule, j)
        lower = [
            (level(state, rule, r.job), r.job)
            for r in state.running[p]
            if state.may_stop(r) and level(state, rule, r.job) > mine + rule.margin
        ]
        lower = [i for _, i in sorted(lower, reverse=True)]
        if not lower or not state.feasible(p, j, without=lower):
            continue
        taken: list[int] = []
        while not state.feasible(p, j, without=taken):
            taken.append(lower[len(taken)])
        for i in reversed(list(taken)):
            rest = [x for x in taken if x != i]
            if state.feasible(p, j, without=rest):
                taken = rest
        if not taken:  # it fits, but waits for faster GPUs
            continue
        return taken if len(state.queue[p]) + len(taken) <= state.queue_slots else []
    return []
