"""Which families of worlds there are: from what each world of a family is drawn. All ranges are ours."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from jaxsched.cluster.servers import Server
from jaxsched.errors import UserError
from jaxsched.io.files import shorten

MOST_WORLDS = 10_000
USUAL_WORLDS = 20
TRAINING = "training"

SHAPES = (
    Server(groups=(4, 4), gpu_type="V100", cores=64),
    Server(groups=(4, 4), gpu_type="H100", cores=128, pcie_gbytes_s=48),
    Server(groups=(8,), gpu_type="A100", cores=96, pcie_gbytes_s=24),
    Server(groups=(8, 8), gpu_type="V100", cores=96),
    Server(groups=(4,), gpu_type="A100", cores=32, pcie_gbytes_s=24),
    Server(groups=(2, 2), gpu_type="T4", cores=48),
)
NVLINK = (  # all GPUs of a server in one group, at a fraction of what NVLink is said to carry
    Server(groups=(8,), gpu_type="A100", cores=128, pcie_gbytes_s=250),
    Server(groups=(8,), gpu_type="H100", cores=128, pcie_gbytes_s=400),
)
TREES = ("leaf-spine", "rail", "fat-tree")
SIDES = ("dragonfly", "torus2d", "torus3d")

# How wide the widest gang is: any number of servers, more than a rack, at most one server, or as plans of models say.
ANY_WIDTH, WIDE, KIND, PLANNED = WIDTHS = ("any", "wide", "kind", "planned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Ranges that a world is drawn from, each choice with equal chances, each interval evenly."""

    about: str
    servers: tuple[int, ...] = (8, 12, 16, 24, 32, 48, 64)
    racks: tuple[int, ...] = (2, 4, 8, 16)  # servers of a rack, unit or router; there are at least two
    shapes: tuple[Server, ...] = SHAPES
    types: tuple[int, ...] = (1,)  # shapes of servers side by side
    topologies: tuple[str, ...] = (*TREES, *SIDES)
    nic_gbits_s: tuple[float, ...] = (10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
    oversubscription: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    schedulers: tuple[int, ...] = (1, 1, 1, 2)
    width: str = ANY_WIDTH
    load: tuple[float, float] = (0.5, 0.9)  # of what all GPUs could do
    jobs: int = 500
    contended: bool = False  # worlds are drawn until no plain rule is near the bound: see `world.CONTENDED`
    fixed: bool = False  # all its worlds have the same hardware and models, and jobs of one kind: a task for learners


_LARGE = tuple(shape for shape in SHAPES if sum(shape.groups) == 8)
FAMILIES: Mapping[str, Family] = {
    "any": Family(about="8 to 64 servers on any network"),
    "wide": Family(
        about="as any; the widest gangs need more than a rack", servers=(16, 24, 32, 48, 64), width=WIDE
    ),
    "contended": Family(about="as any, where the best plain rule is over 1.15 of the bound", contended=True),
    "mixed": Family(about="as any, with two or three types of GPUs", types=(2, 3)),
    "partitioned": Family(
        about="as any, with two to four schedulers", servers=(16, 24, 32, 48, 64), schedulers=(2, 3, 4)
    ),
    "kind": Family(about="as any; every gang fits into a server", width=KIND),
    "llm": Family(
        about="32 to 128 servers with NVLink throughout; published language models with plans, 2 to 256 GPUs",
        servers=(32, 48, 64, 96, 128), shapes=NVLINK, topologies=TREES, nic_gbits_s=(200.0, 400.0, 800.0, 1600.0),
        schedulers=(1,), width=PLANNED, jobs=300,
    ),
    "servers-1024": Family(
        about="1,024 servers of several GPU types, 16 schedulers, 8,192 jobs", servers=(1024,), racks=(8, 16, 32),
        shapes=_LARGE, types=(2, 3), topologies=TREES, schedulers=(16,), jobs=8192,
    ),
    "servers-4096": Family(
        about="4,096 servers of several GPU types, 32 schedulers, 32,768 jobs", servers=(4096,), racks=(8, 16, 32),
        shapes=_LARGE, types=(2, 3), topologies=TREES, schedulers=(32,), jobs=32768,
    ),
    "task-tiny": Family(
        about="a task: 4 servers of 8 GPUs, two schedulers", servers=(4,), racks=(2,), shapes=SHAPES[:1],
        topologies=("leaf-spine",), nic_gbits_s=(10.0,), oversubscription=(4.0,), schedulers=(2,), load=(0.85, 0.85),
        jobs=60, fixed=True,
    ),
    "task-small": Family(
        about="a task: 16 servers of 8 GPUs, four schedulers", servers=(16,), racks=(4,), shapes=SHAPES[:1],
        topologies=("leaf-spine",), nic_gbits_s=(25.0,), oversubscription=(4.0,), schedulers=(4,), load=(0.85, 0.85),
        jobs=150, fixed=True,
    ),
    "task-wide": Family(
        about="a task: a torus of 16 servers of 4 GPUs, one scheduler, gangs of up to 4 servers", servers=(16,),
        shapes=SHAPES[4:5], topologies=("torus2d",), nic_gbits_s=(10.0,), oversubscription=(4.0,), schedulers=(1,),
        load=(0.85, 0.85), jobs=100, width=WIDE, fixed=True,
    ),
}  # fmt: skip
TASKS = tuple(name for name, family in FAMILIES.items() if family.fixed)


class Choice(NamedTuple):
    """What `--worlds` asks for."""

    family: str
    worlds: int = USUAL_WORLDS
    training: bool = False  # worlds that learners may have seen

    @property
    def spelt(self) -> str:
        """As the command line has it."""
        return f"{self.family}:{self.worlds}" + (f":{TRAINING}" if self.training else "")


def parse_worlds(text: str) -> Choice:
    """NAME[:COUNT[:training]]. UserError with the known families, or the range of the count."""
    name, *rest = text.split(":")
    if name not in FAMILIES:
        raise UserError(f"worlds: unknown family {shorten(name)!r}; known are {', '.join(FAMILIES)}")
    if len(rest) > 2 or rest[1:] not in ([], [TRAINING]):
        raise UserError(f"worlds: {shorten(text)!r} should be NAME, NAME:COUNT or NAME:COUNT:{TRAINING}")
    count = rest[0] if rest else str(USUAL_WORLDS)
    if not (count.isascii() and count.isdecimal() and len(count) < 9 and 1 <= int(count) <= MOST_WORLDS):
        raise UserError(
            f"worlds: {shorten(text)!r}: {shorten(count)!r} should be a number of worlds from 1 to {MOST_WORLDS:,}"
        )
    return Choice(name, int(count), len(rest) == 2)
