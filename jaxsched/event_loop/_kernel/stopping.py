"""Jobs stop: what they keep, when they may be, and failures of their servers (docs/semantics.md, 8 and 11)."""

import numpy as np

from jaxsched.event_loop._kernel.estimates import remaining_s
from jaxsched.event_loop._kernel.jit import compiled, inlined, special
from jaxsched.event_loop._kernel.occupancy import give_server, leave
from jaxsched.event_loop._kernel.queues import count_intervals_run, enqueue
from jaxsched.event_loop._kernel.records import BOUNDARY, NEXT_CHANGE, Tables, World
from jaxsched.semantics import CHECKPOINT_TOLERANCE, LEAST_GAIN_S, STOP_TOLERANCE
from jaxsched.workload.jobs import NEVER


@compiled
def _measure_left_if_stopped_s(w: World, t: Tables, p: int, i: int) -> float:
    """Ideal seconds of work that a running job has left if it is stopped."""
    return remaining_s(t, p, i) if w.stops.checkpoint_s == 0.0 else left_at_checkpoint_s(w, t, p, i)


@compiled
def left_at_checkpoint_s(w: World, t: Tables, p: int, i: int) -> float:
    """Ideal seconds of work that a running job has left at its last checkpoint; there must be some."""
    j = t.running[p, i].job
    duration_s = w.jobs[j].duration_s
    done_s = duration_s - remaining_s(t, p, i)
    last_s = w.stops.checkpoint_s * np.floor(done_s / w.stops.checkpoint_s + CHECKPOINT_TOLERANCE)
    return duration_s - max(duration_s - t.service[j].left_s, min(done_s, last_s))


@compiled
def may_stop(w: World, t: Tables, p: int, i: int) -> bool:
    """Whether a running job has run for long enough, and would keep some of the work done since it started."""
    j = t.running[p, i].job
    if t.numbers[BOUNDARY] - t.service[j].since < w.stops.min_run_s / w.interval_s - STOP_TOLERANCE:
        return False
    return t.service[j].left_s - _measure_left_if_stopped_s(w, t, p, i) > LEAST_GAIN_S


@special
@inlined
def halt_marked(w: World, t: Tables, p: int) -> None:
    """Stop the jobs that are marked; they go back to the queue."""
    for i in range(t.partitions[p].running - 1, -1, -1):
        if t.stops[p, i] == 0:
            continue
        run = t.running[p, i]
        j, left_s = run.job, _measure_left_if_stopped_s(w, t, p, i)
        service = t.service[j]
        service.lost_s += left_s - remaining_s(t, p, i)
        service.stops += 1
        halt(w, t, p, i, left_s)


@compiled
def halt(w: World, t: Tables, p: int, i: int, left_s: float) -> None:
    """A running job goes back to its queue with so much work left."""
    run = t.running[p, i]
    j = run.job
    service = t.service[j]
    service.restarting_s -= max(run.resume_s - t.now_s[0], 0.0)
    service.left_s, service.ran = left_s, count_intervals_run(t, j)
    leave(w, t, p, i)
    enqueue(w, t, p, j)


@compiled
def until_stoppable_s(w: World, t: Tables, p: int, i: int) -> float:
    """At least so many seconds pass before a running job may be stopped that may not be now."""
    run = t.running[p, i]
    restart_s = max(run.resume_s - t.now_s[0], 0.0)
    ran_s = (t.numbers[BOUNDARY] - t.service[run.job].since) * w.interval_s
    # Faster GPUs take less than its ideal time.
    work_s = _estimate_until_checkpoint_s(w, t, p, i) * t.slots[p, run.slot].least
    return max(w.stops.min_run_s - ran_s, restart_s + work_s)


@compiled
def _estimate_until_checkpoint_s(w: World, t: Tables, p: int, i: int) -> float:
    """At least so many ideal seconds of work before a running job has something new to keep."""
    if w.stops.checkpoint_s == 0.0:
        return 0.0
    j = t.running[p, i].job
    done_s, had_s = w.jobs[j].duration_s - remaining_s(t, p, i), w.jobs[j].duration_s - t.service[j].left_s
    checkpoints = np.floor((had_s + LEAST_GAIN_S) / w.stops.checkpoint_s) + 1.0 - 2.0 * CHECKPOINT_TOLERANCE
    return max(w.stops.checkpoint_s * checkpoints - done_s, 0.0)


@compiled
def change_servers(w: World, t: Tables) -> None:
    """Servers go out and come back that are due at this boundary."""
    following, k = NEVER, t.free.shape[1] // w.site.servers.shape[1]
    for p in range(w.stops.changes.shape[0]):
        for s in range(w.stops.changes.shape[1]):
            if w.stops.changes[p, s, t.passed[p, s]] <= t.numbers[BOUNDARY]:
                t.passed[p, s] += 1
                if t.passed[p, s] % 2 == 1:
                    _clear(w, t, p, s, k)
                give_server(w, t, p, s, -1 if t.passed[p, s] % 2 == 1 else 1)
            following = min(following, w.stops.changes[p, s, t.passed[p, s]])
    t.numbers[NEXT_CHANGE] = following


@compiled
def _clear(w: World, t: Tables, p: int, s: int, k: int) -> None:
    """Stop the jobs with a task on a server."""
    for i in range(t.partitions[p].running - 1, -1, -1):
        run, there = t.running[p, i], False
        for g in range(t.slots[p, run.slot].groups):
            there = there or t.groups[p, run.slot, g].group // k == s
        if there:
            service = t.service[run.job]
            left_s = left_at_checkpoint_s(w, t, p, i) if w.stops.checkpoint_s > 0.0 else service.left_s
            service.fallen_s += left_s - remaining_s(t, p, i)
            service.failure_restarts += 1
            halt(w, t, p, i, left_s)
