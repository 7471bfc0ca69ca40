"""The footprint of a placement and the slowdown of a running job (docs/semantics.md, sections 3 to 5)."""

import numpy as np
from jaxtyping import Float64

from jaxsched.dynamics.resources import CPU, LINK, NIC, PCIE, QPI
from jaxsched.event_loop._kernel.jit import compiled, special
from jaxsched.event_loop._kernel.plans import (
    count_bytes_inside,
    count_bytes_near,
    count_bytes_out,
    find_end,
    is_planned,
    line_up,
    list_domains,
    send,
    send_by_plan,
    sums_first,
    write_shares,
)
from jaxsched.event_loop._kernel.records import Tables, World
from jaxsched.event_loop._kernel.shared_gpus import compute_gpu_stretch
from jaxsched.semantics import GRID, GRID_LIMIT, GRID_OFFSET


@compiled
def write_footprint(w: World, t: Tables, p: int, slot: int, j: int, used: int) -> None:
    """Write what job `j` asks of a partition into a slot; it lies on the first `used` groups of `Scratch.place`."""
    servers = w.site.servers.shape[1]
    k = w.site.groups.shape[1] // servers
    job = w.jobs[j]
    model = w.models[job.model]
    ranks = job.workers * job.wide
    planned = is_planned(w, job.model)
    ring = 0.0 if planned else 2.0 * (ranks - 1) / ranks * model.gradient_bytes
    shard = model.gradient_bytes / job.ps if job.ps > 0 else 0.0
    spread = t.scratch.place[0].group // k != t.scratch.place[used - 1].group // k
    if spread:
        for rack in range(len(t.scratch.racks)):
            t.scratch.racks[rack].workers = t.scratch.racks[rack].ps = 0.0
            t.scratch.racks[rack].servers = 0

    wires, compute, slowest = 0, 0.0, 0.0
    tasks, ps_before = 0, 0
    for i in range(used):
        a, workers = t.scratch.place[i].group, t.scratch.place[i].workers
        site, group = w.site.groups[p, a], t.groups[p, slot, i]
        tasks += workers
        ps = tasks * job.ps // job.workers - ps_before
        ps_before += ps
        group.group, group.workers = a, workers
        group.cpu = (workers * job.wide * model.cpu_cores + ps * model.ps_cores) / site.cores
        group.compute = model.compute_s / w.speed[job.model, p, a]
        slowest = max(slowest, group.compute)
        group.base = (workers * model.gradient_bytes if job.ps > 0 else ring) / site.pcie_bytes_s
        group.pcie = group.base + workers * job.wide * model.input_bytes / site.pcie_bytes_s  # over `solo` below
        compute = max(compute, group.compute * (1.0 + model.sens_cpu * (max(1.0, group.cpu) - 1.0)))
        if spread:
            rack = t.scratch.racks[w.site.servers[p, a // k].rack]
            rack.workers += workers
            rack.ps += ps
            rack.servers += 1 if i == 0 or t.scratch.place[i - 1].group // k != a // k else 0
    if planned:
        wires = _add_planned(w, t, p, slot, wires, j, used)
    else:
        wires = _add_unplanned(w, t, p, slot, j, used, ring, shard)
    t.slots[p, slot].near = wires
    if spread:
        wires = _add_links(w, t, p, slot, wires, j, used, ring, shard)

    solo = max(compute + _find_comm(t, p, slot, used, wires), 1e-9)
    for i in range(used):
        t.groups[p, slot, i].pcie /= solo
    for i in range(wires):
        t.wires[p, slot, i].use = t.wires[p, slot, i].base / solo
    t.slots[p, slot].groups, t.slots[p, slot].wires = used, wires
    t.slots[p, slot].job, t.slots[p, slot].gpu = j, -1
    alike = slowest == model.compute_s
    t.slots[p, slot].least = 1.0 if alike else (slowest + job.ideal_comm_s) / max(job.ideal_s, 1e-9)


@compiled
def _find_comm(t: Tables, p: int, slot: int, used: int, wires: int) -> float:
    """Seconds of communication without others."""
    comm = 0.0
    for i in range(used):
        comm = max(comm, t.groups[p, slot, i].base)
    for i in range(wires):
        comm = max(comm, t.wires[p, slot, i].base)
    return comm


@compiled
def _add(t: Tables, p: int, slot: int, wires: int, m: int, row: int, channel: int, base: float) -> int:
    """Add a wire to a footprint that has so many, if something is sent over it; how many there are then."""
    if base <= 0.0:
        return wires
    wire = t.wires[p, slot, wires]
    wire.wire, wire.row, wire.channel, wire.base = m, row, channel, base
    return wires + 1


@compiled
def _add_of_server(w: World, t: Tables, p: int, slot: int, wires: int, s: int, channel: int, base: float) -> int:
    """`_add` QPI or NIC of a server."""
    servers = w.site.servers.shape[1]
    m = p * 2 * servers + s + (servers if channel == NIC else 0)
    return _add(t, p, slot, wires, m, w.site.groups.size + m, channel, base)


@compiled
def _add_unplanned(w: World, t: Tables, p: int, slot: int, j: int, used: int, ring: float, shard: float) -> int:
    """Write what a job without a plan sends over QPI and NICs, or NVLink of its servers; how many wires there are."""
    servers, job, wires, tasks, ps_before = w.site.servers.shape[1], w.jobs[j], 0, 0, 0
    k = w.site.groups.shape[1] // servers
    first, here, ps_here, together = 0, 0, 0, 0  # of the server at hand: its first group and its tasks
    for i in range(used):
        workers, s = t.scratch.place[i].workers, t.scratch.place[i].group // k
        tasks += workers
        ps = tasks * job.ps // job.workers - ps_before
        ps_before += ps
        here, ps_here, together = here + workers, ps_here + ps, together + workers * ps
        if i + 1 < used and t.scratch.place[i + 1].group // k == s:
            continue
        site, near, ps_near, servers_near = w.site.servers[p, s], here, ps_here, 1  # of its domain
        if site.block > 0 and used > 1:  # so `racks` are filled: a server of a domain is one place
            rack = t.scratch.racks[site.rack]
            near, ps_near, servers_near = int(rack.workers), int(rack.ps), int(rack.servers)
        if job.ps > 0:
            qpi = (here * ps_here - together + here * (ps_near - ps_here) + ps_here * (near - here)) * shard
            nic = (here * (job.ps - ps_near) + ps_here * (job.workers - near)) * shard
        else:
            qpi = ring if i > first or servers_near > 1 else 0.0
            nic = ring / servers_near if near < job.workers else 0.0
        wires = _add_of_server(w, t, p, slot, wires, s, QPI, qpi / site.qpi_bytes_s)
        wires = _add_of_server(w, t, p, slot, wires, s, NIC, nic / site.nic_bytes_s)
        first, here, ps_here, together = i + 1, 0, 0, 0
    return wires


@special
@compiled
def _add_planned(w: World, t: Tables, p: int, slot: int, wires: int, j: int, used: int) -> int:
    """Add what ranks of a plan send over PCIe, QPI and NICs; how many wires there are then."""
    servers = w.site.servers.shape[1]
    k, m = w.site.groups.shape[1] // servers, w.jobs[j].model
    line_up(w, t, p, j, used)
    summed, shares = sums_first(w, m), t.scratch.shares
    if summed:
        write_shares(w, m, t.scratch.domains, list_domains(w, t, p, j, used), shares, used)
    last = used  # place of the server at hand
    for i in range(used - 1, -1, -1):
        group, s = t.groups[p, slot, i], t.scratch.place[i].group // k
        start, end = t.scratch.first[i], find_end(w, t, j, i)
        nic, pcie = count_bytes_out(w, m, start, end, start, end)
        pcie += shares[i].ring + shares[i].out if summed else 0.0
        group.base = pcie / w.site.groups[p, group.group].pcie_bytes_s
        group.pcie += group.base
        last = i if last == used else last
        if i > 0 and t.scratch.place[i - 1].group // k == s:
            continue
        qpi, end = count_bytes_inside(w, t, j, i, last), find_end(w, t, j, last)
        near, beyond, rack = start, end, t.scratch.racks[w.site.servers[p, s].rack]
        if w.site.servers[p, s].block > 0 and used > 1:  # so `racks` are filled: a server of a domain is one place
            near = int(rack.first)
            beyond = near + int(rack.workers) * w.jobs[j].wide
            qpi += count_bytes_near(w, m, start, end, near, beyond) + (shares[i].near if summed else 0.0)
        if last > i or near < start or beyond > end:  # the server, with its domain, is more than this group
            nic, _ = count_bytes_out(w, m, start, end, near, beyond)
        for place in range(i, last + 1 if summed else i):
            nic += shares[place].out
        wires = _add_of_server(w, t, p, slot, wires, s, QPI, qpi / w.site.servers[p, s].qpi_bytes_s)
        wires = _add_of_server(w, t, p, slot, wires, s, NIC, nic / w.site.servers[p, s].nic_bytes_s)
        last = used
    return wires


@compiled
def _add_links(w: World, t: Tables, p: int, slot: int, wires: int, j: int, used: int, ring: float, shard: float) -> int:
    """Add the links between the racks of a placement; how many wires there are then."""
    first, last = -1, -1
    for r in range(len(t.scratch.racks)):
        if t.scratch.racks[r].workers > 0.0:
            first, last = r if first < 0 else first, r
    if first == last:
        return wires
    before, crossed = last, 0
    planned = is_planned(w, w.jobs[j].model)
    if planned:
        crossed = send_by_plan(w, t, p, j, used)
    for r in range(first, first if planned else last + 1):
        if t.scratch.racks[r].workers == 0.0:
            continue
        if shard > 0.0:
            for q in range(first, last + 1):
                if q != r and t.scratch.racks[q].workers > 0.0:
                    pairs = (
                        t.scratch.racks[r].workers * t.scratch.racks[q].ps
                        + t.scratch.racks[r].ps * t.scratch.racks[q].workers
                    )
                    crossed = send(w, t, p, r, q, pairs * shard, crossed)
        else:
            crossed = send(w, t, p, before, r, ring, crossed)
            before = r
    for i in range(crossed):
        e = int(t.scratch.crossed[i])
        link = w.site.link_id[p, e]
        m, row = (
            2 * w.site.servers.size + link,
            w.site.groups.size + 2 * w.site.servers.size + p * len(t.scratch.sent) + e,
        )
        wires = _add(t, p, slot, wires, m, row, LINK, t.scratch.sent[e] / w.site.links[link])
        t.scratch.sent[e] = 0.0
    return wires


@compiled
def _compute_stretch(w: World, channel: int, own: float, total: float, users: int) -> float:
    """The stretch of section 5. Sums over changing jobs keep rounding errors: a lone user is known by `users`."""
    others = max(total - own, 0.0)
    if users == 1 or others == 0.0:
        return 1.0
    law = w.law[channel]
    if channel == CPU:
        full = max(own, 1.0)
        return 1.0 + law.kappa * (max(own + others, full) / full - 1.0)
    return 1.0 + law.kappa * (others if law.power == 1.0 else others**law.power)


@compiled
def compute_slowdown(
    w: World, t: Tables, p: int, slot: int, j: int, factors: Float64[np.ndarray, "models models"]
) -> float:
    """Step time over ideal step time, at least that slot's least, under the present totals; `factors` of pairs."""
    compute, comm = _measure_near(w, t, p, slot, j)
    return _add_far(w, t, p, slot, j, compute, comm, factors)


@compiled
def renew_slowdown(w: World, t: Tables, p: int, slot: int, j: int, near: bool) -> float:
    """As `compute_slowdown`, true; not `near`: nothing else has changed since the last time but what others send."""
    at = t.slots[p, slot]
    if near:
        at.compute_s, at.comm_s = _measure_near(w, t, p, slot, j)
    return _add_far(w, t, p, slot, j, at.compute_s, at.comm_s, w.sharing.factors)


@compiled
def _measure_near(w: World, t: Tables, p: int, slot: int, j: int) -> tuple[float, float]:
    """Seconds of computation, and of communication but for links, without those who share a GPU."""
    model = w.models[w.jobs[j].model]
    compute, comm = 0.0, 0.0
    for i in range(t.slots[p, slot].groups):
        group = t.groups[p, slot, i]
        on = t.on_group[p, group.group]
        pcie = _compute_stretch(w, PCIE, group.pcie, on.pcie, on.users)
        factor = 1.0 + model.sens_cpu * (
            max(1.0, group.cpu) * _compute_stretch(w, CPU, group.cpu, on.cpu, on.users) - 1.0
        )
        compute = max(compute, group.compute * (factor + model.sens_pcie * (pcie - 1.0)))
        comm = max(comm, group.base * pcie)
    return compute, _find_stretched_comm(w, t, p, slot, 0, t.slots[p, slot].near, comm)


@compiled
def _find_stretched_comm(w: World, t: Tables, p: int, slot: int, first: int, last: int, comm: float) -> float:
    """Seconds of communication over wires `first .. last - 1` of a footprint, at least `comm`."""
    for i in range(first, last):
        wire = t.wires[p, slot, i]
        on = t.on_wire[wire.wire]
        comm = max(comm, wire.base * _compute_stretch(w, wire.channel, wire.use, on.use, on.users))
    return comm


@compiled
def _add_far(
    w: World,
    t: Tables,
    p: int,
    slot: int,
    j: int,
    compute: float,
    comm: float,
    factors: Float64[np.ndarray, "models models"],
) -> float:
    """`compute_slowdown` from what `_measure_near` found."""
    comm = _find_stretched_comm(w, t, p, slot, t.slots[p, slot].near, t.slots[p, slot].wires, comm)
    if t.slots[p, slot].gpu >= 0:
        compute *= compute_gpu_stretch(w, t, p, slot, factors)
    return max((compute + comm) / max(w.jobs[j].ideal_s, 1e-9), t.slots[p, slot].least)


@compiled
def quantise(x: float) -> int:
    """`x` on the grid on which scores are compared, see `semantics`."""
    return int(min(max(np.floor(GRID * x + GRID_OFFSET), 0.0), GRID_LIMIT))
