"""The native cluster file (YAML).

    servers:                    # one entry per kind of server, in the order of the racks
      - {count: 32, groups: [4, 4], gpu_type: V100, cores: 64, pcie_gbytes_s: 12, qpi_gbytes_s: 20, nic_gbits_s: 25}
      - {count: 8, groups: [2], gpu_type: L40S}
    topology: {kind: leaf-spine, servers_per_rack: 8, oversubscription: 2.0}
    schedulers: 4               # optional
    gpu_speeds: {L40S: 1.4}     # optional: further GPU types, in units of a V100 (assumption of the file's author)

Only `servers` is required; every key of a server and of the topology has the default of `Server` and of the builder.
A topology's kind is a name of `topologies.registry`, its other keys are those of that builder. Its NIC speed is the
fastest of the servers unless `nic_gbits_s` says otherwise. Every fault is a one-line `UserError` with the file, the
field (or line, for YAML's own syntax), what is wrong and what would be right.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsched.cluster.build import default_schedulers, partition_rows
from jaxsched.cluster.inventory import Inventory
from jaxsched.cluster.servers import GPU_SPEEDS, MAX_SERVERS, Server, known_speed
from jaxsched.cluster.topologies.registry import TOPOLOGIES
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError
from jaxsched.fields import bad_field, check_mapping, check_positive, check_whole
from jaxsched.yaml_file import read_yaml

FILE_KEYS = ("servers", "topology", "schedulers", "gpu_speeds")
SERVER_KEYS = ("count", *(field.name for field in dataclasses.fields(Server)))


def read_cluster_file(path: str | Path) -> Inventory:
    """The inventory that a native YAML file describes; raises `UserError` for whatever is wrong with it."""
    content = check_mapping(_load(path), str(path), FILE_KEYS)
    speeds = _gpu_speeds(content.get("gpu_speeds", {}), f"{path}: gpu_speeds")
    servers = _servers(content.get("servers"), f"{path}: servers", speeds)
    topology = _topology(content.get("topology", {}), f"{path}: topology", servers)
    schedulers = content.get("schedulers", default_schedulers(len(servers)))
    try:
        partition_rows(len(servers), schedulers)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    names = tuple(f"server{row}" for row in range(len(servers)))
    return Inventory(servers, names, topology, schedulers, speeds)


def _load(path: str | Path) -> Any:
    content = read_yaml(path, __name__)
    if content is None:
        raise UserError(f"{path}: the file is empty; it must have at least the key servers")
    return content


def _gpu_speeds(value: Any, where: str) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: found {value!r}; it must map GPU types to speeds, e.g. {{L40S: 1.4}} (V100 = 1)")
    own = {str(name): check_positive(speed, where, str(name), "V100 = 1") for name, speed in value.items()}
    return {**GPU_SPEEDS, **own}


def _servers(value: Any, where: str, speeds: Mapping[str, float]) -> tuple[Server, ...]:
    if not isinstance(value, list) or not value:
        raise bad_field(where, "the list", value, "one entry per kind of server, e.g. [{count: 32, groups: [4, 4]}]")
    servers: list[Server] = []
    for index, entry in enumerate(value):
        here = f"{where}[{index}]"
        fields = dict(check_mapping(entry, here, SERVER_KEYS))
        count = check_whole(fields.pop("count", 1), here, "count", 1, MAX_SERVERS - len(servers))
        if isinstance(fields.get("groups"), list):
            fields["groups"] = tuple(fields["groups"])
        try:
            server = Server(**fields)
            known_speed(server.gpu_type, speeds)
        except UserError as error:
            raise UserError(f"{here}: {error}") from None
        servers += [server] * count
    return tuple(servers)


def _topology(value: Any, where: str, servers: tuple[Server, ...]) -> Topology:
    kind = value.get("kind", "leaf-spine") if isinstance(value, Mapping) else "leaf-spine"
    if not isinstance(kind, str) or kind not in TOPOLOGIES:
        raise bad_field(where, "kind", kind, f"one of {', '.join(TOPOLOGIES)}")
    options = [name for name in inspect.signature(TOPOLOGIES[kind]).parameters if name != "num_servers"]
    fields = {key: option for key, option in check_mapping(value, where, ("kind", *options)).items() if key != "kind"}
    fields.setdefault("nic_gbits_s", max(server.nic_gbits_s for server in servers))
    try:
        return TOPOLOGIES[kind](len(servers), **fields)
    except UserError as error:
        raise UserError(f"{where.rpartition(': ')[0]}: {error}") from None
