"""Placement rules (docs/semantics.md, section 7): where the gang of a job that fits goes.

Each writes groups and their workers into the first places of `Scratch.place`, in any order, and returns how many.
"""

from jaxsched.event_loop._kernel.jit import compiled, inlined
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import count_capacity, count_fitting
from jaxsched.event_loop._kernel.speed import quantise
from jaxsched.event_loop.coverage import POLICIES

FIRST_FIT, PACK, LOAD_BALANCE, TETRIS, LEAST_INTERFERENCE, CONTENTION_AWARE, GREEDY_WAIT, MATCH = range(len(POLICIES))
BY_ROOM, BY_USE, NEAR, ROW = range(4)  # ways to fill servers, see `_find_server_key`
NEVER = 2**62
MANY = 2**31  # more workers than any server holds


@inlined
def place(w: World, t: Tables, p: int, j: int) -> int:
    """By the rule of the run; those that look are in `looking`. The gang must fit: else some rules never end."""
    workers, size = w.jobs[j].workers, w.jobs[j].size
    if w.rule.kind == FIRST_FIT:
        return fill(t, p, 0, t.free.shape[1], workers, size, 0)
    if w.rule.kind == LEAST_INTERFERENCE:
        return _place_by_pressure(w, t, p, workers, size)
    if w.rule.kind == LOAD_BALANCE or w.rule.kind == TETRIS:
        return _place_one_by_one(w, t, p, j)
    return _place_in_container(w, t, p, workers, size)


@compiled
def fill(t: Tables, p: int, first: int, last: int, need: int, size: int, used: int, most: int = MANY) -> int:
    """Groups from `first` up to `last` take what fits, up to `most`, as long as some are needed.

    How many groups are used then; `used` were before.
    """
    for a in range(first, last):
        if need == 0:
            break
        fits = count_capacity(t, p, a, size)
        if fits > 0:
            workers = min(fits, need, most)
            t.scratch.place[used].group, t.scratch.place[used].workers = a, workers
            used, need = used + 1, need - workers
    return used


@compiled
def _place_by_pressure(w: World, t: Tables, p: int, need: int, size: int) -> int:
    """`least-interference`: groups in order of the use of what a worker there would share."""
    used = 0
    t.scratch.taken[:] = 0
    while need > 0:
        best, least = -1, NEVER
        for a in range(t.free.shape[1]):
            if t.scratch.taken[a] == 0 and count_capacity(t, p, a, size) > 0:
                key = quantise(_measure_group_pressure(w, t, p, a))
                if key < least:
                    best, least = a, key
        used = fill(t, p, best, best + 1, need, size, used)
        t.scratch.taken[best] = t.scratch.place[used - 1].workers
        need -= t.scratch.taken[best]
    return used


@compiled
def _measure_wires_pressure(w: World, t: Tables, p: int, s: int) -> float:
    """Use of QPI and NIC of a server."""
    qpi = p * 2 * w.site.servers.shape[1] + s
    return t.on_wire[qpi].use + t.on_wire[qpi + w.site.servers.shape[1]].use


@compiled
def _measure_group_pressure(w: World, t: Tables, p: int, a: int) -> float:
    """Use of CPU and PCIe of a group and of QPI and NIC of its server."""
    s = a // (w.site.groups.shape[1] // w.site.servers.shape[1])
    return t.on_group[p, a].cpu + t.on_group[p, a].pcie + _measure_wires_pressure(w, t, p, s)


@compiled
def measure_server_pressure(w: World, t: Tables, p: int, s: int) -> float:
    """Use of QPI and NIC of a server and of CPU and PCIe of all its groups."""
    k = w.site.groups.shape[1] // w.site.servers.shape[1]
    groups = 0.0
    for a in range(s * k, (s + 1) * k):
        groups += t.on_group[p, a].cpu + t.on_group[p, a].pcie
    return _measure_wires_pressure(w, t, p, s) + groups


@compiled
def _place_in_container(w: World, t: Tables, p: int, workers: int, size: int) -> int:
    """`pack` and `contention-aware`: the smallest container that holds the gang, filled server by server."""
    servers, all_free, pack = w.site.servers.shape[1], t.free[p], w.rule.kind == PACK
    groups = len(all_free)
    k = groups // servers
    nic, need = p * 2 * servers + servers, workers * max(size, 1)
    racks = len(t.scratch.racks) if need <= w.site.largest[p, 1] else 0  # where one may hold the gang

    best, least = -1, NEVER
    for a in range(groups if need <= w.site.largest[p, 0] else 0):
        if count_capacity(t, p, a, size) >= workers:
            key = t.free[p, a] if pack else quantise(_measure_group_pressure(w, t, p, a))
            if key < least:
                best, least = a, key
    if best >= 0:
        return fill(t, p, best, best + 1, workers, size, 0)

    for r in range(racks):
        t.scratch.racks[r].workers = t.scratch.racks[r].ps = 0.0
    for s in range(servers):
        free, fits = 0, 0
        for a in range(s * k, (s + 1) * k):
            free += all_free[a]
            fits += count_fitting(all_free[a], size) if size > 0 else count_capacity(t, p, a, size)
        t.scratch.fits_server[s] = fits
        share = float(free) if pack else t.on_wire[nic + s].use
        if racks > 0 and (share != 0.0 or fits > 0):
            rack = t.scratch.racks[w.site.servers[p, s].rack]
            rack.workers += fits
            rack.ps += share
        if fits >= workers:
            key = free if pack else quantise(measure_server_pressure(w, t, p, s))
            if key < least:
                best, least = s, key
    if best >= 0:
        return fill(t, p, best * k, (best + 1) * k, workers, size, 0)

    for r in range(racks):
        if t.scratch.racks[r].workers >= workers:
            key = int(t.scratch.racks[r].ps) if pack else quantise(t.scratch.racks[r].ps)
            if key < least:
                best, least = r, key
    return fill_servers(w, t, p, best, workers, size, BY_ROOM if pack else BY_USE)


@compiled
def fill_servers(
    w: World, t: Tables, p: int, near: int, workers: int, size: int, way: int, used: int = 0, most: int = MANY
) -> int:
    """Fill servers in the order of their keys, in a turn all of the least key left; how many groups are used then.

    `Scratch.fits_server` says what they hold; their groups take up to `most`.
    """
    servers, roomy, count, key = w.site.servers.shape[1], t.scratch.roomy, 0, NEVER
    k = t.free.shape[1] // servers
    for s in range(servers):
        own = _find_server_key(w, t, p, s, near, way)
        if own < NEVER:
            roomy[count].server, roomy[count].key = s, own
            count, key = count + 1, min(key, own)
    while workers > 0:
        left, following = 0, NEVER
        for i in range(count):
            s: int = roomy[i].server
            own: int = roomy[i].key
            if own > key:
                roomy[left].server, roomy[left].key = s, own
                left, following = left + 1, min(following, own)
            elif workers > 0:
                used = fill(t, p, s * k, (s + 1) * k, workers, size, used, most)
                workers -= min(t.scratch.fits_server[s], workers)
        count, key = left, following
    return used


@inlined
def _find_server_key(w: World, t: Tables, p: int, s: int, near: int, way: int) -> int:
    """Of a server with room in the rack `near`, or in any (-1): NEAR also takes others, after those.

    ROW takes all servers in order of index, from the server `near` on, round to the one before it.
    """
    fits, here = t.scratch.fits_server[s], near < 0 or w.site.servers[p, s].rack == near
    if way == ROW and fits > 0:
        return s - near if s >= near else w.site.servers.shape[1] + s - near
    if fits == 0 or not (here or way == NEAR):
        return NEVER
    if way == BY_USE:
        return quantise(t.on_wire[(2 * p + 1) * w.site.servers.shape[1] + s].use)
    return -fits if here else MANY - fits


@compiled
def _place_one_by_one(w: World, t: Tables, p: int, j: int) -> int:
    """`load-balance` and `tetris`: each worker in turn where its key is lowest, keys updated after each."""
    wide, size, groups = w.jobs[j].wide, w.jobs[j].size, t.free.shape[1]
    t.scratch.taken[:] = 0
    for _ in range(w.jobs[j].workers):
        best, least = -1, NEVER
        for a in range(groups):
            free = t.free[p, a] - t.scratch.taken[a] * wide
            if free >= wide or (size < 0 and count_capacity(t, p, a, size) > 0):
                if w.rule.kind == TETRIS:
                    key = -quantise(_score_alignment(w, t, p, a, j, free))
                else:
                    key = quantise(_measure_used_share(w, t, p, a, wide)) * 1024 - free
                if key < least:
                    best, least = a, key
        t.scratch.taken[best] += 1
    used = 0
    for a in range(groups):
        if t.scratch.taken[a] > 0:
            t.scratch.place[used].group, t.scratch.place[used].workers = a, t.scratch.taken[a]
            used += 1
    return used


@compiled
def _measure_used_share(w: World, t: Tables, p: int, a: int, wide: int) -> float:
    """Share of the GPUs of a group's server that are not free, `Scratch.taken` counted as used."""
    k = w.site.groups.shape[1] // w.site.servers.shape[1]
    gpus, free = 0, 0
    for b in range(a // k * k, a // k * k + k):
        gpus += w.site.groups[p, b].gpus
        free += t.free[p, b] - t.scratch.taken[b] * wide
    return (gpus - free) / gpus


@compiled
def _score_alignment(w: World, t: Tables, p: int, a: int, j: int, free: int) -> float:
    """What one worker of a job demands times what is free, of GPUs, CPU, PCIe and NIC."""
    servers, job, site, on = w.site.servers.shape[1], w.jobs[j], w.site.groups[p, a], t.on_group[p, a]
    model, s = w.models[job.model], a // (w.site.groups.shape[1] // w.site.servers.shape[1])
    ranks = job.workers * job.wide
    sent = model.gradient_bytes if job.ps > 0 else 2.0 * (ranks - 1) / ranks * model.gradient_bytes
    score = job.wide * job.share / site.gpus * (free / site.gpus)
    score += job.wide * model.cpu_cores / site.cores * _clip_left(on.cpu)
    score += job.wide * model.input_bytes / (site.pcie_bytes_s * model.compute_s) * _clip_left(on.pcie)
    nic = min(1.0, sent / (w.site.servers[p, s].nic_bytes_s * model.compute_s))
    return score + nic * _clip_left(t.on_wire[p * 2 * servers + servers + s].use)


@compiled
def _clip_left(use: float) -> float:
    """What is left of a capacity."""
    return min(max(1.0 - use, 0.0), 1.0)
