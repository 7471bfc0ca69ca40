"""BCube: servers with several ports forward for each other between layers of small switches.

Guo et al., "BCube: A High Performance, Server-centric Network Architecture for Modular Data Centers", SIGCOMM 2009.
"""

import itertools
import math

import numpy as np

from jaxsched.cluster.servers import MAX_SERVERS
from jaxsched.cluster.topologies.cables import Hop, count, from_cables, numbered, port_bytes_s
from jaxsched.cluster.topology import NIC_GBITS_S, Topology
from jaxsched.errors import UserError


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
    sizes = _sizes(None if levels is None else count(levels, "levels"))
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


def _sizes(levels: int | None) -> dict[int, tuple[int, int]]:
    """{servers: (switch ports n, levels)} of all networks that there are; with the fewest levels of each size."""
    found: dict[int, tuple[int, int]] = {}
    for depth in range(2, MAX_SERVERS.bit_length()) if levels is None else (levels,):
        for ports in itertools.takewhile(lambda n, depth=depth: n**depth <= MAX_SERVERS, itertools.count(2)):
            found.setdefault(ports**depth, (ports, depth))
    return found
