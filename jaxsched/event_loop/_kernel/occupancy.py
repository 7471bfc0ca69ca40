"""Jobs come and go: free GPUs, totals of use, and whose slowdown is another for it."""

import numpy as np
from jaxtyping import Int64

from jaxsched.dynamics.resources import LINK
from jaxsched.event_loop._kernel.estimates import note_finished
from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.records import BOUNDARY, FINISHED, PEAK_RUNNING, STARTED, Tables, World
from jaxsched.event_loop._kernel.shared_gpus import (
    choose_gpu,
    count_capacity,
    count_fitting,
    find_most_room,
    index_gpu,
    share_gpu,
)
from jaxsched.event_loop._kernel.speed import renew_slowdown, write_footprint
from jaxsched.semantics import WORK_TOLERANCE

MANY = 2**31  # workers
BITS = 62  # of a word of `Tables.users`, which Python and machine code shift alike


@inlined
def count_workers_that_fit(w: World, t: Tables, p: int, j: int) -> int:
    """Workers of a job that fit a partition now; of a fraction 1 at most."""
    size, allowed = w.jobs[j].size, w.jobs[j].allowed
    if w.asks and size > 0:
        return count_within_servers(w, t, p, j)
    if size < 0:
        if w.asks or allowed > 0:
            return count_fraction_of_set(w, t, p, j)
        return 1 if t.partitions[p].free_gpus > 0 or find_most_room(t, p) >= -size else 0
    place = index_size(w, t, j)
    if t.fits[p, place] < 0 and size == 1 and allowed == 0:
        t.fits[p, place] = t.partitions[p].free_gpus
    elif t.fits[p, place] < 0:
        fits = 0
        for a in range(t.free.shape[1]):
            if allowed == 0 or w.site.usable[allowed, p, a] > 0:
                fits += count_fitting(t.free[p, a], size)
        t.fits[p, place] = fits
    return t.fits[p, place]


@compiled
def count_fraction_of_set(w: World, t: Tables, p: int, j: int) -> int:
    """1 if a fraction fits some GPU in a partition now that it may use, else 0."""
    k = t.free.shape[1] // w.site.servers.shape[1]
    for a in range(t.free.shape[1]):
        fits = w.site.usable[w.jobs[j].allowed, p, a] > 0 and count_capacity(t, p, a, w.jobs[j].size) > 0
        if fits and count_within(w, t.spare[p], a // k, j) > 0:
            return 1
    return 0


@compiled
def count_within_servers(w: World, t: Tables, p: int, j: int) -> int:
    """Workers of a gang that fit a partition now, on each server by its GPUs and by what it has to reserve."""
    workers, servers, job = 0, w.site.servers.shape[1], w.jobs[j]
    k = t.free.shape[1] // servers
    for s in range(servers):
        fits = 0
        for a in range(s * k, (s + 1) * k):
            if w.site.usable[job.allowed, p, a] > 0:
                fits += count_fitting(t.free[p, a], job.wide)
        if fits > 0:
            workers += min(fits, count_within(w, t.spare[p], s, j))
    return workers


@compiled
def count_within(w: World, spare: Int64[np.ndarray, "N 2"], s: int, j: int) -> int:
    """Workers of a job for whom what is spare of a server is enough."""
    workers, job = MANY, w.jobs[j]
    if job.cpu > 0:
        workers = spare[s, 0] // job.cpu
    if job.memory > 0:
        workers = min(workers, spare[s, 1] // job.memory)
    return workers


@compiled
def index_size(w: World, t: Tables, j: int) -> int:
    """Where `Tables.fits`, `most` and `most_empty` have what a gang asks about."""
    return w.jobs[j].allowed * (t.fits.shape[1] // len(w.site.usable)) + w.jobs[j].wide


@compiled
def fits_fewest_servers(w: World, t: Tables, p: int, j: int) -> bool:
    """Whether a gang fits as few servers of a partition as it ever needs."""
    job, place, servers = w.jobs[j], index_size(w, t, j), count_fewest_servers(w, t, p, j)
    if w.asks or t.most[p, place, 0] < 0:
        fill_roomiest(w, t, p, j, t.free[p], t.spare[p], t.most[p, place])
    return t.most[p, place, servers - 1] >= job.workers


@compiled
def count_fewest_servers(w: World, t: Tables, p: int, j: int) -> int:
    """That a gang needs in an empty partition, which can hold it."""
    fewest, most = 1, w.site.servers.shape[1]
    if not w.asks:
        roomiest = max(count_empty(w, t, p, j, 1), 1)
        fewest = min(-(-w.jobs[j].workers // roomiest), most)  # as if all were like that one
        if count_empty(w, t, p, j, fewest) >= w.jobs[j].workers:
            return fewest
    while fewest < most:
        middle = (fewest + most) // 2
        if count_empty(w, t, p, j, middle) < w.jobs[j].workers:
            fewest = middle + 1
        else:
            most = middle
    return fewest


@compiled
def count_empty(w: World, t: Tables, p: int, j: int, servers: int) -> int:
    """Workers of a job that fit so many of the roomiest servers of an empty partition."""
    if w.asks:
        fill_roomiest(w, t, p, j, w.site.group_gpus[p], w.site.reservable[p], t.scratch.roomiest)
        return t.scratch.roomiest[servers - 1]
    return t.most_empty[p, index_size(w, t, j), servers - 1]


@compiled
def fill_roomiest(
    w: World,
    t: Tables,
    p: int,
    j: int,
    free: Int64[np.ndarray, "NK"],
    spare: Int64[np.ndarray, "N 2"],
    most: Int64[np.ndarray, "N"],
) -> None:
    """Fill `most` with the workers of a gang that fit the 1, 2, ... roomiest servers, by what is free and spare."""
    servers, roomy, count, room = len(most), t.scratch.roomy, 0, 0
    wide, usable, k = w.jobs[j].wide, w.site.usable[w.jobs[j].allowed, p], len(free) // servers
    for s in range(servers):
        fits = 0
        for a in range(s * k, (s + 1) * k):
            if usable[a] > 0:
                fits += count_fitting(free[a], wide)
        if w.asks:
            fits = min(fits, count_within(w, spare, s, j))
        if fits > 0:
            roomy[count].key, count, room = fits, count + 1, max(room, fits)
    total, counted = 0, 0
    while count > 0:  # in a turn all servers that have the most room left
        left, following = 0, 0
        for i in range(count):
            fits = roomy[i].key
            if fits == room:
                total += room
                most[counted], counted = total, counted + 1
            else:
                roomy[left].key, left, following = fits, left + 1, max(following, fits)
        count, room = left, following
    for s in range(counted, servers):
        most[s] = total


@compiled
def sort_places(t: Tables, used: int) -> None:
    """Put the first `used` groups of `Scratch.place` in ascending order."""
    for i in range(1, used):
        group, workers, at = t.scratch.place[i].group, t.scratch.place[i].workers, i
        while at > 0 and t.scratch.place[at - 1].group > group:
            t.scratch.place[at].group, t.scratch.place[at].workers = (
                t.scratch.place[at - 1].group,
                t.scratch.place[at - 1].workers,
            )
            at -= 1
        t.scratch.place[at].group, t.scratch.place[at].workers = group, workers


@compiled
def start(w: World, t: Tables, p: int, j: int, used: int, gpu: int = -1) -> None:
    """A job starts on the first `used` groups of `Scratch.place`, which are put in ascending order.

    `gpu`: the GPU that a fraction gets, by its index in the group; -1: the one that it gets by itself.
    """
    sort_places(t, used)
    partition = t.partitions[p]
    run = t.running[p, partition.running]
    partition.running += 1
    service = t.service[j]
    run.job, run.finish_s, run.resume_s, run.slowdown = j, service.left_s, 0.0, 0.0
    service.since = t.numbers[BOUNDARY]
    if service.stops + service.failure_restarts > 0:
        run.resume_s = t.now_s[0] + w.stops.restart_s
        service.restarting_s += w.stops.restart_s
    write_footprint(w, t, p, run.slot, j, used)
    if w.jobs[j].size < 0:
        t.slots[p, run.slot].gpu = gpu if gpu >= 0 else choose_gpu(t, p, t.scratch.place[0].group, -w.jobs[j].size)
    _hold(w, t, p, run.slot, j, 1)
    t.numbers[PEAK_RUNNING] = max(t.numbers[PEAK_RUNNING], partition.running)
    t.records[j].partition, t.records[j].gpu = p, index_gpu(w, t, p, run.slot)
    if service.stops + service.failure_restarts == 0:
        t.records[j].start = t.numbers[BOUNDARY]
    if len(t.placement) > 0:
        for a in range(t.placement.shape[1]):
            t.placement[j, a] = 0
        for i in range(used):
            t.placement[j, t.scratch.place[i].group] = t.scratch.place[i].workers
    if len(t.starts) > 0:
        _log(t, p, j, used)


@compiled
def _log(t: Tables, p: int, j: int, used: int) -> None:
    """A line of the log for a start on the first `used` groups of `Scratch.place`."""
    at, service = t.numbers[STARTED], t.service[j]
    line = t.starts[at]
    line.job, line.partition, line.boundary = j, p, t.numbers[BOUNDARY]
    line.ran, line.stops, line.failure_restarts = service.ran, service.stops, service.failure_restarts
    line.gpu = t.records[j].gpu
    for i in range(used):
        t.start_workers[at, t.scratch.place[i].group] = t.scratch.place[i].workers
    t.numbers[STARTED] = at + 1


@inlined
def has_room_in_log(w: World, t: Tables) -> bool:
    """Whether the log can take all starts of a boundary, if there is one."""
    return len(t.starts) == 0 or t.numbers[STARTED] + w.rounds * len(t.partitions) <= len(t.starts)


@compiled
def give_server(w: World, t: Tables, p: int, s: int, sign: int) -> None:
    """A server on which nothing runs is back (`sign` 1) or goes out (-1)."""
    k = t.free.shape[1] // w.site.servers.shape[1]
    for a in range(s * k, (s + 1) * k):
        t.free[p, a] += sign * w.site.groups[p, a].gpus
        t.partitions[p].free_gpus += sign * w.site.groups[p, a].gpus
    t.partitions[p].settled = 0
    recount(t, p)


@compiled
def recount(t: Tables, p: int) -> None:
    """What was counted of the free GPUs of a partition is no longer right."""
    for wide in range(t.fits.shape[1]):
        t.fits[p, wide] = t.most[p, wide, 0] = -1


@compiled
def end_until(w: World, t: Tables, p: int, now_s: float) -> None:
    """End the jobs of a partition that are done, or as good as done, by now."""
    partition = t.partitions[p]
    for i in range(partition.running - 1, -1, -1):
        run = t.running[p, i]
        if run.early_s > now_s:
            continue
        t.records[run.job].finish_s = now_s
        note_finished(w, t, run.job)
        leave(w, t, p, i)
        t.numbers[FINISHED] += 1


@compiled
def leave(w: World, t: Tables, p: int, i: int) -> None:
    """A running job gives back what it holds; the last one of the partition takes its place in the table."""
    partition, run = t.partitions[p], t.running[p, i]
    slot = run.slot
    _hold(w, t, p, slot, run.job, -1)
    partition.running -= 1
    last = t.running[p, partition.running]
    run.finish_s, run.early_s, run.slowdown = last.finish_s, last.early_s, last.slowdown
    run.job, run.slot, run.resume_s, last.slot = last.job, last.slot, last.resume_s, slot


@compiled
def _hold(w: World, t: Tables, p: int, slot: int, j: int, sign: int) -> None:
    """Take (`sign` 1) or give back (-1) what a job holds and uses."""
    job, partition = w.jobs[j], t.partitions[p]
    others = 1 if sign > 0 else 0  # users but for this job, if there are more than so many
    for i in range(t.slots[p, slot].groups):
        group = t.groups[p, slot, i]
        if job.size > 0:
            t.free[p, group.group] -= sign * group.workers * job.wide
        if w.asks:
            reserve(w, t.spare[p], group.group, j, sign * group.workers)
        on, row = t.on_group[p, group.group], p * t.free.shape[1] + group.group
        _flip(t, row, slot)
        on.users += sign
        on.cpu = on.cpu + sign * group.cpu if on.users > 0 else 0.0
        on.pcie = on.pcie + sign * group.pcie if on.users > 0 else 0.0
        if on.users > others:
            _mark_inside(t, p, row)
    for i in range(t.slots[p, slot].wires):
        wire = t.wires[p, slot, i]
        on = t.on_wire[wire.wire]
        on.users += sign
        _flip(t, wire.row, slot)
        on.use = on.use + sign * wire.use if on.users > 0 else 0.0
        if on.users > others and wire.channel != LINK:
            _mark_inside(t, p, wire.row)
        elif on.users > others:
            link = wire.wire - 2 * w.site.servers.size
            for place in range(w.site.reach_first[link], w.site.reach_first[link + 1]):
                if mark_affected(t, w.site.reach[place], w.site.reach_row[place]):
                    t.partitions[w.site.reach[place]].stale = 1
    partition.stale, partition.settled = 1, 0
    if job.size < 0:
        share_gpu(t, p, slot, -job.size, sign)
    else:
        partition.free_gpus -= sign * job.workers * job.wide
    t.tenants[job.tenant].gpus += sign * job.workers * job.wide * job.share
    recount(t, p)


@compiled
def reserve(w: World, spare: Int64[np.ndarray, "N 2"], a: int, j: int, workers: int) -> None:
    """Take from the server of a group what so many workers of a job reserve."""
    s = a // (w.site.groups.shape[1] // w.site.servers.shape[1])
    spare[s, 0] -= workers * w.jobs[j].cpu
    spare[s, 1] -= workers * w.jobs[j].memory


@inlined
def _flip(t: Tables, row: int, slot: int) -> None:
    """A footprint begins or ends to use what `Tables.users` has in that row."""
    t.users[row, slot // BITS] ^= 1 << (slot % BITS)


@compiled
def mark_affected(t: Tables, p: int, row: int) -> bool:
    """Those who use what `Tables.users` has in that row are affected; whether there are some."""
    some = False
    for word in range(t.numbers[PEAK_RUNNING] // BITS + 1):
        if t.users[row, word] != 0:
            t.affected[p, word] |= t.users[row, word]
            some = True
    return some


@compiled
def _mark_inside(t: Tables, p: int, row: int) -> None:
    """`mark_affected`, by what is no link."""
    if mark_affected(t, p, row):
        for word in range(t.numbers[PEAK_RUNNING] // BITS + 1):
            t.inside[p, word] |= t.users[row, word]


@compiled
def mark_none(t: Tables, p: int) -> None:
    """Nobody in a partition is affected any more."""
    for word in range(t.numbers[PEAK_RUNNING] // BITS + 1):
        t.affected[p, word] = t.inside[p, word] = 0


@inlined
def is_affected(t: Tables, p: int, slot: int) -> bool:
    """Whether the totals of something that a job uses are others than at the last `refresh`."""
    return _has_bit(t.affected[p], slot)


@inlined
def _has_bit(bits: Int64[np.ndarray, "B"], slot: int) -> bool:
    """Whether a slot is among those."""
    return (bits[slot // BITS] >> (slot % BITS)) & 1 != 0


@compiled
def refresh(w: World, t: Tables) -> None:
    """Slowdowns and ends of all jobs as of now, and the earliest end of every partition."""
    now_s = t.now_s[0]
    for p in range(len(t.partitions)):
        partition = t.partitions[p]
        if partition.stale == 0:
            continue
        next_finish_s, next_early_s = np.inf, np.inf
        for i in range(partition.running):
            run = t.running[p, i]
            if run.slowdown == 0.0 or is_affected(t, p, run.slot):
                near = run.slowdown == 0.0 or _has_bit(t.inside[p], run.slot)
                rate = renew_slowdown(w, t, p, run.slot, run.job, near)
                if rate != run.slowdown:
                    partition.settled = 0
                    work_from_s = max(now_s, run.resume_s)
                    left_s = run.finish_s if run.slowdown == 0.0 else (run.finish_s - work_from_s) / run.slowdown
                    run.slowdown, run.finish_s = rate, work_from_s + left_s * rate
                    run.early_s = run.finish_s - WORK_TOLERANCE * w.jobs[run.job].duration_s * rate
            next_finish_s, next_early_s = min(next_finish_s, run.finish_s), min(next_early_s, run.early_s)
        partition.next_finish_s, partition.next_early_s, partition.stale = next_finish_s, next_early_s, 0
        mark_none(t, p)
