"""Clusters by name or by file: `get_cluster("leaf-spine-32")`, `get_cluster("nodes.csv", schedulers=8)`.

The native cluster file is YAML:

    servers:                    # one entry per kind of server, in the order of the racks
      - {count: 32, groups: [4, 4], gpu_type: V100, cores: 64, pcie_gbytes_s: 12, qpi_gbytes_s: 20, nic_gbits_s: 25}
      - {count: 8, groups: [2], gpu_type: L40S}
    topology: {kind: leaf-spine, servers_per_rack: 8, oversubscription: 2.0}
    schedulers: 4               # optional, one for each of so many blocks of servers; or
    partitions: {vision: 24, speech: [server3, server4], others: 14}  # names, how many servers each has, or which
    gpu_speeds: {L40S: 1.4}     # optional: further GPU types, in units of a V100 (assumption of the file's author)

Servers are called server0, server1, ... in the order of the file. Jobs go to the partition that is called as their
tenant is. Only `servers` is required; every key of a server and of the topology has the default of `Server` and of
the builder. A topology's kind is a name of `TOPOLOGIES`, its other keys are those of that builder. Its NIC
speed is the fastest of the servers unless `nic_gbits_s` says otherwise. Every fault is a one-line `UserError` with
the file, the field (or line, for YAML's own syntax), what is wrong and what would be right.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from jaxsched.border import checked, perhaps
from jaxsched.cluster.gpu_types import GPU_SPEEDS, check_spelling, known_speed, read_gpu_speeds
from jaxsched.cluster.inventory import Inventory, make_inventory, read_csv
from jaxsched.cluster.servers import MAX_SERVERS, Server, default_schedulers, named_rows, pad_rows, partition_rows
from jaxsched.cluster.topologies import TOPOLOGIES, TRAY, find_blocks
from jaxsched.cluster.topology import Topology, leaf_spine
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.io.schema import Size, Text, bad_field, check_mapping, check_whole, convert
from jaxsched.io.yaml_file import read_yaml

Positive = Annotated[float, Meta(ge=1e-9, le=1e9)]
ENTRY = msgspec.defstruct(  # of `servers`: the fields of `Server`, and how many there are of it
    "Entry",
    [
        ("count", Annotated[int, Meta(ge=1, le=MAX_SERVERS)], 1),
        *((field.name, field.type, field.default) for field in dataclasses.fields(Server)),
    ],
)


class File(msgspec.Struct):
    """What a file may hold, by type and size; names of keys are checked before, servers by `ENTRY` and `Server`."""

    servers: Annotated[list[Any], Meta(min_length=1, max_length=MAX_SERVERS)]
    topology: dict[Text, Any] = {}  # checked by what builds it
    schedulers: Size | None = None
    partitions: dict[Text, Annotated[int, Meta(ge=1, le=MAX_SERVERS)] | Annotated[list[Text], Meta(min_length=1)]] = {}
    gpu_speeds: dict[Text, Positive] = {}


def read_cluster_file(path: str | Path, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> Inventory:
    """The inventory that a native YAML file describes; raises `UserError` for whatever is wrong with it."""
    content = _load(path)
    check_spelling(content.gpu_speeds, str(path))
    speeds = {**gpu_speeds, **content.gpu_speeds}
    servers = _servers(content.servers, f"{path}: servers", speeds)
    topology = _topology(content.topology, f"{path}: topology", servers)
    names = tuple(f"server{row}" for row in range(len(servers)))
    if content.partitions and content.schedulers is not None:
        raise UserError(f"{path}: has schedulers and partitions; leave one of the two out")
    partitions = named_rows(content.partitions, names, f"{path}: partitions") if content.partitions else {}
    schedulers = len(partitions) or content.schedulers or default_schedulers(servers)
    try:
        rows = pad_rows([*partitions.values()]) if partitions else partition_rows(len(servers), schedulers)
        find_blocks(servers, topology, rows)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Inventory(servers, names, topology, schedulers, speeds, partitions)


def _load(path: str | Path) -> File:
    content = read_yaml(path, __name__)
    if content is None:
        raise UserError(f"{path}: the file is empty; it must have at least the key servers")
    return convert(File, check_mapping(content, str(path), File.__struct_fields__), str(path))


def _servers(entries: Sequence[Any], where: str, speeds: Mapping[str, float]) -> tuple[Server, ...]:
    servers: list[Server] = []
    for place, entry in enumerate(entries):
        here = f"{where}[{place}]"
        fields = msgspec.structs.asdict(convert(ENTRY, check_mapping(entry, here, ENTRY.__struct_fields__), here))
        count = check_whole(fields.pop("count"), here, "count", 1, MAX_SERVERS - len(servers))
        try:
            server = Server(**fields)
            known_speed(server.gpu_type, speeds)
        except UserError as error:
            raise UserError(f"{here}: {error}") from None
        servers += [server] * count
    return tuple(servers)


def _topology(value: Mapping[str, Any], where: str, servers: tuple[Server, ...]) -> Topology:
    kind = value.get("kind", "leaf-spine")
    if not isinstance(kind, str) or kind not in TOPOLOGIES:
        raise bad_field(where, "kind", kind, f"one of {', '.join(TOPOLOGIES)}")
    options = [name for name in inspect.signature(TOPOLOGIES[kind]).parameters if name != "num_servers"]
    fields = {key: option for key, option in check_mapping(value, where, ("kind", *options)).items() if key != "kind"}
    fields.setdefault("nic_gbits_s", max(server.nic_gbits_s for server in servers))
    try:
        return TOPOLOGIES[kind](len(servers), **fields)
    except UserError as error:
        raise UserError(f"{where.rpartition(': ')[0]}: {error}") from None


SERVERS = {"nvl72": TRAY}  # of a preset; others have `Server()`


if TYPE_CHECKING:
    from jaxsched.cluster.hardware import Cluster

PHILLY_BIG_SERVERS = 231
PHILLY_SMALL_SERVERS = 321
PHILLY_SERVERS_PER_RACK = 8


def preset_names() -> tuple[str, ...]:
    """The names `get_cluster` knows; N stands for the number of servers: of 8 GPUs, or trays of 4 in racks."""
    return (*(f"{kind}-N" for kind in TOPOLOGIES), "philly")


@checked
def get_cluster(
    name_or_path: "str | Path | Cluster", schedulers: int | None = None, gpu_speeds: str | Path | None = None
) -> "Cluster":
    """The cluster of a preset or of a file, cut into partitions; or one that is given, as it is.

    Args:
        name_or_path: a name of `preset_names`, or a file: `.csv` (node list or host map, by its header), `.yaml` or
            `.yml` (cluster file).
        schedulers: partitions; None: as the file says, else one per 16 servers, at least 2.
        gpu_speeds: a file of further GPU types (`gpu_types.read_gpu_speeds`).

    Returns:
        The arrays of its hardware; padding fills partitions of unequal size.

    Raises:
        UserError: there is no such preset, the file is not as it should be, or a partition would be empty.
    """
    if isinstance(name_or_path, str | Path):
        return get_inventory(str(name_or_path), gpu_speeds).build(schedulers)
    from jaxsched.cluster.hardware import Cluster

    if not isinstance(name_or_path, Cluster):
        shown = shorten(" ".join(repr(name_or_path).split()))
        raise UserError(f"cluster: {shown} should be a name, a file or a cluster")
    if schedulers not in (None, name_or_path.shape[0]) or gpu_speeds is not None:
        raise UserError("schedulers, gpu_speeds: are for clusters by name or file; one that is given stays as it is")
    return name_or_path


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
            f"unknown cluster {shorten(name_or_path)!r}{_perhaps(name_or_path)}; "
            f"give one of {', '.join(preset_names())} (such as leaf-spine-32)"
            " or the path of a .csv (node list, host map) or .yaml file"
        )
    kind, num_servers = sized[1], int(sized[2])
    if not 1 <= num_servers <= MAX_SERVERS:
        raise UserError(f"cluster {name_or_path!r} has {num_servers} servers; it must have 1 to {MAX_SERVERS}")
    try:
        topology = TOPOLOGIES[kind](num_servers)
    except UserError as error:
        raise UserError(f"cluster {name_or_path!r}: {error}") from None
    return make_inventory([SERVERS.get(kind, Server())] * num_servers, topology)


def _perhaps(name: str) -> str:
    """The preset that is nearest, with the number of servers that was asked for."""
    kind, _, size = name.rpartition("-")
    return perhaps(name, [*(f"{known}-{size}" for known in TOPOLOGIES if kind), "philly"])


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
