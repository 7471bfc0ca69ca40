"""What a network amounts to: nodes, links, bisection, oversubscription, from the arrays that the simulator uses.

Its picture, too, which needs matplotlib (`pip install 'jaxsched[viz]'`).
"""

import collections
import dataclasses
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.servers import BYTES_S_PER_GBITS_S
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOISE = 1e-9  # of the largest capacity; what is left of a link below this is rounding


@dataclasses.dataclass(frozen=True)
class Figures:
    """One line of the table of networks."""

    servers: int
    racks: int  # with servers; networks whose servers forward have one per server
    switches: int  # nodes without servers
    links: int  # directed, parallel cables merged
    bisection_gbits_s: float  # one way; infinite with a single rack
    oversubscription: float  # NIC bandwidth of the smaller half over the bisection; 0 with a single rack


def figures(inventory: Inventory) -> Figures:
    """The figures of a cluster's network. `UserError` if its topology does not say what its links join."""
    topology = inventory.topology
    racks = len(np.unique(topology.server_rack))
    nic = np.array([server.nic_gbits_s for server in inventory.servers])
    first = in_first_half(topology)[topology.server_rack]
    bisection = bisection_bytes_s(topology) / BYTES_S_PER_GBITS_S
    return Figures(
        servers=len(inventory.servers),
        racks=racks,
        switches=len(topology.node_names) - racks,
        links=len(topology.link_names),
        bisection_gbits_s=bisection,
        oversubscription=min(nic[first].sum(), nic[~first].sum()) / bisection,
    )


def in_first_half(topology: Topology) -> Bool[np.ndarray, "R"]:
    """The first racks, which hold at most half of the servers; or the first one. All builders number racks by place."""
    held = np.bincount(topology.server_rack, minlength=len(topology.rack_names))
    half = np.cumsum(held) * 2 <= held.sum()
    return half if held[half].any() else np.cumsum(held) <= held[held > 0][0]


def bisection_bytes_s(topology: Topology) -> float:
    """Most bytes/s that the first half of the racks can send to the second: the least cut between them (max-flow).

    That is the bisection bandwidth where no other halves are easier to cut, as in the symmetric networks here. Infinite
    if one half has no servers.
    """
    first = np.flatnonzero(in_first_half(topology))
    held = np.bincount(topology.server_rack, minlength=len(topology.rack_names))
    sources = {int(rack) for rack in first if held[rack]}
    sinks = {int(rack) for rack in np.flatnonzero(held) if rack not in sources}
    if not sources or not sinks:
        return math.inf
    return max_flow(link_ends(topology), topology.link_bytes_s, sources, sinks)


def link_ends(topology: Topology) -> Int[np.ndarray, "L 2"]:
    """The nodes that each link joins. `UserError` if the topology does not say."""
    if topology.link_ends is None:
        raise UserError("topology: link_ends is not given, so that the network can be neither drawn nor cut in halves")
    return topology.link_ends


def max_flow(
    ends: Int[np.ndarray, "L 2"], capacity: Float[np.ndarray, "L"], sources: set[int], sinks: set[int]
) -> float:
    """The most that flows from `sources` to `sinks` over the links that join `ends`, shortest paths first.

    Edmonds, Karp, "Theoretical improvements in algorithmic efficiency for network flow problems", JACM 1972.
    """
    left: dict[int, dict[int, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for (tail, head), size in zip(ends.tolist(), capacity, strict=True):
        left[tail][head] += float(size)
        left[head][tail] += 0.0
    noise = _NOISE * float(np.max(capacity))
    flow = 0.0
    while path := _shortest_path(left, sources, sinks, noise):
        hops = list(itertools.pairwise(path))
        amount = min(left[a][b] for a, b in hops)
        for a, b in hops:
            left[a][b] -= amount
            left[b][a] += amount
        flow += amount
    return flow


def _shortest_path(left: dict[int, dict[int, float]], sources: set[int], sinks: set[int], noise: float) -> list[int]:
    """Nodes from a source to a sink with something left on every hop; empty if there is no way."""
    came_from: dict[int, int | None] = dict.fromkeys(sources)
    queue = collections.deque(sources)
    while queue:
        node = queue.popleft()
        if node in sinks:
            path = [node]
            while (before := came_from[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for neighbour, room in left[node].items():
            if room > noise and neighbour not in came_from:
                came_from[neighbour] = node
                queue.append(neighbour)
    return []


RACK, SWITCH, CABLE = "#1f5fa8", "#d1762b", "#8a8f98"
SIZE_INCHES = (7.2, 4.0)
WIDEST, THINNEST = 2.5, 0.4  # points, of the cables with the most and the least capacity
INK = 60  # cables that can be as wide as that; more are drawn thinner


def layers(topology: Topology) -> Float[np.ndarray, "nodes 2"]:
    """Racks in a row; above them the switches, by hops from a rack, each over what it is joined to."""
    ends, count = link_ends(topology), len(topology.node_names)
    height = np.full(count, -1)
    height[: len(topology.rack_names)] = 0
    for hop in range(count):
        reached = ends[(height[ends[:, 0]] == hop), 1]
        height[reached[height[reached] < 0]] = hop + 1
    across = np.zeros(count)
    for layer in range(height.max() + 1):
        nodes = np.flatnonzero(height == layer)
        if layer:
            below = [across[ends[(ends[:, 1] == n) & (height[ends[:, 0]] == layer - 1), 0]].mean() for n in nodes]
            nodes = nodes[np.argsort(below, kind="stable")]
        across[nodes] = (np.arange(len(nodes)) + 0.5) / len(nodes)
    return np.stack([across, height], -1)


def draw(topology: Topology, title: str) -> "Figure":
    """Racks as dots, switches as squares, cables as lines, wider for more capacity. `UserError` without matplotlib."""
    try:
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib; install it with: pip install 'jaxsched[viz]'") from None
    place = layers(topology) if topology.positions is None else topology.positions
    capacity: dict[tuple[int, int], float] = collections.defaultdict(float)
    for (tail, head), size in zip(link_ends(topology).tolist(), topology.link_bytes_s, strict=True):
        if tail < head:
            capacity[tail, head] += size
    sizes = np.array(list(capacity.values()))
    widest = WIDEST * min(1.0, INK / max(len(sizes), 1))
    widths = np.maximum(THINNEST, widest * sizes / max(sizes, default=1.0))

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    lines = LineCollection([place[list(pair)] for pair in capacity], linewidths=widths, colors=CABLE, alpha=0.6)
    axes.add_collection(lines)
    racks = np.arange(len(place)) < len(topology.rack_names)
    servers = len(topology.server_rack)
    shown = f"{racks.sum()} racks, {servers} servers" if servers != racks.sum() else f"{servers} servers"
    dot = float(np.clip(1200 / len(place), 9, 60))  # points^2
    axes.scatter(*place[racks].T, s=dot, color=RACK, zorder=2, label=shown)
    if not racks.all():
        axes.scatter(*place[~racks].T, s=dot, color=SWITCH, marker="s", zorder=2, label=f"{(~racks).sum()} switches")
    axes.plot([], [], color=CABLE, label=f"{len(capacity)} cables, {len(topology.link_names)} directed links")
    axes.set_title(title)
    axes.set_axis_off()
    axes.margins(0.04)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def save(topology: Topology, title: str, path: Path) -> None:
    """`draw` into a file, whose suffix says the format: .svg, .png or .pdf. `UserError` for another."""
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UserError(f"{path}: pictures are written as .svg, .png or .pdf")
    figure = draw(topology, title)
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):  # the same file every time
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None, dpi=110)
