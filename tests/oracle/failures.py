"""Servers that fail (section 11 of `docs/semantics.md`)."""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.oracle.state import Running, State


@dataclasses.dataclass(frozen=True)
class Outage:
    """A server, by its number in the inventory, is out."""

    server: int
    from_s: float
    to_s: float


def is_out(outages: list[Outage], server: int, boundary: int, interval_s: float) -> bool:
    """Whether a server is out at a boundary."""
    now, before = boundary * interval_s, (boundary - 1) * interval_s
    return any(o.server == server and o.from_s <= now and (now < o.to_s or before < o.from_s) for o in outages)


def next_change(outages: list[Outage], boundary: int, interval_s: float) -> int | None:
    """The first boundary after this one at which some server may go out or come back; None if there is none."""
    times = [t for o in outages for t in (o.from_s, o.to_s)]
    near = {math.floor(t / interval_s) + d for t in times for d in range(-1, 4)}  # generously
    return next((i for i in sorted(near) if i > boundary and _differs(outages, i, interval_s)), None)


def _differs(outages: list[Outage], i: int, interval_s: float) -> bool:
    return any(is_out(outages, s, i, interval_s) != is_out(outages, s, i - 1, interval_s) for s in _servers(outages))


def _servers(outages: list[Outage]) -> set[int]:
    return {o.server for o in outages}


def change_servers(state: "State") -> None:
    """Servers go out and come back at this boundary; jobs fall back to their last checkpoints."""
    hw = state.hw
    out = np.zeros((hw.P, hw.N), bool)
    for p in range(hw.P):
        for s in range(hw.N):
            out[p, s] = is_out(state.outages, int(hw.server_id[p, s]), state.boundary, state.interval_s)
    state.out = out
    for p in range(hw.P):
        for r in list(state.running[p]):
            if any(out[p, a // hw.K] for a in {*r.w, *r.u}):
                _fall_back(state, p, r)


def _fall_back(state: "State", p: int, r: "Running") -> None:
    """Section 10, what is kept."""
    assert state.preemption is not None
    c, duration = state.preemption.checkpoint_interval_s, state.jobs[r.job].duration_s
    done, before = duration - r.remaining_s, duration - state.left_s[r.job]
    kept = before if c == 0 else max(before, min(done, c * math.floor(done / c + 0.001)))
    state.left_s[r.job] = duration - kept
    state.fallen_s[r.job] += done - kept
    state.falls[r.job] += 1
    state.ran[r.job] += state.boundary - r.since
    state.restarting_s[r.job] -= r.restart_s
    state.running[p].remove(r)
    state.queue[p].append(r.job)
    state.owed_s.pop(r.job, None)


def room(state: "State", p: int) -> float:
    """Free slots of a queue, less those kept for the jobs that run where servers fail."""
    kept = len(state.running[p]) if state.outages is not None else 0
    return state.queue_slots - len(state.queue[p]) - kept
