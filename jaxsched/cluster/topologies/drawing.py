"""A picture of a network, from the arrays that the simulator uses. Needs matplotlib (`pip install 'jaxsched[viz]'`)."""

import collections
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from jaxsched.cluster.topologies.measures import link_ends
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
