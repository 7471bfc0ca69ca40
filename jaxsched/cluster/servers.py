"""Servers and GPU types: what one machine is made of, before it becomes rows of arrays.

Units are in the names: `gbytes_s` is 1e9 bytes/s, `gbits_s` is 1e9 bits/s; all bandwidths are per direction.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from jaxsched.errors import UserError
from jaxsched.io.schema import check_positive, check_whole

BYTES_S_PER_GBYTES_S = 1e9
BYTES_S_PER_GBITS_S = 1e9 / 8
MAX_SERVERS = 65536  # far above any cluster we know of; turns a typing error into a message instead of a full memory
MAX_GROUP_GPUS = 127  # engines count the workers of a group in int8
MAX_GROUPS = 64

V100_SPEED = 1.0
GPU_SPEEDS: Mapping[str, float] = {
    # Training throughput relative to one V100 of a model that only computes. What was measured of a model goes before
    # (`workload.models`), and a model that also keeps the host busy gains less (docs/semantics.md, section 4).
    "V100": V100_SPEED,
    "V100M16": V100_SPEED,  # openb's name for the V100 with 16 GB: the same chip
    "V100M32": V100_SPEED,  # openb's name for the V100 with 32 GB: the same chip (NVIDIA measures 0.96, see A100)
    # Geometric mean of ResNet-50 training at batch sizes 16 to 128 on one GPU, over V100: Gavel (OSDI'20),
    # stanford-futuredata/gavel, simulation_throughputs.json.
    "P100": 0.66,
    "K80": 0.16,
    # ResNet-50 inference, mixed precision, batch 256: 1198 over 3382 images/s. NVIDIA/DeepLearningExamples,
    # PyTorch/Classification/ConvNets/resnet50v1.5. That training scales alike is an assumption.
    "T4": 0.35,
    # ResNet-50 training, mixed precision, one GPU: 2470 (A100 80 GB) over 1200 images/s (V100 16 GB). Same source.
    "A100": 2.06,
    # 1.85 A100s: MLPerf Training, ResNet-50 on 16 GPUs of otherwise alike Dell servers, 14.4 over 7.8 minutes
    # (silvertonconsulting.com, 12 July 2023).
    "H100": 3.8,
    "A10": 0.67,  # assumption: the ratio of memory bandwidths, 600 over 900 GB/s (data sheets)
    "G2": 0.67,  # assumption: openb does not say what a G2 is; taken to be like an A10
    "G3": 2.06,  # assumption: openb does not say what a G3 is; taken to be like an A100
    # Assumption: 1.2 H100s. The same chip with 1.43 times the memory bandwidth (4.8 over 3.35 TB/s, data sheets).
    "H200": 4.56,
    # Assumption: 2 H100s, the ratio of their dense half-precision peaks (2.25 over 0.99 PFLOP/s, data sheets), rounded.
    "B200": 7.6,
}


GPU_TYPES = tuple(GPU_SPEEDS)  # the first ones of what `Cluster.group_gpu_type` indexes


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


def numbered_types(types: Iterable[str]) -> dict[str, int]:
    """What `Cluster.group_gpu_type` holds: a type's place in `GPU_TYPES`, types of one's own after those."""
    return {name: index for index, name in enumerate(dict.fromkeys((*GPU_TYPES, *types)))}


def most_frequent_type(servers: Sequence[Server]) -> str:
    """The type that most GPUs of the servers have; of several the one that is first in `numbered_types`."""
    types = gpu_types(servers)
    numbers = numbered_types(types)
    gpus = {name: sum(server.gpus for server in servers if server.gpu_type == name) for name in types}
    return min(types, key=lambda name: (-gpus[name], numbers[name]))


def relative_speeds(types: Sequence[str], reference: str, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> list[float]:
    """Speed of each type in units of the type `reference`. `UserError` for a type not in the table."""
    unit, *speeds = [check_positive(known_speed(name, gpu_speeds), "GPU speeds", name) for name in (reference, *types)]
    return [speed / unit for speed in speeds]


def known_speed(gpu_type: str, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> float:
    """The table's speed of a type, V100 = 1. `UserError` with the known types for another."""
    if gpu_type not in gpu_speeds:
        raise UserError(f"GPU type {gpu_type!r} has no speed; known types: {', '.join(gpu_speeds)}")
    return gpu_speeds[gpu_type]
