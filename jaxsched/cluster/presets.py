"""Clusters by name or by file: `get_cluster("leaf-spine-32")`, `get_cluster("nodes.csv", schedulers=8)`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsched.cluster.cluster_file import read_cluster_file
from jaxsched.cluster.gpu_types import GPU_SPEEDS, read_gpu_speeds
from jaxsched.cluster.inventory import Inventory, make_inventory, read_csv
from jaxsched.cluster.servers import MAX_SERVERS, Server
from jaxsched.cluster.topologies.registry import TOPOLOGIES
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError

if TYPE_CHECKING:
    from jaxsched.cluster.hardware import Cluster

PHILLY_BIG_SERVERS = 231
PHILLY_SMALL_SERVERS = 321
PHILLY_SERVERS_PER_RACK = 8


def preset_names() -> tuple[str, ...]:
    """The names `get_cluster` knows; N stands for the number of 8-GPU servers."""
    return (*(f"{kind}-N" for kind in TOPOLOGIES), "philly")


def get_cluster(name_or_path: str, schedulers: int | None = None, gpu_speeds: str | Path | None = None) -> "Cluster":
    """The cluster of a preset or of a file, cut into `schedulers` partitions.

    Names: see `preset_names`. Files: `.csv` (node list or host map, by its header), `.yaml`/`.yml` (cluster file). By
    default a file says how many schedulers it has, else one per 16 servers, at least 2. `gpu_speeds`: a file of further
    GPU types (`gpu_types.read_gpu_speeds`). Raises `UserError`.
    """
    return get_inventory(name_or_path, gpu_speeds).build(schedulers)


def get_inventory(name_or_path: str, gpu_speeds: str | Path | None = None) -> Inventory:
    """As `get_cluster`, before it is cut into partitions: servers, their names, topology. Raises `UserError`."""
    speeds = GPU_SPEEDS if gpu_speeds is None else {**GPU_SPEEDS, **read_gpu_speeds(gpu_speeds)}
    suffix = Path(name_or_path).suffix.lower()
    if suffix == ".csv":
        return read_csv(name_or_path, speeds)
    if suffix in (".yaml", ".yml"):
        return read_cluster_file(name_or_path, speeds)
    if name_or_path == "philly":
        return _philly()
    sized = re.fullmatch(rf"({'|'.join(TOPOLOGIES)})-([0-9]{{1,9}})", name_or_path)
    if not sized:
        raise UserError(
            f"unknown cluster {name_or_path!r}; give one of {', '.join(preset_names())} (such as leaf-spine-32)"
            " or the path of a .csv (node list, host map) or .yaml file"
        )
    kind, num_servers = sized[1], int(sized[2])
    if not 1 <= num_servers <= MAX_SERVERS:
        raise UserError(f"cluster {name_or_path!r} has {num_servers} servers; it must have 1 to {MAX_SERVERS}")
    try:
        topology = TOPOLOGIES[kind](num_servers)
    except UserError as error:
        raise UserError(f"cluster {name_or_path!r}: {error}") from None
    return make_inventory([Server()] * num_servers, topology)


def _philly() -> Inventory:
    """Microsoft's Philly cluster (Jeon et al., ATC'19): 2,490 GPUs in 552 servers of 2 or 8 GPUs.

    These three figures fix the mix: 231 servers of 8 GPUs and 321 of 2. Everything else is an assumption: P100s, 64
    cores (16 in the small servers), 100 Gbit/s NICs (InfiniBand inside a rack), racks of 8 like servers, the two kinds
    spread evenly over the racks (one rack takes the 7 + 1 that are left), and 4:1 oversubscription towards the Ethernet
    between racks.
    """
    big = Server(groups=(4, 4), gpu_type="P100", cores=64, nic_gbits_s=100)
    small = Server(groups=(2,), gpu_type="P100", cores=16, nic_gbits_s=100)
    per_rack = PHILLY_SERVERS_PER_RACK
    big_racks, big_left = divmod(PHILLY_BIG_SERVERS, per_rack)
    small_racks, small_left = divmod(PHILLY_SMALL_SERVERS, per_rack)
    racks = big_racks + small_racks
    servers: list[Server] = []
    for rack in range(racks):
        is_big = (rack + 1) * big_racks // racks > rack * big_racks // racks
        servers += [big if is_big else small] * per_rack
    servers += [big] * big_left + [small] * small_left
    return make_inventory(servers, leaf_spine(len(servers), per_rack, big.nic_gbits_s, oversubscription=4.0))
