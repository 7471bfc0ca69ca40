"""From servers and a topology to the padded arrays of a `Cluster`. Plain NumPy, once, on the host."""

from collections.abc import Mapping, Sequence

import numpy as np
from jax import Array
from jaxtyping import Float32, Int

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
from jaxsched.cluster.topologies.nvl72 import find_blocks
from jaxsched.cluster.topology import Topology
from jaxsched.errors import UserError
from jaxsched.pytree import on_device

MAX_ROUTE_BYTES = 8 * 2**30  # route is dense: P T T E floats


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
    racks = _local_racks(rows, np.asarray(topology.server_rack))
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
    return Cluster(**leaves, gpu_types=tuple(numbers))


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


def _local_racks(rows: Int[np.ndarray, "P N"], server_rack: Int[np.ndarray, "S"]) -> Int[np.ndarray, "P T"]:
    """Global racks of each partition, ascending, -1 = padding."""
    return _padded([np.unique(server_rack[block[block >= 0]]) for block in rows], -1)


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
    """`path` and `path_share` of a cluster with these routes."""
    crossed = np.nonzero(route)
    pair = np.ravel_multi_index(crossed[:3], route.shape[:3])
    hop = np.arange(len(pair)) - np.searchsorted(pair, pair)  # which of its pair's links
    size = (*route.shape[:3], hop.max(initial=0) + 1)
    path, share = np.zeros(size, np.int32), np.zeros(size, np.float32)
    path[(*crossed[:3], hop)], share[(*crossed[:3], hop)] = crossed[3], route[crossed]
    return {"path": on_device(path, np.int32), "path_share": on_device(share, np.float32)}


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
