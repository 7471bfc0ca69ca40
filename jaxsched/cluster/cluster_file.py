"""The native cluster file (YAML).

    servers:                    # one entry per kind of server, in the order of the racks
      - {count: 32, groups: [4, 4], gpu_type: V100, cores: 64, pcie_gbytes_s: 12, qpi_gbytes_s: 20, nic_gbits_s: 25}
      - {count: 8, groups: [2], gpu_type: L40S}
    topology: {kind: leaf-spine, servers_per_rack: 8, oversubscription: 2.0}
    schedulers: 4               # optional, one for each of so many blocks of servers; or
    partitions: {vision: 24, speech: [server3, server4], others: 14}  # names, how many servers each has, or which
    gpu_speeds: {L40S: 1.4}     # optional: further GPU types, in units of a V100 (assumption of the file's author)

Servers are called server0, server1, ... in the order of the file. Jobs go to the partition that is called as their
tenant is. Only `servers` is required; every key of a server and of the topology has the default of `Server` and of
the builder. A topology's kind is a name of `topologies.registry`, its other keys are those of that builder. Its NIC
speed is the fastest of the servers unless `nic_gbits_s` says otherwise. Every fault is a one-line `UserError` with
the file, the field (or line, for YAML's own syntax), what is wrong and what would be right.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from jaxsched.cluster.gpu_types import GPU_SPEEDS, known_speed
from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.partitions import default_schedulers, named_rows, partition_rows
from jaxsched.cluster.servers import MAX_SERVERS, Server
from jaxsched.cluster.topologies.registry import TOPOLOGIES
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError
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
    topology: dict[Text, Text | int | float | None] = {}
    schedulers: Size | None = None
    partitions: dict[Text, Annotated[int, Meta(ge=1, le=MAX_SERVERS)] | Annotated[list[Text], Meta(min_length=1)]] = {}
    gpu_speeds: dict[Text, Positive] = {}


def read_cluster_file(path: str | Path, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> Inventory:
    """The inventory that a native YAML file describes; raises `UserError` for whatever is wrong with it."""
    content = _load(path)
    speeds = {**gpu_speeds, **content.gpu_speeds}
    servers = _servers(content.servers, f"{path}: servers", speeds)
    topology = _topology(content.topology, f"{path}: topology", servers)
    names = tuple(f"server{row}" for row in range(len(servers)))
    if content.partitions and content.schedulers is not None:
        raise UserError(f"{path}: has schedulers and partitions; leave one of the two out")
    partitions = named_rows(content.partitions, names, f"{path}: partitions") if content.partitions else {}
    schedulers = len(partitions) or content.schedulers or default_schedulers(len(servers))
    try:
        if not partitions:
            partition_rows(len(servers), schedulers)
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
