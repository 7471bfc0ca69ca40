"""Jobs go where they would start sooner (section 7 of `docs/semantics.md`, "Seeking")."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxsched.semantics import (
    GRID,
    GRID_OFFSET,
    SEEK_HIDDEN,
    SEEK_INPUTS,
    SEEK_JOBS,
    SEEK_LONGEST_S,
    SEEK_MOST,
    SEEK_S,
    SEEK_WIDTH,
)
from tests.oracle.failures import room
from tests.oracle.state import State

BY_HAND = (-1.0, 0.0, -0.5, 0.0, 0.0, 0.0, 0.1, *[0.0] * 90)  # `+seek`


@dataclasses.dataclass(frozen=True)
class View:
    """What a policy that seeks knows besides the state of a round."""

    numbers: Sequence[float]  # a_0..a_8, then of each hidden unit w_h0..w_h8, b_h and v_h
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
    whole = [r for r in state.running[t] if not state.jobs[r.job].fraction]
    ends = [(state.estimated_left_s(r) * view.slowdowns()[r.job], gpus(state, r.job)) for r in whole]
    free, wanted = int(state.free(t).sum()), min(gpus(state, j) + ahead, int(state.hw.gpus[t].sum()))
    enough = [end for end, _ in ends if free + sum(n for other, n in ends if other <= end) >= wanted]
    return min([*enough, SEEK_LONGEST_S])


def inputs(state: State, view: View, p: int, t: int, j: int) -> list[float]:
    """What is known of partition `t` for a job in the queue of partition `p`."""
    total, longer = int(state.hw.gpus[t].sum()), state.estimate_s(j) + SEEK_S
    others = [i for i in state.queue[t] if i != j]
    before = [i for i in others if view.rank(i) < view.rank(j)]
    queued, ahead = (sum(gpus(state, i) for i in some) for some in (others, before))
    work = sum(gpus(state, i) * state.estimate_s(i) for i in before)
    return [
        math.log((wait_s(state, view, t, j, ahead) + SEEK_S) / longer),
        float(view.may_start(t, j)),
        int(state.free(t).sum()) / total,
        min(ahead / total, SEEK_MOST),
        min(queued / total, SEEK_MOST),
        math.log(gpus(state, j) / total) / SEEK_WIDTH,
        float(t == p),
        min(forwards_left(state, j), SEEK_MOST) / SEEK_MOST,
        math.log((work / total + SEEK_S) / longer),
    ]


def index_of(numbers: Sequence[float], x: Sequence[float]) -> int:
    """The index of these inputs, as it is compared."""
    assert len(numbers) == SEEK_INPUTS + SEEK_HIDDEN * (SEEK_INPUTS + 2)
    a, rest = numbers[:SEEK_INPUTS], numbers[SEEK_INPUTS:]
    index = math.fsum(w * y for w, y in zip(a, x, strict=True))
    for h in range(SEEK_HIDDEN):
        *w, b, v = rest[h * (SEEK_INPUTS + 2) : (h + 1) * (SEEK_INPUTS + 2)]
        index += v * math.tanh(b + math.fsum(c * y for c, y in zip(w, x, strict=True)))
    return math.floor(GRID * index + GRID_OFFSET)


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
