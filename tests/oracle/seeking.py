"""Jobs go where they would start sooner (section 7 of `docs/semantics.md`, "Seeking")."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxsched.semantics import (
    GRID,
    GRID_OFFSET,
    SEEK_DOUBT,
    SEEK_INPUTS,
    SEEK_JOBS,
    SEEK_LAST,
    SEEK_LONGEST_S,
    SEEK_MOST,
    SEEK_MOST_DOUBT,
    SEEK_S,
)
from tests.oracle.failures import room
from tests.oracle.state import State

BY_HAND = (-1.0, -0.3, 0.2, 1.0)  # `+seek`


@dataclasses.dataclass(frozen=True)
class View:
    """What a policy that seeks knows besides the state of a round."""

    numbers: Sequence[float]  # a_0..a_3
    may_start: Callable[[int, int], bool]  # of a partition and a job
    rank: Callable[[int], tuple[float, int]]  # (key, row) of a job
    slowdowns: Callable[[], dict[int, float]]  # of the running jobs


def gpus(state: State, j: int) -> int:
    """The `W g` of a job."""
    return state.jobs[j].W * state.jobs[j].g


def wait_s(state: State, view: View, t: int, j: int, ahead: int) -> float:
    """Seconds until a job could start in a partition where so many GPUs are wanted before it."""
    if view.may_start(t, j):
        return 0.0
    whole = [r for r in state.running[t] if not state.jobs[r.job].fraction and state.held_for(r, j) > 0]
    ends = [(state.estimated_left_s(r) * view.slowdowns()[r.job], state.held_for(r, j)) for r in whole]
    total = int(state.hw.gpus_for(t, state.jobs[j]).sum())
    free, wanted = state.free_for(t, j), min(gpus(state, j) + ahead, total)
    enough = [end for end, _ in ends if free + sum(n for other, n in ends if other <= end) >= wanted]
    return min([*enough, SEEK_LONGEST_S])


def doubt(state: State) -> float:
    """From 0, no job has run for longer than estimated, to 10."""
    if state.history:
        return SEEK_MOST_DOUBT
    whole = [r for running in state.running for r in running if not state.jobs[r.job].fraction]
    done = {r.job: state.jobs[r.job].duration_s - r.remaining_s for r in whole}
    late = sum(gpus(state, j) for j in done if state.estimate_s(j) - done[j] <= 0)
    return min(SEEK_DOUBT * late / sum(gpus(state, j) for j in done), SEEK_MOST_DOUBT) if done else 0.0


def inputs(state: State, view: View, p: int, t: int, j: int) -> list[float]:
    """What is known of partition `t` for a job in the queue of partition `p`."""
    total = int(state.hw.gpus[t].sum())
    others = [i for i in state.queue[t] if i != j]
    ahead = sum(gpus(state, i) for i in others if view.rank(i) < view.rank(j))
    return [
        math.log((wait_s(state, view, t, j, ahead) + SEEK_S) / (state.estimate_s(j) + SEEK_S)),
        min(sum(gpus(state, i) for i in others) / total, SEEK_MOST),
        float(t == p),
        doubt(state) / forwards_left(state, j) if t == p and forwards_left(state, j) <= SEEK_LAST else 0.0,
    ]


def index_of(numbers: Sequence[float], x: Sequence[float]) -> int:
    """The index of these inputs, as it is compared."""
    assert len(numbers) == SEEK_INPUTS
    return math.floor(GRID * math.fsum(a * y for a, y in zip(numbers, x, strict=True)) + GRID_OFFSET)


def index(state: State, view: View, p: int, t: int, j: int) -> int:
    """How good partition `t` is for a job in the queue of partition `p`."""
    return index_of(view.numbers, inputs(state, view, p, t, j))


def forwards_left(state: State, j: int) -> int:
    """How often a job may still be forwarded."""
    return state.max_forwards - state.forwards[j]


def best_other(state: State, view: View, p: int, j: int, others: list[int]) -> int | None:
    """Of these partitions the one of the largest index, if that is larger than at home."""
    found = max(((index(state, view, p, t, j), -t) for t in others), default=None)
    return -found[1] if found is not None and found[0] > index(state, view, p, p, j) else None


def open_queues(state: State, p: int) -> list[int]:
    """The other partitions whose queue has a free slot."""
    return [t for t in range(state.hw.P) if t != p and room(state, t) > 0]


def before_start(state: State, view: View, p: int, j: int) -> int | None:
    """The partition to which a job goes that would be placed here."""
    if forwards_left(state, j) <= 0:
        return None
    return best_other(state, view, p, j, [t for t in open_queues(state, p) if view.may_start(t, j)])


def while_waiting(state: State, view: View, p: int, queue: list[int]) -> tuple[int, int] | None:
    """Of a queue in order, in which nothing may start, the job that goes elsewhere, and where to."""
    for j in queue[:SEEK_JOBS]:
        if state.feasible(p, j) or forwards_left(state, j) <= 0:
            continue
        target = best_other(state, view, p, j, [t for t in open_queues(state, p) if state.could_hold(t, j)])
        if target is not None:
            return j, target
    return None


def news(state: State) -> bool:
    """Whether a job was submitted for this boundary or has ended since the one before."""
    now, before = state.boundary * state.interval_s, (state.boundary - 1) * state.interval_s
    if any(before < finish <= now for _, finish in state.finished):
        return True
    submitted = (j for j, job in enumerate(state.jobs) if before < job.submit_s <= now)
    return any(state.could_hold(p, j) for j in submitted for p in range(state.hw.P))
