"""NVLink domains: racks whose servers NVLink joins (docs/semantics.md, section 1), and clusters of them under rails.

NVIDIA's GB200 NVL72 is a rack of 18 compute trays of 4 GPUs. Each GPU has 1.8 TB/s of NVLink both ways together, and a
NIC of 400 Gbit/s (NVIDIA, GB200 NVL72 and DGX GB200 data sheets). An HGX server of 8 GPUs, NVL8, is a domain of its
own: a server of one GPU group, whose `pcie_gbytes_s` is that of NVLink.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies.cables import Hop, bytes_s, count, from_cables, numbered, ratio
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError
from jaxsched.io.schema import check_whole

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
