"""GPU types: how fast they train, relative to a V100, and which of them a product's name means."""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxsched.errors import UserError
from jaxsched.io.schema import check_positive

V100_SPEED = 1.0
MEASURED_SPEEDS: Mapping[str, float] = {
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
GPU_TYPES = tuple(MEASURED_SPEEDS)  # the first ones of what `Cluster.group_gpu_type` indexes

# Published peaks in TFLOP/s, dense, FP16 or BF16 on tensor or matrix cores with FP32 accumulation, of one device as
# Kubernetes counts it (a graphics die of an MI250). Sources: NVIDIA's data sheets and the architecture white papers of
# Turing, Ampere GA102, Ada and Blackwell (appendices); AMD's data sheets. Figures "with sparsity" are halved.
PEAKS_TFLOPS: Mapping[str, float] = {
    **{"V100S": 130.0, "TITAN-V": 110.0, "TITAN-RTX": 130.5},
    **{"RTX-2070": 29.9, "RTX-2080": 40.3, "RTX-2080-Ti": 53.8},
    **{"RTX-5000": 89.2, "RTX-6000": 130.5, "RTX-8000": 130.5},  # Quadro, Turing
    **{"RTX-3070": 40.6, "RTX-3080": 59.5, "RTX-3090": 71.0},
    **{"RTX-A4000": 76.7, "RTX-A5000": 111.1, "RTX-A6000": 154.8},
    **{"A2": 18.0, "A10G": 70.0, "A16": 17.9, "A30": 165.0, "A40": 149.7, "A800": 312.0},
    **{"RTX-4070-Ti": 80.2, "RTX-4080": 97.5, "RTX-4090": 165.2, "RTX-5000-Ada": 261.0, "RTX-6000-Ada": 364.2},
    **{"L4": 121.0, "L20": 119.5, "L40": 181.0, "L40S": 362.0},
    **{"H100-PCIe": 756.0, "H100-NVL": 835.0, "H800": 989.0, "H800-PCIe": 756.0, "H20": 148.0, "GH200": 990.0},
    **{"B100": 1750.0, "B300": 2250.0, "GB200": 2500.0, "GB300": 2500.0},
    **{"RTX-5070-Ti": 87.9, "RTX-5080": 112.6, "RTX-5090": 209.5, "RTX-PRO-6000": 503.8},
    **{"MI100": 184.6, "MI210": 181.0, "MI250": 181.0, "MI250X": 191.5},
    **{"MI300A": 980.6, "MI300X": 1307.4, "MI325X": 1307.4, "MI350X": 2300.0, "MI355X": 2500.0},
}
# Without such cores: FP32, TFLOP/s (data sheets), over the P100's 10.6 (assumption: as fast as that for its peak).
PLAIN_PEAKS_TFLOPS: Mapping[str, float] = {
    **{"P4": 5.5, "P40": 11.8, "GTX-1080": 8.9, "GTX-1080-Ti": 11.3, "TITAN-Xp": 12.1, "MI50": 13.3, "MI60": 14.7}
}
P100_TFLOPS = 10.6
# Of these the peaks as above and the speeds of the first table: between them the others are read off.
ANCHORS = tuple((tflops, MEASURED_SPEEDS[name]) for name, tflops in [("V100", 125.0), ("A100", 312.0), ("H100", 989.0)])
ANCHORS += ((2250.0, MEASURED_SPEEDS["B200"]),)


def speed_of_peak(tflops: float) -> float:
    """The speed of a GPU of which only its dense half-precision peak is known, V100 = 1.

    Faster GPUs gain less than their peaks say. So a straight line from each anchor to the next is taken, with both axes
    logarithmic (assumption); below a V100 the speed is in proportion to the peak, above a B200 the last line goes on.
    """
    if tflops <= ANCHORS[0][0]:
        return tflops / ANCHORS[0][0] * ANCHORS[0][1]
    pairs = list(itertools.pairwise(ANCHORS))
    (low, slow), (high, fast) = next((pair for pair in pairs if tflops <= pair[1][0]), pairs[-1])
    return slow * (tflops / low) ** (math.log(fast / slow) / math.log(high / low))


GPU_SPEEDS: Mapping[str, float] = {
    **MEASURED_SPEEDS,
    **{name: round(speed_of_peak(tflops), 3) for name, tflops in PEAKS_TFLOPS.items()},
    **{name: round(tflops / P100_TFLOPS * MEASURED_SPEEDS["P100"], 3) for name, tflops in PLAIN_PEAKS_TFLOPS.items()},
}
FASTEST = max(MEASURED_SPEEDS, key=lambda name: MEASURED_SPEEDS[name])  # that of clusters that say nothing of GPUs

# Into how many equal parts MIG divides the compute of a GPU (NVIDIA, MIG User Guide, supported GPUs).
MIG_PARTS: Mapping[str, int] = {
    **dict.fromkeys(("A100", "A800", "H100", "H100-PCIe", "H100-NVL", "H800", "H20", "H200", "GH200", "B200"), 7),
    **{"B300": 7, "GB200": 7, "GB300": 7, "A30": 4, "RTX-PRO-6000": 4},
}
# Of other names: how their makers or clouds write a type.
ALIASES: Mapping[str, str] = {
    **{"MI300": "MI300X", "MI325": "MI325X", "MI350": "MI350X", "MI355": "MI355X"},
    **{"A4000": "RTX-A4000", "A5000": "RTX-A5000", "A6000": "RTX-A6000"},
}
# As drivers and Kubernetes write it, with MIG before it, and Slurm, which has `a100_1g.5gb`.
_SLICE = re.compile(r"(?<![A-Z0-9.])(?:MIG[^A-Z0-9]+)?(?:([1-7])C\.)?([1-7])G\.[0-9]+GB", re.IGNORECASE)
MOST_SPEEDS = 1000  # of a file


class GpuType(NamedTuple):
    """A GPU type or a slice of one (`A100 2/7`), and its speed, V100 = 1."""

    name: str
    speed: float


def find_gpu_type(
    product: str, speeds: Mapping[str, float] = GPU_SPEEDS, resource: str = "", parts: Mapping[str, int] = MIG_PARTS
) -> GpuType | None:
    """The type that a product's name means; None if it is none of `speeds`.

    `NVIDIA-A100-SXM4-80GB`, `NVIDIA GeForce RTX 2080 Ti`, `a100_80gb` and `AMD_Instinct_MI300X_OAM` are read by the
    longest name of a type in them, whatever stands between its words. A MIG slice has its share of the GPU's speed.

    Args:
        product: A node's label, a column of a list of nodes, what nvidia-smi says.
        speeds: Types and their speeds, V100 = 1.
        resource: What Kubernetes calls it; `nvidia.com/mig-1g.5gb` is a slice, too.
        parts: Into how many parts a type is divided.
    """
    base = product if product in speeds else _longest_name_in(product, speeds)
    if base is None:
        return None
    found = _SLICE.search(product) or _SLICE.search(resource.replace("/", " "))
    own, total = int(found[1] or found[2]) if found else 0, parts.get(base, 7)
    if not 0 < own < total:
        return GpuType(base, speeds[base])
    return GpuType(slice_name(base, own, total), speeds[base] * own / total)


def types_named(names: Iterable[str], known: Sequence[str]) -> frozenset[str]:
    """Those of the `known` types that products' names mean (`find_gpu_type`); a name of another type means none."""
    speeds = {**GPU_SPEEDS, **dict.fromkeys(known, 1.0)}
    found = [find_gpu_type(name, speeds) for name in names]
    return frozenset(one.name for one in found if one is not None) & frozenset(known)


def slice_name(base: str, own: int, total: int) -> str:
    """The name of a MIG slice's type."""
    return f"{base} {own}/{total}"


def _longest_name_in(product: str, speeds: Iterable[str]) -> str | None:
    names = {name: name for name in speeds} | {alias: name for alias, name in ALIASES.items() if name in speeds}
    found = [(len(name), name) for name in names if _is_in(name, product)]
    return names[max(found)[1]] if found else None


def _is_in(name: str, product: str) -> bool:
    """The words of a type's name, one after the other and not as parts of longer words."""
    return _pattern(name).search(product) is not None


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    words = [re.escape(word) for word in re.split(r"[^A-Za-z0-9]+", name) if word]
    pattern = r"(?<![A-Z0-9])" + r"[^A-Z0-9]*".join(words) + r"(?![A-Z0-9])"
    return re.compile(pattern if words else r"(?!)", re.IGNORECASE | re.ASCII)


def read_gpu_speeds(path: str | Path) -> dict[str, float]:
    """A file of types and speeds, YAML: `{RTX-9090: 3.0, A100: 2.2}`, V100 = 1. UserError on any mistake."""
    from jaxsched.io.yaml_file import read_yaml

    content = read_yaml(path, "docs/howto/cluster.md")
    example = "a mapping of names to speeds, V100 = 1, such as {RTX-9090: 3.0}"
    if not isinstance(content, dict) or not 1 <= len(content) <= MOST_SPEEDS:
        raise UserError(f"{path}: should be {example}, with at most {MOST_SPEEDS:,} names")
    for name in content:
        if not isinstance(name, str) or not re.search("[A-Za-z0-9]", name) or len(name) > 256:
            raise UserError(f"{path}: {str(name)[:40]!r} should be a name; the file is {example}")
    check_spelling(content, str(path))
    return {name: check_positive(speed, str(path), name) for name, speed in content.items()}


def check_spelling(names: Iterable[str], where: str) -> None:
    """UserError for a known type in other letters: it would be a type by itself, and the known one keep its speed."""
    known = {name.casefold(): name for name in GPU_SPEEDS}
    for name in names:
        if known.get(name.casefold(), name) != name:
            raise UserError(f"{where}: {name!r} should be spelled {known[name.casefold()]}")


def numbered_types(types: Iterable[str]) -> dict[str, int]:
    """What `Cluster.group_gpu_type` holds: a type's place in `GPU_TYPES`, types of one's own after those."""
    return {name: index for index, name in enumerate(dict.fromkeys((*GPU_TYPES, *types)))}


def relative_speeds(types: Iterable[str], reference: str, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> list[float]:
    """Speed of each type in units of the type `reference`. `UserError` for a type not in the table."""
    unit, *speeds = [check_positive(known_speed(name, gpu_speeds), "GPU speeds", name) for name in (reference, *types)]
    return [speed / unit for speed in speeds]


def known_speed(gpu_type: str, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> float:
    """The table's speed of a type, V100 = 1. `UserError` with the known types for another."""
    if gpu_type not in gpu_speeds:
        raise UserError(f"GPU type {gpu_type!r} has no speed; known types: {', '.join(gpu_speeds)}")
    return gpu_speeds[gpu_type]
