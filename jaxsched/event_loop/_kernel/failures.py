"""Servers go out and come back, and jobs fall back to their last checkpoints (docs/semantics.md, section 11)."""

from jaxsched.event_loop._kernel.displacement import halt, left_at_checkpoint_s
from jaxsched.event_loop._kernel.estimates import remaining_s
from jaxsched.event_loop._kernel.jit import compiled
from jaxsched.event_loop._kernel.occupancy import give_server
from jaxsched.event_loop._kernel.records import BOUNDARY, NEXT_CHANGE, Tables, World
from jaxsched.workload.jobs import NEVER


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
