"""Families of data-center networks beyond trees, and the names of all: from a number of servers to a `Topology`.

- VL2: Greenberg et al., "VL2: A Scalable and Flexible Data Center Network", SIGCOMM 2009, section 4.1.
- BCube: Guo et al., "BCube: A High Performance, Server-centric Network Architecture for Modular Data Centers", SIGCOMM
  2009.
- Dragonfly: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
- Tori: Dally, Towles, "Principles and Practices of Interconnection Networks", 2004: chapter 5 (k-ary n-cubes), section
  8.4.2 (dimension-order routing in tori).
- NVL72, racks whose servers NVLink joins (docs/semantics.md, section 1): NVIDIA's GB200 NVL72 is a rack of 18 compute
  trays of 4 GPUs. Each GPU has 1.8 TB/s of NVLink both ways together, and a NIC of 400 Gbit/s (NVIDIA, GB200 NVL72 and
  DGX GB200 data sheets). An HGX server of 8 GPUs, NVL8, is a domain of its own: a server of one GPU group, whose
  `pcie_gbytes_s` is that of NVLink.
- Rails: NVIDIA DGX SuperPOD reference architecture (H100, RA-11333): scalable units in which leaf switch r serves NIC r
  of every server, under a common layer of spines.
"""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.servers import MAX_SERVERS, Server
from jaxsched.cluster.topology import (
    NIC_GBITS_S,
    Hop,
    Topology,
    bytes_s,
    count,
    fat_tree,
    from_cables,
    leaf_spine,
    numbered,
    port_bytes_s,
    ratio,
)
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.io.schema import check_whole


def vl2(
    num_servers: int,
    servers_per_rack: int = 8,
    aggregation_ports: int | None = None,
    intermediate_ports: int | None = None,
    nic_gbits_s: float = NIC_GBITS_S,
    oversubscription: float = 1.0,
) -> Topology:
    """A D_A, D_I network: D_A/2 intermediate switches, D_I aggregation switches, D_A D_I/4 racks (D_A, D_I even).

    Every rack has an uplink to each of two aggregation switches, every aggregation switch one to each intermediate
    switch; all are alike, `servers_per_rack * nic / 2 / oversubscription` (20 servers of 1 Gbit/s under two links of 10
    in the paper). Without ports it is the smallest D_A = D_I that holds the servers; trailing racks are left out, and
    aggregation switches without racks with them. Racks of 8 servers are an assumption.

    Routing is valiant load balancing: half of the traffic between two racks climbs to each aggregation switch, spreads
    evenly over all intermediate switches, and comes down by the target's two, also where a shorter way exists.
    """
    num_servers, per_rack = count(num_servers, "num_servers"), count(servers_per_rack, "servers_per_rack")
    rack = np.arange(num_servers) // per_rack
    racks = int(rack[-1]) + 1
    smallest = 2
    while smallest**2 < 4 * racks:
        smallest += 2
    d_a = _even(smallest if aggregation_ports is None else aggregation_ports, "aggregation_ports")
    d_i = _even(smallest if intermediate_ports is None else intermediate_ports, "intermediate_ports")
    if 4 * racks > d_a * d_i:
        raise UserError(
            f"topology: {d_a} aggregation and {d_i} intermediate ports hold {d_a * d_i // 4} racks, not {racks}; the "
            f"product of the ports must be {4 * racks} or more"
        )
    middles, pairs = d_a // 2, -(-racks // (d_a // 2))
    link = per_rack * bytes_s(nic_gbits_s, "nic_gbits_s") / 2 / ratio(oversubscription, "oversubscription")
    first_middle = racks + 2 * pairs

    def above(t: int) -> tuple[int, int]:
        pair = racks + 2 * (t // middles)
        return pair, pair + 1

    cables = {(t, node): link for t in range(racks) for node in above(t)}
    cables |= {(racks + a, first_middle + m): link for a in range(2 * pairs) for m in range(middles)}

    def hops(t: int, u: int) -> dict[Hop, float]:
        shares: dict[Hop, float] = {}
        for up, down in zip(above(t), above(u), strict=True):
            shares[t, up] = shares[down, u] = 1 / 2
            for middle in range(first_middle, first_middle + middles):
                shares[up, middle] = shares[middle, down] = 1 / 2 / middles
        return shares

    switches = (*numbered("aggregation", 2 * pairs), *numbered("intermediate", middles))
    return from_cables(rack, numbered("rack", racks), switches, cables, hops)


def _even(ports: int, field: str) -> int:
    if count(ports, field, 2) % 2:
        raise UserError(f"topology: {field} is {ports}; it must be even")
    return ports


def bcube(
    num_servers: int, levels: int | None = None, nic_gbits_s: float = NIC_GBITS_S, link_gbits_s: float | None = None
) -> Topology:
    """BCube_k of n-port switches: n^(k+1) servers, k+1 = `levels` ports each, (k+1) n^k switches.

    A server's address is a number of k+1 digits in base n; the level-i switches join the servers that differ in digit i
    only. By default the fewest levels, at least 2, for which `num_servers` is a power. Every server is its own rack. A
    port carries `link_gbits_s`, by default the NIC's bandwidth over the number of ports, so that networks are compared
    at equal NIC bandwidth per server.

    Routing: all shortest paths alike, one per order of correcting the digits that differ. The paper's longer parallel
    paths are left out. Forwarding takes ports' bandwidth, not the forwarding server's CPU (not modelled).
    """
    num_servers = count(num_servers, "num_servers")
    sizes = _bcube_sizes(None if levels is None else count(levels, "levels"))
    if num_servers not in sizes:
        near = sorted(sizes, key=lambda size: (abs(size - num_servers), size))[:2]
        power = "a power n^levels, levels >= 2" if levels is None else f"n^{levels}"
        raise UserError(
            f"topology: a bcube has {power} servers with n >= 2, not {num_servers}; the nearest sizes are "
            f"{' and '.join(map(str, sorted(near)))}"
        )
    ports, depth = sizes[num_servers]
    port = port_bytes_s(link_gbits_s, nic_gbits_s, depth)
    per_level = num_servers // ports
    weight = [ports**level for level in range(depth)]

    def switch(server: int, level: int) -> int:
        rest = server // (weight[level] * ports) * weight[level] + server % weight[level]
        return num_servers + level * per_level + rest

    def hops(t: int, u: int) -> dict[Hop, float]:
        change = {level: (u // base % ports - t // base % ports) * base for level, base in enumerate(weight)}
        differ = [level for level in change if change[level]]
        shares: dict[Hop, float] = {}
        for done in range(len(differ)):
            share = 1 / math.comb(len(differ), done) / (len(differ) - done)
            for corrected in itertools.combinations(differ, done):
                here = t + sum(change[level] for level in corrected)
                for level in set(differ) - set(corrected):
                    middle = switch(here, level)
                    shares[here, middle] = shares[middle, here + change[level]] = share
        return shares

    cables = {(server, switch(server, level)): port for level in range(depth) for server in range(num_servers)}
    switches = [f"level{level}.{index}" for level in range(depth) for index in range(per_level)]
    places = [((server + 0.5) / num_servers, 0.0) for server in range(num_servers)]
    places += [((index + 0.5) / per_level, level + 1.0) for level in range(depth) for index in range(per_level)]
    servers = numbered("server", num_servers)
    return from_cables(np.arange(num_servers), servers, switches, cables, hops, np.array(places))


def _bcube_sizes(levels: int | None) -> dict[int, tuple[int, int]]:
    """{servers: (switch ports n, levels)} of all networks that there are; with the fewest levels of each size."""
    found: dict[int, tuple[int, int]] = {}
    for depth in range(2, MAX_SERVERS.bit_length()) if levels is None else (levels,):
        for ports in itertools.takewhile(lambda n, depth=depth: n**depth <= MAX_SERVERS, itertools.count(2)):
            found.setdefault(ports**depth, (ports, depth))
    return found


def dragonfly(
    num_servers: int,
    servers_per_router: int | None = None,
    routers_per_group: int | None = None,
    global_ports: int | None = None,
    nic_gbits_s: float = NIC_GBITS_S,
    link_gbits_s: float | None = None,
) -> Topology:
    """p servers a router (a rack), a routers a group, h global ports a router, at most a h + 1 groups.

    Balanced by default as in the paper, a = 2p = 2h, with the smallest p whose a p (a h + 1) holds the servers. Groups
    are whole (routers of the last may have no server). With g groups every two of them are joined by floor(a h/(g - 1))
    global cables, dealt to routers in turn; ports left over stay unused. Every cable carries `link_gbits_s`, by default
    a NIC's bandwidth as in the paper.

    Routing is the paper's minimal one: by the router's own cables to the target's group, else evenly over all cables
    between the two groups, with at most one hop inside either group.
    """
    num_servers = count(num_servers, "num_servers")
    p = 1
    while 2 * p * p * (2 * p * p + 1) < num_servers:
        p += 1
    p = p if servers_per_router is None else count(servers_per_router, "servers_per_router")
    a = 2 * p if routers_per_group is None else count(routers_per_group, "routers_per_group")
    h = p if global_ports is None else count(global_ports, "global_ports")
    groups = -(-num_servers // (a * p))
    if groups > a * h + 1:
        raise UserError(
            f"topology: {num_servers} servers fill {groups} groups, but {a} routers of {h} global ports join only "
            f"{a * h + 1}; give num_servers up to {a * p * (a * h + 1)} or more ports"
        )
    link = bytes_s(nic_gbits_s, "nic_gbits_s")
    link = link if link_gbits_s is None else bytes_s(link_gbits_s, "link_gbits_s")
    between = _global_cables(groups, a, h)
    cables = {(i * a + x, i * a + y): link for i in range(groups) for x in range(a) for y in range(x + 1, a)}
    joined = Counter(cable for (i, j), own in between.items() if i < j for cable in own)
    cables |= {cable: number * link for cable, number in joined.items()}

    def hops(t: int, u: int) -> dict[Hop, float]:
        if t // a == u // a:
            return {(t, u): 1.0}
        all_of_them = between[t // a, u // a]
        chosen = [cable for cable in all_of_them if cable[0] == t] or all_of_them
        shares: dict[Hop, float] = defaultdict(float)
        for out, into in chosen:
            for hop in ((t, out), (out, into), (into, u)):
                if hop[0] != hop[1]:
                    shares[hop] += 1 / len(chosen)
        return shares

    names = [f"group{i}/router{x}" for i in range(groups) for x in range(a)]
    # On a circle, with gaps between the groups.
    turn = 2 * np.pi * (np.repeat(np.arange(groups), a) + np.tile(np.arange(a), groups) * 0.75 / a) / groups
    rack = np.arange(num_servers) // p
    return from_cables(rack, names, (), cables, hops, np.stack([np.sin(turn), np.cos(turn)], -1))


def _global_cables(groups: int, a: int, h: int) -> dict[tuple[int, int], list[Hop]]:
    """{(group i, group j): cables as (router of i, router of j)}, for i != j."""
    ways = a * h // max(groups - 1, 1)
    found: dict[tuple[int, int], list[Hop]] = {}
    for i in range(groups):
        for j in range(i + 1, groups):
            there, back = j - i - 1, (i - j - 1) % groups  # how far along the circle: which ports
            for way in range(ways):
                here, other = i * a + (there * ways + way) // h, j * a + (back * ways + way) // h
                found.setdefault((i, j), []).append((here, other))
                found.setdefault((j, i), []).append((other, here))
    return found


LONGEST_OVER_SHORTEST = 2  # of the sides that are chosen by themselves
BEND = 0.3  # of a row in a drawing, in distances between neighbours


def torus2d(
    num_servers: int,
    sides: Sequence[int] | None = None,
    nic_gbits_s: float = NIC_GBITS_S,
    link_gbits_s: float | None = None,
) -> Topology:
    """A two-dimensional torus; see `torus`."""
    return torus(num_servers, 2, sides, nic_gbits_s, link_gbits_s)


def torus3d(
    num_servers: int,
    sides: Sequence[int] | None = None,
    nic_gbits_s: float = NIC_GBITS_S,
    link_gbits_s: float | None = None,
) -> Topology:
    """A three-dimensional torus; see `torus`."""
    return torus(num_servers, 3, sides, nic_gbits_s, link_gbits_s)


def torus(
    num_servers: int, dimensions: int, sides: Sequence[int] | None, nic_gbits_s: float, link_gbits_s: float | None
) -> Topology:
    """Every server, its own rack, at a point of a grid that is closed to a ring in each dimension.

    By default the most even `sides` of at least 2, the longest first and at most twice the shortest. Two servers on a
    ring of two share one cable. A cable carries `link_gbits_s`, by default the NIC's bandwidth over the 2 ports per
    dimension, so that networks are compared at equal NIC bandwidth per server.

    Routing is dimension-ordered, first dimension first, the shorter way round; half each way where both are alike.
    Forwarding takes ports' bandwidth, not the forwarding server's CPU (not modelled).
    """
    num_servers = count(num_servers, "num_servers")
    size = _sides(num_servers, dimensions) if sides is None else _given_sides(sides, num_servers, dimensions)
    port = port_bytes_s(link_gbits_s, nic_gbits_s, 2 * dimensions)
    points = list(itertools.product(*map(range, size)))
    number = {point: index for index, point in enumerate(points)}

    def moved(point: tuple[int, ...], axis: int, to: int) -> tuple[int, ...]:
        return (*point[:axis], to % size[axis], *point[axis + 1 :])

    cables = {}
    for point, axis in itertools.product(points, range(dimensions)):
        neighbour = moved(point, axis, point[axis] + 1)
        if size[axis] > 2 or point[axis] == 0:
            cables[number[point], number[neighbour]] = port

    def hops(t: int, u: int) -> dict[Hop, float]:
        here, target = points[t], points[u]
        shares: dict[Hop, float] = {}
        for axis in range(dimensions):
            ahead = (target[axis] - here[axis]) % size[axis]
            back = size[axis] - ahead
            ways = [(1, ahead)] * (ahead <= back) + [(-1, back)] * (back <= ahead)
            if size[axis] == 2:
                ways = ways[:1]
            for step, length in ways:
                for done in range(length):
                    walk = [number[moved(here, axis, here[axis] + step * n)] for n in (done, done + 1)]
                    shares[walk[0], walk[1]] = 1 / len(ways)
            here = moved(here, axis, target[axis])
        return shares

    names = [f"server({','.join(map(str, point))})" for point in points]
    return from_cables(np.arange(num_servers), names, (), cables, hops, _torus_positions(np.array(points), size))


def _torus_positions(points: Int[np.ndarray, "nodes D"], size: Sequence[int]) -> Float[np.ndarray, "nodes 2"]:
    """A grid, three dimensions slanted; rows are bent so that the cables round the back show."""
    bend = BEND * np.sin(np.pi * points / (np.array(size) - 1))
    if len(size) == 2:
        return np.stack([points[:, 1] + bend[:, 0], bend[:, 1] - points[:, 0]], -1)
    across = points[:, 2] + points[:, 0] * (size[2] + 1.0) + bend[:, 1]
    return np.stack([across, 0.3 * points[:, 2] - points[:, 1] + bend[:, 0] + bend[:, 2]], -1)


def _given_sides(sides: Sequence[int], num_servers: int, dimensions: int) -> tuple[int, ...]:
    if not isinstance(sides, (list, tuple)) or len(sides) != dimensions:
        wanted = f"{dimensions} whole numbers, e.g. {[4] * dimensions}"
        raise UserError(f"topology: sides is {shorten(repr(sides))}; it must be {wanted}")
    size = tuple(count(side, "sides", 2) for side in sides)
    if math.prod(size) != num_servers:
        raise UserError(f"topology: sides {list(size)} hold {math.prod(size)} servers, not {num_servers}")
    return size


def _sides(num_servers: int, dimensions: int) -> tuple[int, ...]:
    """The most even sides, the longest first. `UserError` with the nearest numbers of servers that have some."""
    found = _even_sides(num_servers, dimensions)
    if found is None:
        smaller = (size for size in range(num_servers - 1, 0, -1) if _even_sides(size, dimensions))
        larger = (size for size in range(num_servers + 1, MAX_SERVERS + 1) if _even_sides(size, dimensions))
        near = [str(size) for sizes in (smaller, larger) for size in itertools.islice(sizes, 1)]
        raise UserError(
            f"topology: {num_servers} servers make no {dimensions}-D torus with sides from 2 of which the longest is "
            f"at most {LONGEST_OVER_SHORTEST} times the shortest; the nearest such: {', '.join(near)} (or give sides)"
        )
    return found


def _even_sides(num_servers: int, dimensions: int) -> tuple[int, ...] | None:
    """Sides of least sum; None if there are none within `LONGEST_OVER_SHORTEST`."""
    top = round((LONGEST_OVER_SHORTEST ** (dimensions - 1) * num_servers) ** (1 / dimensions)) + 1
    divisors = [side for side in range(2, top + 1) if num_servers % side == 0]
    grids = [
        (num_servers // math.prod(rest), *rest)
        for rest in itertools.combinations_with_replacement(divisors, dimensions - 1)
    ]
    fit = [
        tuple(sorted(grid, reverse=True))
        for grid in grids
        if math.prod(grid) == num_servers and min(grid) >= 2 and max(grid) <= LONGEST_OVER_SHORTEST * min(grid)
    ]
    return min(fit, key=sum) if fit else None


TRAYS, USED = 18, 16  # of a rack, and for one job: two stay spare, so that degrees may be powers of two
# 4 GPUs: 900 GB/s of NVLink each way, and a NIC of 400 Gbit/s each; two Grace CPUs of 72 cores.
TRAY = Server(
    groups=(4,), gpu_type="GB200", cores=144.0, pcie_gbytes_s=3600.0, nic_gbits_s=1600.0, nvlink_gbytes_s=3600.0
)
"""All that leaves a tray's GPUs crosses `pcie_gbytes_s`, so that NVLink binds there, or the NICs."""


def nvl72(
    num_servers: int,
    trays: int = TRAYS,
    used: int | None = None,
    domains: int | None = None,
    servers_per_unit: int = 8,
    rails: int = 4,
    nic_gbits_s: float = TRAY.nic_gbits_s,
    oversubscription: float = 1.0,
) -> Topology:
    """Racks of `trays` servers, each an NVLink domain, under rails; a gang takes at most `used` servers of one.

    The first `domains` racks are such (None: all); servers behind them stand in units of `servers_per_unit`, as those
    of `rail` do: NVL8 beside NVL72. Every rack has one bundle per rail, to that rail's own switch, of its servers' NICs
    over `rails` and `oversubscription`; traffic spreads evenly over the rails. By default `used` is 16 of 18 trays, of
    another number all. `UserError` on more domains than servers fill, or on more trays used than there are.
    """
    num_servers, trays, rails = count(num_servers, "num_servers"), count(trays, "trays"), count(rails, "rails")
    default = USED if trays == TRAYS else trays
    used = default if used is None else check_whole(used, "topology", "used", 1, trays)
    most = -(-num_servers // trays)
    domains = most if domains is None else check_whole(domains, "topology", "domains", 0, most)
    server = np.arange(num_servers)
    unit = np.maximum(server - domains * trays, 0) // count(servers_per_unit, "servers_per_unit")
    rack = np.where(server < domains * trays, server // trays, domains + unit)
    racks = int(rack[-1]) + 1
    size = np.where(np.arange(racks) < domains, trays, servers_per_unit)
    rail_bytes_s = bytes_s(nic_gbits_s, "nic_gbits_s") / rails / ratio(oversubscription, "oversubscription")
    cables = {(t, racks + r): size[t] * rail_bytes_s for t in range(racks) for r in range(rails)}

    def hops(t: int, u: int) -> dict[Hop, float]:
        return {hop: 1 / rails for r in range(racks, racks + rails) for hop in ((t, r), (r, u))}

    names = (*numbered("rack", domains), *numbered("unit", racks - domains))
    topology = from_cables(rack, names, numbered("rail", rails), cables, hops)
    return dataclasses.replace(topology, domain_block=np.where(np.arange(racks) < domains, used, 0))


def find_blocks(servers: Sequence[Server], topology: Topology, rows: Int[np.ndarray, "P N"]) -> Int[np.ndarray, "R"]:
    """How many servers a gang takes at most of each rack that is an NVLink domain, 0 of others.

    Args:
        servers: of the cluster.
        topology: their racks.
        rows: the servers of each partition, -1 = padding.

    Raises:
        UserError: only some servers of a rack have NVLink into it, or several partitions share one.
    """
    rack = np.asarray(topology.server_rack)
    joined = np.array([server.nvlink_gbytes_s is not None for server in servers])
    size, found = np.bincount(rack, minlength=len(topology.rack_names)), np.bincount(rack[joined])
    found = np.pad(found, (0, len(size) - len(found)))
    said = np.zeros_like(size) if topology.domain_block is None else topology.domain_block
    for wrong, name in zip((found != size) & ((found > 0) | (said > 0)), topology.rack_names, strict=True):
        if wrong:
            raise UserError(
                f"topology: {name} is an NVLink domain, but not all its servers have nvlink_gbytes_s; all should"
            )
    owner = np.full(len(servers), -1)
    owner[rows[rows >= 0]] = np.nonzero(rows >= 0)[0]
    for place in np.flatnonzero(found):
        if len(np.unique(owner[rack == place])) > 1:
            raise UserError(
                f"schedulers: {len(rows)} cut {topology.rack_names[place]}, an NVLink domain, into several partitions; "
                "each domain should be in one of them"
            )
    return np.where(found > 0, np.where(said > 0, np.minimum(said, size), size), 0)


def rail(
    num_servers: int,
    servers_per_unit: int = 8,
    rails: int = 8,
    nic_gbits_s: float = NIC_GBITS_S,
    oversubscription: float = 1.0,
) -> Topology:
    """Units of servers, each a rack, with one uplink bundle per rail to that rail's spines.

    A rail's bundle carries `servers_per_unit * nic / rails / oversubscription`, where `nic` is the sum of a server's
    NICs. The traffic between two units spreads evenly over the rails. Units of 8 are an assumption (an H100
    SuperPOD's have 32).

    What is lost: the simulator's server has one NIC, so that rails cannot be told apart. It does not see that GPUs of
    equal rank are one switch apart, that other pairs first cross NVLink inside a server, or that one rail is busier
    than another. Inside a unit nothing but the NICs is shared, which is exact if the leaf switches do not block.
    """
    rails = count(rails, "rails")
    flat = leaf_spine(num_servers, count(servers_per_unit, "servers_per_unit"), nic_gbits_s, oversubscription, rails)
    racks = tuple(name.replace("rack", "unit") for name in flat.rack_names)
    links = tuple(name.replace("rack", "unit") for name in flat.link_names)
    switches = tuple(name.replace("spine", "rail") for name in flat.switch_names)
    return dataclasses.replace(flat, rack_names=racks, link_names=links, switch_names=switches)


# Each takes the number of servers, then the options of its docstring, `nic_gbits_s` among them.
TOPOLOGIES: Mapping[str, Callable[..., Topology]] = {
    "leaf-spine": leaf_spine,
    "fat-tree": fat_tree,
    "vl2": vl2,
    "bcube": bcube,
    "dragonfly": dragonfly,
    "torus2d": torus2d,
    "torus3d": torus3d,
    "nvl72": nvl72,
    "rail": rail,
}
