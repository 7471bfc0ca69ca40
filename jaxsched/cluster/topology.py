"""Data-center topologies: racks, directed links and the routes between racks; trees of switches.

A `Topology` is plain NumPy plus one function, `route(t, u)`, that says which share of the traffic from rack `t` to rack
`u` crosses which link. Any network fits: routes may fan out (ECMP) and shares may be fractions. Parallel equal-cost
cables over which ECMP spreads flows evenly are one link that carries the sum of their capacities, unless a builder is
asked to keep them apart (`spines`); both give every flow the same time.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.servers import BYTES_S_PER_GBITS_S, MAX_SERVERS, Server
from jaxsched.errors import UserError
from jaxsched.io.schema import check_positive, check_whole

Route = Callable[[int, int], Mapping[int, float]]
NIC_GBITS_S = Server().nic_gbits_s


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """S servers in R racks, joined by L directed links. `UserError` if the parts do not fit together."""

    server_rack: Int[np.ndarray, "S"]  # rack of each server, 0..R-1
    rack_names: tuple[str, ...]  # R
    link_names: tuple[str, ...]  # L
    link_bytes_s: Float[np.ndarray, "L"]  # capacity of each link
    route: Route  # (rack t, rack u) -> {link: share of the traffic t -> u that crosses it}; {} inside a rack
    switch_names: tuple[str, ...] = ()  # nodes R, R + 1, ...: switches that are no rack's own
    link_ends: Int[np.ndarray, "L 2"] | None = None  # nodes that a link leaves and enters; None if nobody says
    positions: Float[np.ndarray, "nodes 2"] | None = None  # where a drawing puts them; None: in layers
    domain_block: Int[np.ndarray, "R"] | None = None  # most servers of a domain for a gang; 0, None: not said

    def __post_init__(self) -> None:
        rack = np.asarray(self.server_rack)
        if rack.size == 0 or rack.min() < 0 or rack.max() >= len(self.rack_names):
            raise UserError(f"topology: server_rack must name a rack 0..{len(self.rack_names) - 1} for every server")
        if np.shape(self.link_bytes_s) != (len(self.link_names),):
            raise UserError(f"topology: {np.shape(self.link_bytes_s)} capacities for {len(self.link_names)} links")
        if not np.all(np.isfinite(self.link_bytes_s) & (np.asarray(self.link_bytes_s) > 0)):
            raise UserError("topology: every link capacity must be a finite number of bytes/s above 0")
        if self.link_ends is not None and np.shape(self.link_ends) != (len(self.link_names), 2):
            raise UserError(f"topology: link_ends has shape {np.shape(self.link_ends)}; it must be two nodes a link")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Racks, then switches: what `link_ends` indexes."""
        return (*self.rack_names, *self.switch_names)


@dataclasses.dataclass(frozen=True, eq=False)
class TreeRoutes:
    """Routes of a tree of switches: up to the lowest common switch, and down.

    `nodes[k][r]` is the tier-k switch above rack r (tier 0: the rack's own). Switch `i` of tier `k` has the uplink
    bundle `first[k] + 2 i` and the downlink bundle `first[k] + 2 i + 1`.
    """

    nodes: tuple[Int[np.ndarray, "R"], ...]
    first: tuple[int, ...]

    def __call__(self, source: int, target: int) -> dict[int, float]:
        links: dict[int, float] = {}
        for node, first in zip(self.nodes, self.first, strict=True):
            up, down = int(node[source]), int(node[target])
            if up == down:
                break
            links[first + 2 * up] = 1.0
            links[first + 2 * down + 1] = 1.0
        return links


@dataclasses.dataclass(frozen=True, eq=False)
class SplitRoutes:
    """`base`'s routes with each link replaced by `ways` equal cables; way w of all its links leads over spine w.

    ECMP spreads evenly over them (`flows` None), or hashes: what a rack sends another is `flows` equal flows, each of
    which stays on the spine that a hash of the two racks, its number and the seed draws, whatever lies there already.
    """

    base: Route
    ways: int
    flows: int | None = None
    seed: int = 0

    def __call__(self, source: int, target: int) -> dict[int, float]:
        share = self.base(source, target)
        return {
            link * self.ways + way: share[link] * part
            for link in share
            for way, part in enumerate(self._parts(source, target))
            if part > 0
        }

    def _parts(self, source: int, target: int) -> list[float]:
        """The share of each spine in what one rack sends another."""
        if self.flows is None:
            return [1 / self.ways] * self.ways
        drawn = np.random.default_rng((self.seed, source, target)).integers(self.ways, size=self.flows)
        return (np.bincount(drawn, minlength=self.ways) / self.flows).tolist()


def leaf_spine(
    num_servers: int,
    servers_per_rack: int = 8,
    nic_gbits_s: float = NIC_GBITS_S,
    oversubscription: float = 2.0,
    spines: int | None = None,
    flows: int | None = None,
    seed: int = 0,
) -> Topology:
    """Two tiers: racks of consecutive servers, every leaf switch joined to every spine.

    One uplink and one downlink bundle per rack, each of `servers_per_rack * nic / oversubscription`, also for a last
    rack that is not full (the same switch). 2:1 is an assumption. With `spines` each bundle is kept as one link per
    spine, `link 2 r spines + s` up and `(2 r + 1) spines + s` down, each with a share of 1/spines. With
    `flows`, too, ECMP hashes: see `SplitRoutes`.
    """
    num_servers = count(num_servers, "num_servers")
    servers_per_rack = count(servers_per_rack, "servers_per_rack")
    rack = np.arange(num_servers) // servers_per_rack
    racks = int(rack[-1]) + 1
    bundle = servers_per_rack * bytes_s(nic_gbits_s, "nic_gbits_s") / ratio(oversubscription, "oversubscription")
    names = [numbered("rack", racks)]
    topology = _tree(rack, [np.arange(racks)], names, [bundle])
    if spines is None:
        if flows is not None:
            raise UserError(f"topology: flows is {flows}, without spines; it needs spines, over which flows are hashed")
        return topology
    flows = None if flows is None else count(flows, "flows")
    return _split(topology, count(spines, "spines"), flows, check_whole(seed, "topology", "seed", 0, 2**31 - 1))


def fat_tree(
    num_servers: int,
    servers_per_rack: int | None = None,
    racks_per_pod: int | None = None,
    nic_gbits_s: float = NIC_GBITS_S,
    rack_oversubscription: float = 1.0,
    pod_oversubscription: float = 1.0,
) -> Topology:
    """Three tiers: edge switches (racks), aggregation (pods of racks) and core.

    Without sizes it is the smallest classic k-ary fat tree (Al-Fares et al., SIGCOMM 2008: k pods, k/2 racks a pod,
    k/2 servers a rack, k^3/4 servers in all) that holds the servers; trailing racks and pods are left out. Ratios of
    1.0 give its full bisection. Bundles: rack `servers_per_rack * nic / rack_oversubscription`, pod
    `racks_per_pod * rack bundle / pod_oversubscription`.
    """
    num_servers = count(num_servers, "num_servers")
    half = 1
    while 2 * half**3 < num_servers:
        half += 1
    per_rack = half if servers_per_rack is None else count(servers_per_rack, "servers_per_rack")
    per_pod = half if racks_per_pod is None else count(racks_per_pod, "racks_per_pod")
    rack = np.arange(num_servers) // per_rack
    pod = np.arange(int(rack[-1]) + 1) // per_pod
    rack_bundle = per_rack * bytes_s(nic_gbits_s, "nic_gbits_s") / ratio(rack_oversubscription, "rack_oversubscription")
    pod_bundle = per_pod * rack_bundle / ratio(pod_oversubscription, "pod_oversubscription")
    names = [numbered("rack", len(pod)), numbered("pod", int(pod[-1]) + 1)]
    return _tree(rack, [np.arange(len(pod)), pod], names, [rack_bundle, pod_bundle])


def from_host_map(
    positions: Sequence[tuple[str, str, str]],
    nic_gbits_s: float = NIC_GBITS_S,
    rack_oversubscription: float = 2.0,
    pod_oversubscription: float = 1.0,
) -> Topology:
    """The three-layer Clos of a host map: `positions[i]` is the (DSW, PSW, ASW) of server `i`, core to rack.

    Reading: names are local to the layer above, so a rack is a (DSW, PSW, ASW), a pod a (DSW, PSW), and a DSW a core
    group. Alibaba's file (lingjun 2023) lists 48 ASW names, most of them under 2 or 3 of the 3 PSWs; but no (PSW, ASW)
    holds more than 8 hosts and 68 of the 119 hold exactly 8, so an ASW is a rack of 8 hosts, numbered anew in each
    pod. The file gives no capacities: every rack's bundle is that of the fullest rack over `rack_oversubscription`,
    every pod's that of the pod with the most racks over `pod_oversubscription` (2:1 and 1:1 are assumptions). With one
    DSW its core is the top; several DSWs get bundles of their own, without further oversubscription.
    """
    if len(positions) == 0:
        raise UserError("host map: no hosts; it must have at least one")
    racks = list(dict.fromkeys(positions))
    rack_of = {rack: index for index, rack in enumerate(racks)}
    rack = np.array([rack_of[position] for position in positions])
    pods = list(dict.fromkeys(position[:2] for position in racks))
    cores = list(dict.fromkeys(position[:1] for position in racks))
    pod_of, core_of = ({name: index for index, name in enumerate(names)} for names in (pods, cores))
    nodes = [
        np.arange(len(racks)),
        np.array([pod_of[position[:2]] for position in racks]),
        np.array([core_of[position[:1]] for position in racks]),
    ]
    rack_bundle = np.bincount(rack).max() * bytes_s(nic_gbits_s, "nic_gbits_s")
    rack_bundle /= ratio(rack_oversubscription, "rack_oversubscription")
    pod_bundle = np.bincount(nodes[1]).max() * rack_bundle / ratio(pod_oversubscription, "pod_oversubscription")
    core_bundle = max(Counter(pod[:1] for pod in pods).values()) * pod_bundle
    tiers = 2 if len(cores) == 1 else 3
    names = [tuple("/".join(path) for path in paths) for paths in (racks, pods, cores)]
    return _tree(rack, nodes[:tiers], names[:tiers], [rack_bundle, pod_bundle, core_bundle][:tiers])


def _tree(
    server_rack: Int[np.ndarray, "S"],
    nodes: Sequence[Int[np.ndarray, "R"]],
    names: Sequence[Sequence[str]],
    bundles: Sequence[float],
) -> Topology:
    """A tree of switches; per tier: the switch above each rack, the switches' names, the bytes/s of one bundle.

    The switches above the last tier are one node, `core`.
    """
    first = np.cumsum([0] + [2 * len(tier) for tier in names])
    start = np.cumsum([0] + [len(tier) for tier in names])  # number of a tier's first switch as a node
    above = [*nodes[1:], np.zeros_like(nodes[0])]
    ends = np.zeros((first[-1], 2), int)
    for tier, (own, parents) in enumerate(zip(nodes, above, strict=True)):
        ends[first[tier] + 2 * own] = np.stack([start[tier] + own, start[tier + 1] + parents], -1)
        ends[first[tier] + 2 * own + 1] = np.stack([start[tier + 1] + parents, start[tier] + own], -1)
    return Topology(
        server_rack=server_rack,
        rack_names=tuple(names[0]),
        link_names=tuple(f"{name}:{way}" for tier in names for name in tier for way in ("up", "down")),
        link_bytes_s=np.repeat(np.asarray(bundles, np.float64), [2 * len(tier) for tier in names]),
        route=TreeRoutes(tuple(nodes), tuple(int(link) for link in first[:-1])),
        switch_names=(*(name for tier in names[1:] for name in tier), "core"),
        link_ends=ends,
    )


def _split(topology: Topology, ways: int, flows: int | None, seed: int) -> Topology:
    """A leaf-spine with each link as `ways` equal cables, to spine 0, 1, ...: link `e` becomes `e ways + spine`."""
    assert topology.link_ends is not None
    racks = len(topology.rack_names)
    ends = np.repeat(topology.link_ends, ways, axis=0)
    ends += (ends == racks) * np.tile(np.arange(ways), len(topology.link_names))[:, None]
    return dataclasses.replace(
        topology,
        link_names=tuple(f"{name}:{way}" for name in topology.link_names for way in range(ways)),
        link_bytes_s=np.repeat(topology.link_bytes_s / ways, ways),
        route=SplitRoutes(topology.route, ways, flows, seed),
        switch_names=numbered("spine", ways),
        link_ends=ends,
    )


Hop = tuple[int, int]
Hops = Callable[[int, int], Mapping[Hop, float]]  # (rack t, rack u) -> {(node, next node): share}


def from_cables(
    server_rack: Int[np.ndarray, "S"],
    rack_names: Sequence[str],
    switch_names: Sequence[str],
    cables: Mapping[Hop, float],
    hops: Hops,
    positions: Float[np.ndarray, "nodes 2"] | None = None,
) -> Topology:
    """The topology with a link in each direction for every cable.

    Args:
        server_rack: Rack of each server. Racks are the nodes 0..R-1, switches the nodes from R on.
        cables: {(node, node): bytes/s per direction}, each pair once; parallel cables are one of their summed capacity.
        hops: which share of the traffic from rack t to rack u (t != u) goes from a node to a neighbour.
        positions: For drawings.
    """
    names = (*rack_names, *switch_names)
    ends = [hop for a, b in cables for hop in ((a, b), (b, a))]
    link_of = {hop: link for link, hop in enumerate(ends)}
    assert len(link_of) == len(ends), "a pair of nodes has two cables"

    def route(source: int, target: int) -> dict[int, float]:
        return {link_of[hop]: share for hop, share in hops(source, target).items()} if source != target else {}

    return Topology(
        server_rack=server_rack,
        rack_names=tuple(rack_names),
        link_names=tuple(f"{names[a]}>{names[b]}" for a, b in ends),
        link_bytes_s=np.repeat(np.asarray(list(cables.values()), np.float64), 2),
        route=route,
        switch_names=tuple(switch_names),
        link_ends=np.asarray(ends, int).reshape(-1, 2),
        positions=positions,
    )


def numbered(kind: str, count: int) -> tuple[str, ...]:
    """kind0, kind1, ..."""
    return tuple(f"{kind}{index}" for index in range(count))


def count(value: int, field: str, minimum: int = 1) -> int:
    """A whole number of servers or switches. `UserError` for anything else."""
    return check_whole(value, "topology", field, minimum, MAX_SERVERS)


def ratio(value: float, field: str) -> float:
    """A positive number. `UserError` for anything else."""
    return check_positive(value, "topology", field)


def bytes_s(gbits_s: float, field: str) -> float:
    """Bytes/s of a speed in Gbit/s. `UserError` unless it is positive."""
    return check_positive(gbits_s, "topology", field, "1e9 bits/s") * BYTES_S_PER_GBITS_S


def port_bytes_s(link_gbits_s: float | None, nic_gbits_s: float, ports: int) -> float:
    """Bytes/s of one of a forwarding server's `ports`: `link_gbits_s`, by default an even part of its NIC bandwidth."""
    nic = bytes_s(nic_gbits_s, "nic_gbits_s")
    return nic / ports if link_gbits_s is None else bytes_s(link_gbits_s, "link_gbits_s")
