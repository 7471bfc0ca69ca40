"""From servers and a topology to the padded arrays of a `Cluster`; and clusters in common array shapes.

`build` is plain NumPy, once, on the host. `stack(clusters)` has a leading axis over clusters of different sizes and
topologies: as `EnvParams.cluster` under `vmap` every environment has its own network, in one program. A padded cluster
simulates the same starts and finishes as the original (policies that draw random numbers apart: they draw one per array
entry).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float32, Int

from jaxsched.cluster.gpu_types import GPU_SPEEDS, numbered_types, relative_speeds
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import (
    BYTES_S_PER_GBITS_S,
    BYTES_S_PER_GBYTES_S,
    Server,
    gpu_types,
    most_frequent_type,
    partition_rows,
)
from jaxsched.cluster.topologies import find_blocks
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError
from jaxsched.pytree import on_device

MAX_ROUTE_BYTES = 8 * 2**30  # route is dense: P T T E floats
UNEVEN = 0.01  # links by which distances between racks differ at least, where shares of routes are not merely rounded


def build(
    servers: Sequence[Server], topology: Topology, schedulers: int, gpu_speeds: Mapping[str, float] = GPU_SPEEDS
) -> Cluster:
    """The cluster of `servers` (row i stands in rack `topology.server_rack[i]`), one partition per scheduler.

    Partitions are contiguous blocks of N = ceil(S / P) rows; the last may be shorter and is padded. K is the most
    groups of any server, T and E the most racks and links of any partition (E >= 1). A padding entry has every capacity
    1, 0 GPUs, server, rack and GPU type -1 (`server_rack`: 0) and the dummy link. A partition's links are those that a
    route between two of its own racks uses. `gpu_speeds` may be on any scale: the type of most GPUs becomes 1.

    Raises `UserError` for a number of schedulers that leaves a partition empty (the message names a legal one), an
    unknown GPU type, a topology of another size, a rack that is an NVLink domain in part or in two partitions, or route
    tables above 8 GiB.
    """
    return build_rows(servers, topology, partition_rows(len(servers), schedulers), gpu_speeds)


def build_rows(
    servers: Sequence[Server],
    topology: Topology,
    rows: Int[np.ndarray, "P N"],
    gpu_speeds: Mapping[str, float] = GPU_SPEEDS,
) -> Cluster:
    """`build` with partitions of one's own: `rows` are the servers of each partition, -1 = padding."""
    if len(servers) != len(topology.server_rack):
        raise UserError(f"topology: places {len(topology.server_rack)} servers, but the cluster has {len(servers)}")
    blocks = find_blocks(servers, topology, rows)
    numbers = numbered_types(gpu_types(servers))
    server_rack = np.asarray(topology.server_rack)
    racks = _padded([np.unique(server_rack[block[block >= 0]]) for block in rows], -1)  # global ones
    link_id, route = _local_routes(racks, topology)
    local_rack = [
        np.where(block >= 0, np.searchsorted(own[own >= 0], topology.server_rack[block]), 0)
        for block, own in zip(rows, racks, strict=True)
    ]
    leaves = {
        **_server_arrays(servers, rows, gpu_speeds),
        "server_id": on_device(rows, np.int32),
        "server_rack": on_device(np.stack(local_rack), np.int32),
        "rack_id": on_device(racks, np.int32),
        "domain_block": on_device(np.where(racks >= 0, blocks[racks], 0)[:, : blocks.any() * racks.shape[1]], np.int32),
        "link_bytes_s": on_device(np.append(topology.link_bytes_s, 1.0), np.float32),
        "link_id": on_device(link_id, np.int32),
        "route": on_device(route, np.float32),
        **list_paths(route),
        "reference": on_device(numbers[most_frequent_type(servers)], np.int32),
    }
    own = tuple((name, float(speed)) for name, speed in gpu_speeds.items() if GPU_SPEEDS.get(name) != speed)
    return Cluster(**leaves, gpu_types=tuple(numbers), own_speeds=own)


def _server_arrays(
    servers: Sequence[Server], rows: Int[np.ndarray, "P N"], gpu_speeds: Mapping[str, float]
) -> dict[str, Array]:
    """The [P, N, K] and [P, N] leaves: tables with one row per server and a last one for padding (row -1)."""
    types = gpu_types(servers)
    speeds, numbers = relative_speeds(types, most_frequent_type(servers), gpu_speeds), numbered_types(types)
    size = (len(servers) + 1, max(len(server.groups) for server in servers))
    gpus, gpu_type = np.zeros(size, np.int32), np.full(size, -1, np.int32)
    speed, cores, pcie = np.ones(size), np.ones(size), np.ones(size)
    qpi, nic, reservable = np.ones(size[0]), np.ones(size[0]), np.zeros((size[0], 2), np.int64)
    for row, server in enumerate(servers):
        own = slice(0, len(server.groups))
        gpus[row, own] = server.groups
        gpu_type[row, own] = numbers[server.gpu_type]
        speed[row, own] = speeds[types.index(server.gpu_type)]
        cores[row, own] = server.cores / len(server.groups)
        pcie[row, own] = server.pcie_gbytes_s * BYTES_S_PER_GBYTES_S
        inside = server.qpi_gbytes_s if server.nvlink_gbytes_s is None else server.nvlink_gbytes_s
        qpi[row] = inside * BYTES_S_PER_GBYTES_S
        nic[row] = server.nic_gbits_s * BYTES_S_PER_GBITS_S
        reservable[row] = server.reservable
    return {
        "group_gpus": on_device(gpus[rows], np.int32),
        "group_gpu_type": on_device(gpu_type[rows], np.int32),
        "group_speed": on_device(speed[rows], np.float32),
        "group_cores": on_device(cores[rows], np.float32),
        "pcie_bytes_s": on_device(pcie[rows], np.float32),
        "qpi_bytes_s": on_device(qpi[rows], np.float32),
        "nic_bytes_s": on_device(nic[rows], np.float32),
        "reservable": on_device(reservable[rows], np.int32),
    }


def _local_routes(
    racks: Int[np.ndarray, "P T"], topology: Topology
) -> tuple[Int[np.ndarray, "P E"], Float32[np.ndarray, "P T T E"]]:
    """`link_id` and `route` over each partition's own racks."""
    _check_route_size(racks, links=racks.shape[1])  # any network of T racks has about T links or more
    shares = [_pair_shares(own[own >= 0], topology) for own in racks]
    links = [np.array(sorted({link for share in pairs.values() for link in share}), int) for pairs in shares]
    link_id = _padded(links, len(topology.link_names))
    _check_route_size(racks, links=link_id.shape[1])
    route = np.zeros((*racks.shape, racks.shape[1], link_id.shape[1]), np.float32)
    for partition, pairs in enumerate(shares):
        local = {int(link): index for index, link in enumerate(links[partition])}
        for (source, target), share in pairs.items():
            route[partition, source, target, [local[link] for link in share]] = list(share.values())
    return link_id, route


def list_paths(route: Float32[np.ndarray, "P T T E"]) -> dict[str, Array]:
    """`path`, `path_share` and `uneven` of a cluster with these routes."""
    crossed = np.nonzero(route)
    pair = np.ravel_multi_index(crossed[:3], route.shape[:3])
    hop = np.arange(len(pair)) - np.searchsorted(pair, pair)  # which of its pair's links
    size = (*route.shape[:3], hop.max(initial=0) + 1)
    path, share = np.zeros(size, np.int32), np.zeros(size, np.float32)
    path[(*crossed[:3], hop)], share[(*crossed[:3], hop)] = crossed[3], route[crossed]
    length = route.sum(-1)
    uneven = np.ptp(np.where(length > 0, length, length.max((1, 2), keepdims=True)), axis=(1, 2)) > UNEVEN
    return {
        "path": on_device(path, np.int32),
        "path_share": on_device(share, np.float32),
        "uneven": on_device(uneven[:, None][:, : int(uneven.any())], np.int32),
    }


def _check_route_size(racks: Int[np.ndarray, "P T"], links: int) -> None:
    size_bytes = 4 * racks.size * racks.shape[1] * links
    if size_bytes > MAX_ROUTE_BYTES:
        raise UserError(
            f"the routes between {racks.shape[1]} racks of one partition need {size_bytes / 1e9:.0f} GB or more; "
            f"use more than {len(racks)} schedulers, so that a partition has fewer racks"
        )


def _pair_shares(racks: Int[np.ndarray, "T"], topology: Topology) -> dict[tuple[int, int], dict[int, float]]:
    """{(local source, local target): {global link: share}} of all pairs of different racks."""
    return {
        (t, u): {link: share for link, share in topology.route(int(source), int(target)).items() if share > 0}
        for t, source in enumerate(racks)
        for u, target in enumerate(racks)
        if t != u
    }


def _padded(lists: Sequence[Int[np.ndarray, "_"]], fill: int) -> Int[np.ndarray, "P longest"]:
    """The lists as rows of one array, at least one column, filled up with `fill`."""
    width = max(1, *(len(entries) for entries in lists))
    return np.stack([np.pad(entries, (0, width - len(entries)), constant_values=fill) for entries in lists])


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a cluster's axes."""

    partitions: int  # P
    servers: int  # N, per partition
    groups: int  # K, per server
    racks: int  # T, per partition
    domains: int  # D: `racks`, or 0 where no rack is an NVLink domain
    links: int  # E, per partition
    hops: int  # H
    uneven: int  # U: 1, or 0 where no partition is, nor may become so
    all_links: int  # L, without the dummy


# Axes of every leaf but `link_bytes_s`, and what fills them up.
_AXES: dict[str, tuple[tuple[str, ...], float]] = {
    "group_gpus": (("partitions", "servers", "groups"), 0),
    "group_gpu_type": (("partitions", "servers", "groups"), -1),
    "group_speed": (("partitions", "servers", "groups"), 1),
    "group_cores": (("partitions", "servers", "groups"), 1),
    "pcie_bytes_s": (("partitions", "servers", "groups"), 1),
    "qpi_bytes_s": (("partitions", "servers"), 1),
    "nic_bytes_s": (("partitions", "servers"), 1),
    "reservable": (("partitions", "servers", "reserved"), 0),
    "server_id": (("partitions", "servers"), -1),
    "server_rack": (("partitions", "servers"), 0),
    "rack_id": (("partitions", "racks"), -1),
    "domain_block": (("partitions", "domains"), 0),
    "route": (("partitions", "racks", "racks", "links"), 0),
    "path": (("partitions", "racks", "racks", "hops"), 0),
    "path_share": (("partitions", "racks", "racks", "hops"), 0),
    "uneven": (("partitions", "uneven"), 0),
}


def shape_of(cluster: Cluster) -> Shape:
    """The shape of one cluster (no leading axis)."""
    partitions, servers, groups = cluster.group_gpus.shape
    return Shape(
        partitions=partitions,
        servers=servers,
        groups=groups,
        racks=cluster.rack_id.shape[1],
        domains=cluster.domain_block.shape[1],
        links=cluster.link_id.shape[1],
        hops=cluster.path.shape[-1],
        uneven=cluster.uneven.shape[1],
        all_links=cluster.link_bytes_s.shape[0] - 1,
    )


def common_shape(clusters: Sequence[Cluster]) -> Shape:
    """The smallest shape that every cluster can be padded to. `UserError` if there is no cluster."""
    if not clusters:
        raise UserError("no clusters to bring to a common shape; give at least one")
    shapes = [dataclasses.astuple(shape_of(cluster)) for cluster in clusters]
    shape = Shape(*(max(sizes) for sizes in zip(*shapes, strict=True)))
    return dataclasses.replace(shape, domains=shape.racks if shape.domains else 0)


def pad(cluster: Cluster, shape: Shape) -> Cluster:
    """`cluster` with its axes filled up to `shape` as `build` fills them; partitions without servers come last.

    Such partitions get no jobs: the homes of jobs count modulo the partitions that have servers. Raises `UserError` if
    the cluster is larger than `shape` on some axis.
    """
    own = dataclasses.asdict(shape_of(cluster))
    missing = {axis: size - own[axis] for axis, size in dataclasses.asdict(shape).items()} | {"reserved": 0}
    for axis, count in missing.items():
        if count < 0:
            size = own[axis] + count
            raise UserError(
                f"a cluster with {axis} = {own[axis]} cannot be padded to {axis} = {size}; give {own[axis]}"
            )
    if shape.domains not in (0, shape.racks):
        raise UserError(f"domains: {shape.domains} should be 0 or {shape.racks}, as many as racks")

    def filled(leaf: ArrayLike, axes: Sequence[str], fill: float) -> Array:
        host = np.asarray(leaf)  # a program of JAX would be compiled for every pair of shapes
        return on_device(np.pad(host, [(0, missing[axis]) for axis in axes], constant_values=fill), host.dtype)

    leaves = {name: filled(getattr(cluster, name), axes, fill) for name, (axes, fill) in _AXES.items()}
    dummy = own["all_links"]
    link_id = np.asarray(cluster.link_id)
    link_id = np.where(link_id == dummy, np.int32(shape.all_links), link_id)
    return Cluster(
        **leaves,
        link_bytes_s=filled(cluster.link_bytes_s, ("all_links",), 1),  # the old dummy becomes an unused link
        link_id=filled(link_id, ("partitions", "links"), shape.all_links),
        reference=cluster.reference,
        gpu_types=cluster.gpu_types,
        own_speeds=cluster.own_speeds,
    )


def stack(clusters: Sequence[Cluster], shape: Shape | None = None) -> Cluster:
    """The clusters padded to `shape` (default: their common one) and stacked: every leaf has a new leading axis."""
    shape = common_shape(clusters) if shape is None else shape
    names = tuple(dict.fromkeys(name for cluster in clusters for name in cluster.gpu_types))
    alike = [renumber_types(pad(cluster, shape), names).replace(own_speeds=()) for cluster in clusters]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)


def renumber_types(cluster: Cluster, names: tuple[str, ...]) -> Cluster:
    """The cluster with GPU types numbered as in `names`."""
    if cluster.gpu_types == names:
        return cluster
    number = np.array([names.index(name) for name in cluster.gpu_types] + [-1])  # the last one is padding
    kinds, reference = number[np.asarray(cluster.group_gpu_type)], number[np.asarray(cluster.reference)]
    return cluster.replace(
        group_gpu_type=on_device(kinds, np.int32), reference=on_device(reference, np.int32), gpu_types=names
    )
