"""From cables between nodes, and the hops a route takes, to a `Topology`."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.servers import BYTES_S_PER_GBITS_S, MAX_SERVERS
from jaxsched.cluster.topology import Topology
from jaxsched.io.schema import check_positive, check_whole

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
