"""Dragonfly: groups of routers, complete inside, with long cables between every two groups.

Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
"""

from collections import Counter, defaultdict

import numpy as np

from jaxsched.cluster.topologies.cables import Hop, bytes_s, count, from_cables
from jaxsched.cluster.topology import NIC_GBITS_S, Topology
from jaxsched.errors import UserError


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
