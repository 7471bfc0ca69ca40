"""Servers: what one machine is made of, before it becomes rows of arrays.

Units are in the names: `gbytes_s` is 1e9 bytes/s, `gbits_s` is 1e9 bits/s; all bandwidths are per direction.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxsched.cluster.gpu_types import numbered_types
from jaxsched.errors import UserError
from jaxsched.io.schema import check_positive, check_whole

BYTES_S_PER_GBYTES_S = 1e9
BYTES_S_PER_GBITS_S = 1e9 / 8
MAX_SERVERS = 65536  # far above any cluster we know of; turns a typing error into a message instead of a full memory
MAX_GROUP_GPUS = 127  # engines count the workers of a group in int8
MAX_GROUPS = 64


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
    nic_gbits_s: 25, the network bandwidth of p3.16xlarge (AWS, EC2 P3 instances).
    """

    groups: tuple[int, ...] = (4, 4)
    gpu_type: str = "V100"
    cores: float = 64.0
    pcie_gbytes_s: float = 12.0
    qpi_gbytes_s: float = 20.0
    nic_gbits_s: float = 25.0

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

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return sum(self.groups)


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
