"""Inventories of real clusters: node lists and host maps in CSV.

Two upstream formats are read, told apart by their header (further columns are not read, and said):

- node list, `sn,cpu_milli,memory_mib,gpu,model`: Alibaba openb 2023 (hkust-adsl/kubernetes-scheduler-simulator,
  data/csv/openb_node_list_gpu_node.csv);
- host map, `ip,DSW,PSW,ASW`: Alibaba lingjun 2023 (alibaba/alibaba-lingjun-dataset-2023, data/topo.csv).

Every fault is a one-line `UserError`: file, line, field, what is wrong and what would be right.
"""

import dataclasses
import functools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsched.cluster.gpu_types import GPU_SPEEDS, find_gpu_type
from jaxsched.cluster.servers import (
    MAX_GROUP_GPUS,
    MAX_RESERVABLE,
    MAX_SERVERS,
    Server,
    default_schedulers,
    pad_rows,
    split_gpus,
)
from jaxsched.cluster.topology import Topology, from_host_map, leaf_spine
from jaxsched.errors import NotRead, UserError
from jaxsched.io.csv_file import Table, read_table
from jaxsched.io.files import shorten
from jaxsched.io.schema import bad_field, parse_whole

if TYPE_CHECKING:
    from jaxsched.cluster.hardware import Cluster

LONGEST_NAME = 256  # characters
NODE_COLUMNS = ("sn", "cpu_milli", "gpu", "model")
MAX_CPU_MILLI = 10**8
HOST_COLUMNS = ("ip", "DSW", "PSW", "ASW")
READ = {NODE_COLUMNS: (*NODE_COLUMNS, "memory_mib"), HOST_COLUMNS: HOST_COLUMNS}  # and what may be missing


@dataclasses.dataclass(frozen=True, eq=False)
class Inventory:
    """A cluster before it is cut into partitions. Row i of `servers` and `names` is `Cluster.server_id` i."""

    servers: tuple[Server, ...]
    names: tuple[str, ...]  # as in the file, or server0, server1, ...
    topology: Topology
    schedulers: int  # unless the caller says otherwise
    gpu_speeds: Mapping[str, float] = dataclasses.field(default_factory=lambda: GPU_SPEEDS)
    partitions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """Rows of the servers of each partition that has a name, a virtual cluster; none: blocks of almost equal size."""

    def build(self, schedulers: int | None = None) -> "Cluster":
        """The padded arrays; see `jaxsched.cluster.build.build`."""
        from jaxsched.cluster.build import build, build_rows  # imports JAX, which takes a second

        if self.partitions:
            if schedulers not in (None, len(self.partitions)):
                names = ", ".join(map(shorten, self.partitions))
                raise UserError(
                    f"schedulers is {schedulers}, but the cluster's partitions have names ({names}); leave it out"
                )
            return build_rows(self.servers, self.topology, pad_rows([*self.partitions.values()]), self.gpu_speeds)
        schedulers = self.schedulers if schedulers is None else schedulers
        return build(self.servers, self.topology, schedulers, self.gpu_speeds)


def make_inventory(servers: Sequence[Server], topology: Topology, names: Sequence[str] | None = None) -> Inventory:
    """An inventory with the default number of schedulers and, unless given, numbered server names."""
    names = tuple(f"server{row}" for row in range(len(servers))) if names is None else tuple(names)
    return Inventory(tuple(servers), names, topology, default_schedulers(servers))


def read_csv(path: str | Path, gpu_speeds: Mapping[str, float] = GPU_SPEEDS) -> Inventory:
    """A node list or a host map, whichever the header says. `UserError` if it is neither.

    Other columns have no effect, and give the warning `NotRead`.
    """
    table = read_table(path, MAX_SERVERS)
    for columns in (HOST_COLUMNS, NODE_COLUMNS):
        if set(columns) <= set(table.header):
            if unread := [name for name in table.header if name not in READ[columns]]:
                warnings.warn(f"{path}: not read: {', '.join(map(shorten, unread))}", NotRead, stacklevel=2)
            return read_host_map(table) if columns == HOST_COLUMNS else read_node_list(table, gpu_speeds=gpu_speeds)
    raise UserError(
        f"{path}:1: header is {shorten(','.join(table.header), 200)}; it must have the columns of a node list "
        f"({','.join(NODE_COLUMNS)}) or of a host map ({','.join(HOST_COLUMNS)})"
    )


def read_node_list(
    path: str | Path | Table, topology: Topology | None = None, gpu_speeds: Mapping[str, float] = GPU_SPEEDS
) -> Inventory:
    """A node list: one server per row, in file order; nodes without GPUs are left out.

    `cpu_milli` are thousandths of a core, `memory_mib` may be missing or empty (no end), GPUs are split by
    `split_gpus`; what the format does not say (bandwidths) is a default `Server`'s. `model` is a type of
    `gpu_speeds`, or a product's name (`find_gpu_type`). Without a topology: leaf-spine, racks in file order
    (assumption).
    """
    table = path if isinstance(path, Table) else read_table(path, MAX_SERVERS)
    servers, names, speeds = [], [], dict(gpu_speeds)
    type_of = functools.cache(lambda product: find_gpu_type(product, gpu_speeds))
    for where, row in _rows(table, NODE_COLUMNS):
        gpus = parse_whole(row["gpu"], where, "gpu", 0, MAX_GROUP_GPUS, "the node's GPUs, e.g. 8")
        if gpus == 0:
            continue
        milli = parse_whole(row["cpu_milli"], where, "cpu_milli", 1, MAX_CPU_MILLI, "thousandths of a core, e.g. 64000")
        found = type_of(row["model"])
        if found is None:
            text = f"unknown GPU type {shorten(repr(row['model']), 60)}; known types: {', '.join(gpu_speeds)}"
            raise UserError(f"{where}: model: {text}; --gpu-speeds FILE tells the speeds of others")
        speeds[found.name] = found.speed
        stated = row.get("memory_mib", "")
        memory = parse_whole(stated, where, "memory_mib", 1, MAX_RESERVABLE, "MiB, e.g. 262144") if stated else None
        servers.append(Server(groups=split_gpus(gpus), gpu_type=found.name, cores=milli / 1000, memory_mib=memory))
        names.append(row["sn"])
    if not servers:
        raise UserError(f"{table.path}: no node has GPUs; at least one row must have gpu above 0")
    inventory = make_inventory(servers, leaf_spine(len(servers)) if topology is None else topology, names)
    return dataclasses.replace(inventory, gpu_speeds=speeds)


def read_host_map(path: str | Path | Table, server: Server | None = None) -> Inventory:
    """A host map: every host is `server` (default: 8 GPUs), in a three-layer Clos (`from_host_map`).

    Hosts are sorted by (DSW, PSW, ASW), numbers in names by value, so that a partition is a contiguous piece of the
    network; hosts of one rack stay in file order.
    """
    server = Server() if server is None else server
    table = path if isinstance(path, Table) else read_table(path, MAX_SERVERS)
    hosts = [row for _, row in _rows(table, HOST_COLUMNS)]
    hosts.sort(key=lambda row: [_natural(row[layer]) for layer in HOST_COLUMNS[1:]])
    topology = from_host_map([(row["DSW"], row["PSW"], row["ASW"]) for row in hosts], server.nic_gbits_s)
    return make_inventory([server] * len(hosts), topology, [row["ip"] for row in hosts])


def _rows(table: Table, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(file:line, {column: stripped cell}) of each row. The first column is a name: not empty, not twice."""
    path, header = table.path, table.header
    missing = [column for column in columns if column not in header]
    if missing:
        raise UserError(f"{path}:1: header lacks {', '.join(missing)}; it must have {','.join(columns)}")
    if not table.rows:
        raise UserError(f"{path}: no rows below the header; it must have one per server")
    seen: dict[str, int] = {}
    for line, cells in table.rows:
        where = f"{path}:{line}"
        row = {column: cell.strip() for column, cell in zip(header, cells)}
        for column in columns[:1] if columns == NODE_COLUMNS else columns:
            if not 1 <= len(row[column]) <= LONGEST_NAME:
                raise bad_field(where, column, row[column], f"a name of at most {LONGEST_NAME} characters")
        if row[columns[0]] in seen:
            raise bad_field(where, columns[0], row[columns[0]], f"unique, but line {seen[row[columns[0]]]} has it too")
        seen[row[columns[0]]] = line
        yield where, row


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts P8 before P10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts)]
