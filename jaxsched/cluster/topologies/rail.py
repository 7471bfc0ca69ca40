"""Rail-optimised networks: GPU r of every server has its NIC on rail r, and every rail its own switches.

NVIDIA DGX SuperPOD reference architecture (H100, RA-11333): scalable units in which leaf switch r serves NIC r of every
server, under a common layer of spines.
"""

import dataclasses

from jaxsched.cluster.topologies.cables import count
from jaxsched.cluster.topology import NIC_GBITS_S, Topology, leaf_spine


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
