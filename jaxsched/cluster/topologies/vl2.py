"""VL2: a Clos of intermediate and aggregation switches that spreads every flow over all intermediate switches.

Greenberg et al., "VL2: A Scalable and Flexible Data Center Network", SIGCOMM 2009, section 4.1.
"""

import numpy as np

from jaxsched.cluster.topologies.cables import Hop, bytes_s, count, from_cables, numbered, ratio
from jaxsched.cluster.topology import NIC_GBITS_S, Topology
from jaxsched.errors import UserError


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
