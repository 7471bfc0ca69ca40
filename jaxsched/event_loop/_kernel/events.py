"""Boundaries and completions, in turn (docs/semantics.md, section 6)."""

import numpy as np

from jaxsched.event_loop._kernel.displacement import (
    FOREVER,
    NONE,
    SOME,
    count_intervals_until_moved,
    count_quiet_intervals,
    find_faster_partition,
    mark_displaced,
    mark_moved,
)
from jaxsched.event_loop._kernel.jit import by_reference, compiled, inlined
from jaxsched.event_loop._kernel.looking import accept, match, take_candidate
from jaxsched.event_loop._kernel.occupancy import end_until, has_room_in_log, refresh, start
from jaxsched.event_loop._kernel.openings import (
    STAY,
    charge,
    choose_forward,
    find_first_open,
    is_anything_possible,
    note_arrivals,
    reserve_gpus,
    seek,
)
from jaxsched.event_loop._kernel.queues import count_room, dequeue, enqueue, renew
from jaxsched.event_loop._kernel.records import BOUNDARY, NEWS, NEXT_CHANGE, NEXT_JOB, ROUNDS, Tables, World
from jaxsched.event_loop._kernel.rules import GREEDY_WAIT, place
from jaxsched.event_loop._kernel.shared_gpus import observe
from jaxsched.event_loop._kernel.stopping import change_servers, halt_marked
from jaxsched.event_loop._kernel.tiers_and_racks import hide_others, show_others

STOPS = -2  # as the `target` of a partition: it stops jobs


@compiled
def play(w: World, t: Tables, rounds: int) -> bool:
    """Go on for at least so many rounds, or to the end, or until the log is full; whether the end is reached.

    It is where every job that fits somewhere has finished, or at the horizon.
    """
    return _play(by_reference(w), by_reference(t), rounds)


@compiled
def _play(w: World, t: Tables, rounds: int) -> bool:
    until = t.numbers[ROUNDS] + rounds
    while t.numbers[ROUNDS] < until and has_room_in_log(w, t):
        if len(w.rule.seek) > 0:
            note_arrivals(w, t)
        _admit(w, t)
        if t.numbers[BOUNDARY] >= w.horizon:
            return True
        acted = _decide(w, t)
        following = _find_next_boundary(w, t, acted)
        if following < 0:
            return True
        _advance(w, t, following)
    return False


@inlined
def _admit(w: World, t: Tables) -> None:
    """Queue what has arrived, in order, while there is room."""
    j = t.numbers[NEXT_JOB]
    while j < len(w.jobs) and w.jobs[j].arrival <= t.numbers[BOUNDARY]:
        home = w.jobs[j].home
        if home >= 0:
            if count_room(w, t, home) <= 0:
                break
            enqueue(w, t, home, j)
        j += 1
    t.numbers[NEXT_JOB] = j


@inlined
def _decide(w: World, t: Tables) -> bool:
    """The rounds of one boundary; whether somebody did something."""
    renew(w, t)
    for p in range(len(t.partitions)):
        t.partitions[p].waited = 0
    for turn in range(w.rounds):
        t.numbers[ROUNDS] += 1
        if not play_round(w, t):
            return turn > 0
    return True


@inlined
def play_round(w: World, t: Tables) -> bool:
    """One round of all schedulers; whether somebody did something."""
    if w.rule.reserve or len(w.rule.seek) > 0 or w.rule.preempts or w.rule.looks or w.tier_speed.shape[2] > 1:
        refresh(w, t)
    if w.rule.reserve:
        for p in range(len(t.partitions)):
            reserve_gpus(w, t, p)
    for p in range(len(t.partitions)):
        _choose(w, t, p)
    return _act(w, t)


@inlined
def _choose(w: World, t: Tables, p: int) -> None:
    """What a scheduler does in this round, by the state before it."""
    partition = t.partitions[p]
    partition.target, partition.room = -1, count_room(w, t, p)
    if partition.waited:
        return
    if partition.queued > 0:
        _choose_queued(w, t, p)
        if len(w.rule.seek) > 0:
            seek(w, t, p)
    if w.rule.faster:
        _choose_faster(w, t, p)


@inlined
def _choose_queued(w: World, t: Tables, p: int) -> None:
    """What it does for the jobs in its queue; there are some."""
    partition = t.partitions[p]
    settled = w.rule.settles and partition.settled > t.numbers[BOUNDARY]
    partition.chosen = -1
    if not settled:
        partition.chosen = _choose_first(w, t, p)
    if partition.chosen >= 0:
        partition.target = p
    elif w.rule.forward != STAY:
        partition.chosen, partition.target = choose_forward(w, t, p)
    if partition.target >= 0 or settled:
        return
    displaced = mark_displaced(w, t, p) if w.rule.preempts else NONE
    if displaced == SOME:
        partition.target = STOPS
    elif displaced == NONE:
        partition.settled = t.numbers[BOUNDARY] + (count_quiet_intervals(w, t, p) if w.rule.preempts else FOREVER)


@inlined
def _choose_first(w: World, t: Tables, p: int) -> int:
    """Place in its queue of the job that a scheduler starts, -1 if there is none."""
    if not w.rule.looks:
        return find_first_open(w, t, p)
    return accept(w, t, p) if w.rule.kind == GREEDY_WAIT else match(w, t, p)


@inlined
def _choose_faster(w: World, t: Tables, p: int) -> None:
    """A job goes where its GPUs are faster: one that would start here, or, if there is nothing to do, one that runs."""
    partition = t.partitions[p]
    if partition.target == p:
        q = find_faster_partition(w, t, p, t.queue[p, partition.chosen], partition.chosen)
        if q >= 0:
            partition.target = q
    elif w.rule.moves and partition.target == -1 and mark_moved(w, t, p):
        partition.target = STOPS


@inlined
def _act(w: World, t: Tables) -> bool:
    """Placements, then forwards, lower numbered schedulers first; whether somebody did something."""
    acted = w.rule.preempts and _stop(w, t)
    for p in range(len(t.partitions)):
        partition = t.partitions[p]
        target = partition.target
        if target == STOPS:
            continue
        if target == p:
            j = dequeue(t, p, partition.chosen)
            if w.rule.ahead and w.rule.reserve:
                charge(w, t, p, j)
            if w.masks:
                hide_others(w, t, p, j)
            used = take_candidate(w, t, p, j) if w.rule.looks else place(w, t, p, j)
            if w.masks:
                show_others(t, p)
            start(w, t, p, j, used, partition.gpu if w.rule.looks else -1)
            acted = True
        elif target >= 0 and t.partitions[target].room > 0:
            t.partitions[target].room -= 1
            partition.chosen = dequeue(t, p, partition.chosen)  # the job: it joins the other queue after the round
            acted = True
        else:
            partition.target, partition.waited = -1, 1
    for p in range(len(t.partitions)):
        partition = t.partitions[p]
        if partition.target >= 0 and partition.target != p:
            t.records[partition.chosen].forwards += 1
            enqueue(w, t, partition.target, partition.chosen)
    return acted


@inlined
def _stop(w: World, t: Tables) -> bool:
    """The stops of a round; whether there are any."""
    stopped = False
    for p in range(len(t.partitions)):
        if t.partitions[p].target == STOPS:
            halt_marked(w, t, p)
            stopped = True
    if stopped:
        for p in range(len(t.partitions)):
            t.partitions[p].room = count_room(w, t, p)
    return stopped


@inlined
def _find_next_boundary(w: World, t: Tables, acted: bool) -> int:
    """The next boundary at which something may be decided; -1 if nothing is left to do.

    Where nobody has done anything, that is after an arrival or a completion, unless the policy looks at the clock and
    something is possible.
    """
    now, j = t.numbers[BOUNDARY], t.numbers[NEXT_JOB]
    arrival = w.jobs[j].arrival if j < len(w.jobs) else w.horizon
    queued, running, end_s = 0, 0, np.inf
    for p in range(len(t.partitions)):
        queued, running = queued + t.partitions[p].queued, running + t.partitions[p].running
        end_s = min(end_s, t.partitions[p].next_early_s)
    following = now + 1
    if queued == 0:
        if running == 0 and j == len(w.jobs):
            return -1
        if not w.rule.moves:
            following = max(following, arrival)
        elif not acted:
            following = max(
                following, min(arrival, _find_boundary_after(w, end_s), now + _count_intervals_until_moved(w, t))
            )
    elif not acted and not (w.rule.timed and is_anything_possible(w, t)):
        following = max(following, _find_boundary_after(w, end_s))
        if w.rule.preempts:
            for p in range(len(t.partitions)):
                if t.partitions[p].queued > 0:
                    following = min(following, max(t.partitions[p].settled, now + 1))
            if w.rule.moves:
                following = min(following, now + _count_intervals_until_moved(w, t))
        if arrival > now:
            following = min(following, arrival)
        elif len(w.rule.seek) > 0:  # those that have come find no free slot, but that others come is news
            following = min(following, _find_next_arrival(w, t))
    return min(following, w.horizon, t.numbers[NEXT_CHANGE])


@compiled
def _find_next_arrival(w: World, t: Tables) -> int:
    """The first boundary after the present one for which a job is submitted, at most the horizon."""
    for j in range(t.numbers[NEXT_JOB], len(w.jobs)):
        if w.jobs[j].arrival > t.numbers[BOUNDARY]:
            return min(w.jobs[j].arrival, w.horizon)
    return w.horizon


@inlined
def _count_intervals_until_moved(w: World, t: Tables) -> int:
    """For at least so many intervals no running job is moved to faster GPUs if nobody comes or goes."""
    least = FOREVER
    for p in range(len(t.partitions)):
        least = min(least, count_intervals_until_moved(w, t, p))
    return least


@compiled
def _find_boundary_after(w: World, time_s: float) -> int:
    """The first boundary at or after that time, at most the horizon."""
    if time_s >= w.horizon * w.interval_s:
        return w.horizon
    boundary = int(np.ceil(time_s / w.interval_s))
    if (boundary - 1) * w.interval_s >= time_s:  # the division rounded up
        return boundary - 1
    return boundary


@inlined
def _advance(w: World, t: Tables, following: int) -> None:
    """Run the cluster up to a boundary, completion by completion."""
    until_s = following * w.interval_s
    refresh(w, t)
    while True:
        stop_s = until_s
        for p in range(len(t.partitions)):
            stop_s = min(stop_s, t.partitions[p].next_finish_s)
        if w.rule.by_tenant:
            for tenant in range(len(t.tenants)):
                t.tenants[tenant].attained_s += t.tenants[tenant].gpus * (stop_s - t.now_s[0])
        if w.sharing.observed:
            observe(w, t, stop_s - t.now_s[0])
        t.now_s[0] = stop_s
        ended = False
        for p in range(len(t.partitions)):
            if t.partitions[p].next_early_s <= stop_s:
                end_until(w, t, p, stop_s)
                ended = True
                if stop_s > (following - 1) * w.interval_s:
                    t.numbers[NEWS] = following
        over = stop_s >= until_s
        if over:
            t.numbers[BOUNDARY] = following
            if t.numbers[NEXT_CHANGE] <= following:
                change_servers(w, t)
                ended = True
        if ended:
            refresh(w, t)
        if over:
            return
