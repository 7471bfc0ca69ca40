"""Clusters of different sizes and topologies in common array shapes, so that one program simulates them side by side.

`stack(clusters)` has a leading axis over clusters: as `EnvParams.cluster` under `vmap` every environment has its own
network. A padded cluster simulates the same starts and finishes as the original (policies that draw random numbers
apart: they draw one per array entry).
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.pytree import on_device


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
    )


def stack(clusters: Sequence[Cluster], shape: Shape | None = None) -> Cluster:
    """The clusters padded to `shape` (default: their common one) and stacked: every leaf has a new leading axis."""
    shape = common_shape(clusters) if shape is None else shape
    names = tuple(dict.fromkeys(name for cluster in clusters for name in cluster.gpu_types))
    alike = [renumber_types(pad(cluster, shape), names) for cluster in clusters]
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
