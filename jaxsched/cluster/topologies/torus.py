"""Tori of servers in two and three dimensions: every server is joined to its neighbours and forwards for others.

Dally, Towles, "Principles and Practices of Interconnection Networks", 2004: chapter 5 (k-ary n-cubes), section 8.4.2
(dimension-order routing in tori).
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.servers import MAX_SERVERS
from jaxsched.cluster.topologies.cables import Hop, count, from_cables, port_bytes_s
from jaxsched.cluster.topology import NIC_GBITS_S, Topology
from jaxsched.errors import UserError

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
    size = _sides(num_servers, dimensions) if sides is None else _given(sides, num_servers, dimensions)
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
    return from_cables(np.arange(num_servers), names, (), cables, hops, _positions(np.array(points), size))


def _positions(points: Int[np.ndarray, "nodes D"], size: Sequence[int]) -> Float[np.ndarray, "nodes 2"]:
    """A grid, three dimensions slanted; rows are bent so that the cables round the back show."""
    bend = BEND * np.sin(np.pi * points / (np.array(size) - 1))
    if len(size) == 2:
        return np.stack([points[:, 1] + bend[:, 0], bend[:, 1] - points[:, 0]], -1)
    across = points[:, 2] + points[:, 0] * (size[2] + 1.0) + bend[:, 1]
    return np.stack([across, 0.3 * points[:, 2] - points[:, 1] + bend[:, 0] + bend[:, 2]], -1)


def _given(sides: Sequence[int], num_servers: int, dimensions: int) -> tuple[int, ...]:
    if not isinstance(sides, (list, tuple)) or len(sides) != dimensions:
        raise UserError(f"topology: sides is {sides!r}; it must be {dimensions} whole numbers, e.g. {[4] * dimensions}")
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
