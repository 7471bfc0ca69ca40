"""Servers: what one machine is made of, before it becomes rows of arrays, and which of them a partition has.

Units are in the names: `gbytes_s` is 1e9 bytes/s, `gbits_s` is 1e9 bits/s; all bandwidths are per direction.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from jaxsched.cluster.gpu_types import numbered_types
from jaxsched.errors import UserError
from jaxsched.io.schema import check_positive, check_whole

BYTES_S_PER_GBYTES_S = 1e9
BYTES_S_PER_GBITS_S = 1e9 / 8
MAX_SERVERS = 65536  # far above any cluster we know of; turns a typing error into a message instead of a full memory
MAX_GROUP_GPUS = 127  # engines count the workers of a group in int8
MAX_GROUPS = 64
MAX_RESERVABLE = 2**31 - 1  # int32


@dataclasses.dataclass(frozen=True)
class Server:
    """One server. The defaults are an 8-GPU V100 machine like AWS p3.16xlarge; raises `UserError` for bad values.

    groups: GPUs of each socket, e.g. (4, 4); one entry is one GPU group.
    gpu_type: a name in `GPU_SPEEDS` or in the table handed to `build`.
    cores: CPU cores of the server, shared evenly by the sockets, counted as the inventory counts them (AWS, openb:
        hardware threads). 64 as in p3.16xlarge.
    pcie_gbytes_s: between one socket and its GPUs. PCIe 3.0 x16 carries 15.75 GB/s, of which some 12 are usable
        (assumption); all GPUs of a group share it (assumption: one switch per socket).
    qpi_gbytes_s: between the sockets, assumption: two UPI links of 10.4 GT/s, 20.8 GB/s each, half of it usable.
    memory_mib: memory that jobs may reserve; none: without end (not said).
    nic_gbits_s: 25, the network bandwidth of p3.16xlarge (AWS, EC2 P3 instances).
    nvlink_gbytes_s: of its GPUs into the NVLink domain that its rack is, all together; none: its rack is none.
    """

    groups: tuple[int, ...] = (4, 4)
    gpu_type: str = "V100"
    cores: float = 64.0
    pcie_gbytes_s: float = 12.0
    qpi_gbytes_s: float = 20.0
    nic_gbits_s: float = 25.0
    memory_mib: int | None = None
    nvlink_gbytes_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple) or not 1 <= len(self.groups) <= MAX_GROUPS:
            raise UserError(f"server: groups is {self.groups!r}; it must be 1 to {MAX_GROUPS} GPU counts, e.g. (4, 4)")
        for gpus in self.groups:
            check_whole(gpus, "server", "a GPU count of groups", 1, MAX_GROUP_GPUS)
        if not isinstance(self.gpu_type, str) or not self.gpu_type:
            raise UserError(f"server: gpu_type is {self.gpu_type!r}; it must be a name, e.g. V100")
        check_positive(self.cores, "server", "cores", "CPU cores of the server")
        check_positive(self.pcie_gbytes_s, "server", "pcie_gbytes_s", "1e9 bytes/s")
        check_positive(self.qpi_gbytes_s, "server", "qpi_gbytes_s", "1e9 bytes/s")
        check_positive(self.nic_gbits_s, "server", "nic_gbits_s", "1e9 bits/s")
        if self.memory_mib is not None:
            check_whole(self.memory_mib, "server", "memory_mib", 1, MAX_RESERVABLE)
        if self.nvlink_gbytes_s is not None:
            check_positive(self.nvlink_gbytes_s, "server", "nvlink_gbytes_s", "1e9 bytes/s")
            if len(self.groups) > 1:
                raise UserError(
                    f"server: groups is {self.groups}; with nvlink_gbytes_s it must be one group, which NVLink joins, "
                    f"such as ({self.gpus},)"
                )

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return sum(self.groups)

    @property
    def reservable(self) -> tuple[int, int]:
        """Thousandths of CPU cores, and MiB, that jobs may reserve."""
        memory = MAX_RESERVABLE if self.memory_mib is None else self.memory_mib
        return round(min(1000 * self.cores, MAX_RESERVABLE)), memory


def split_gpus(gpus: int) -> tuple[int, ...]:
    """GPU groups of a server of which only the number of GPUs is known: 8 -> (4, 4), 3 -> (2, 1), 2 -> (2,).

    Assumption: up to two GPUs hang on one socket, more are split over two sockets as evenly as possible.
    """
    return (gpus,) if gpus <= 2 else (gpus - gpus // 2, gpus // 2)


def gpu_types(servers: Iterable[Server]) -> tuple[str, ...]:
    """GPU types in order of first appearance."""
    return tuple(dict.fromkeys(server.gpu_type for server in servers))


def most_frequent_type(servers: Sequence[Server]) -> str:
    """The type that most GPUs of the servers have; of several the one that is first in `numbered_types`."""
    types = gpu_types(servers)
    numbers = numbered_types(types)
    gpus = {name: sum(server.gpus for server in servers if server.gpu_type == name) for name in types}
    return min(types, key=lambda name: (-gpus[name], numbers[name]))


SERVERS_PER_SCHEDULER = 16


def default_schedulers(servers: Sequence[Server]) -> int:
    """Schedulers of a cluster that does not say: one per 16 servers, at least 2 (1 for a single server).

    One where there are NVLink domains: jobs span those, but no partitions.
    """
    if any(server.nvlink_gbytes_s is not None for server in servers):
        return 1
    return min(len(servers), max(2, -(-len(servers) // SERVERS_PER_SCHEDULER)))


def partition_rows(num_servers: int, schedulers: int) -> Int[np.ndarray, "P N"]:
    """The servers of each partition, -1 = padding. `UserError` if a partition would be empty."""
    if isinstance(schedulers, bool) or not isinstance(schedulers, (int, np.integer)):
        raise UserError(f"schedulers is {schedulers!r}; it must be a whole number from 1 to {num_servers}")
    if not 1 <= schedulers <= num_servers:
        raise UserError(f"schedulers is {schedulers}; it must be from 1 to {num_servers}, the number of servers")
    block = -(-num_servers // schedulers)
    filled = -(-num_servers // block)
    if filled < schedulers:
        raise UserError(
            f"schedulers is {schedulers}, but {num_servers} servers in blocks of {block} fill only {filled} "
            f"partitions; {filled} schedulers would be right"
        )
    rows = np.arange(schedulers * block)
    return np.where(rows < num_servers, rows, -1).reshape(schedulers, block)


def named_rows(wanted: Mapping[str, int | Sequence[str]], names: Sequence[str], where: str) -> dict[str, list[int]]:
    """The servers of partitions that have names, in the order of `wanted`.

    Args:
        wanted: of each partition how many servers it has, or their names; those that are named nowhere are counted off
            in their order.
        names: of all servers.
        where: begins the message of a mistake.

    Raises:
        UserError: unless every server is in exactly one partition, and every partition has some.
    """
    row_of, owner = {name: row for row, name in enumerate(names)}, dict[int, str]()
    for partition, servers in wanted.items():
        for name in [] if isinstance(servers, int) else servers:
            if name not in row_of:
                raise UserError(f"{where}: {partition}: unknown server {name!r}; they are {names[0]} to {names[-1]}")
            if row_of[name] in owner:
                raise UserError(f"{where}: {partition}: {name} is in {owner[row_of[name]]} already")
            owner[row_of[name]] = partition
    left = [row for row in range(len(names)) if row not in owner]
    counts = {partition: servers for partition, servers in wanted.items() if isinstance(servers, int)}
    if sum(counts.values()) != len(left):
        named = f" that no partition names, of {len(names)}" if owner else ""
        total = sum(counts.values())
        raise UserError(f"{where}: the counts sum to {total}; they must sum to {len(left)}, the servers{named}")
    for partition, count in counts.items():
        owner |= dict.fromkeys(left[:count], partition)
        left = left[count:]
    return {partition: [row for row in range(len(names)) if owner[row] == partition] for partition in wanted}


def pad_rows(partitions: Sequence[Sequence[int]]) -> Int[np.ndarray, "P N"]:
    """As `partition_rows`, of partitions of any sizes."""
    size = max(map(len, partitions))
    return np.array([[*rows, *[-1] * (size - len(rows))] for rows in partitions])
