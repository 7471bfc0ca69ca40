"""The hardware of a GPU cluster as arrays: partitions, servers, GPU groups, racks and links.

Axes, here and everywhere: `P` partitions (one scheduler each), `N` servers per partition, `K` GPU groups per server,
`T` racks per partition, `E` links that a partition can reach, `L` links in all. Smaller partitions and servers are
padded with groups of 0 GPUs; every capacity of a padding entry is 1 so that no division needs a mask. `cluster.padding`
brings clusters of different shapes to one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import ArrayLike, Float32, Int, Int32

from jaxsched.cluster.gpu_types import GPU_TYPES
from jaxsched.pytree import Pytree, static


class Cluster(Pytree):
    """A partitioned cluster. Every leaf may be swept or vmapped; bandwidths are bytes/s per direction."""

    group_gpus: Int32[Array, "P N K"]  # 0 = padding
    group_gpu_type: Int32[Array, "P N K"]  # see `servers.numbered_types`, -1 = padding
    group_speed: Float32[Array, "P N K"]  # relative to the cluster's reference type
    group_cores: Float32[Array, "P N K"]  # CPU cores of the socket
    pcie_bytes_s: Float32[Array, "P N K"]
    qpi_bytes_s: Float32[Array, "P N"]
    nic_bytes_s: Float32[Array, "P N"]
    server_id: Int32[Array, "P N"]  # row in the inventory, -1 = padding
    server_rack: Int32[Array, "P N"]  # rack index local to the partition, 0..T-1
    rack_id: Int32[Array, "P T"]  # global rack number, -1 = padding
    link_bytes_s: Float32[Array, "links"]  # the last entry is a dummy of capacity 1
    link_id: Int32[Array, "P E"]  # global link of a local link, L = padding (the dummy)
    route: Float32[Array, "P T T E"]  # share of the traffic rack t -> rack u that crosses local link e
    reference: Int32[Array, ""]  # the GPU type that run times are on: that of most GPUs
    gpu_types: tuple[str, ...] = static(default=GPU_TYPES)  # names of the numbers in `group_gpu_type`

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, N, K)."""
        partitions, servers, groups = self.group_gpus.shape[-3:]
        return partitions, servers, groups

    def _repr_html_(self) -> str | None:
        """In a notebook: a square per GPU, in the colour of its type. None where it is batched or traced."""
        from jaxsched.cluster.drawing import hue, servers_svg

        leaves = jax.tree.leaves(self)
        if self.group_gpus.ndim != 3 or any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        gpus, kinds = np.asarray(self.group_gpus), np.asarray(self.group_gpu_type)
        titles = [
            f"scheduler {p}: {(gpus[p].sum(-1) > 0).sum()} servers, {gpus[p].sum()} GPUs" for p in range(len(gpus))
        ]
        key = {self.gpu_types[kind]: hue(kind) for kind in np.unique(kinds[gpus > 0]).tolist()}
        return servers_svg(gpus, lambda p, n, k: [hue(int(kinds[p, n, k]))] * int(gpus[p, n, k]), titles, key)


def total_gpus(cluster: Cluster) -> int:
    """Number of GPUs of the cluster (a concrete, not a traced, one)."""
    return int(np.asarray(cluster.group_gpus).sum())


def reference_type(cluster: Cluster) -> str:
    """Name of the GPU type that run times are on (a concrete cluster's)."""
    return cluster.gpu_types[int(cluster.reference)]


def distinct_speeds(cluster: Cluster) -> int:
    """How many different speeds GPUs have (a concrete cluster's): 1 where all are of one type."""
    return len(np.unique(np.asarray(cluster.group_speed)[np.asarray(cluster.group_gpus) > 0])) or 1


def real_partitions(cluster: Cluster) -> Int32[Array, ""]:
    """How many partitions there are without those at the end that only pad; at least 1."""
    number = jnp.arange(1, cluster.server_id.shape[0] + 1)
    return jnp.where((cluster.server_id >= 0).any(-1), number, 1).max()


def group_capacity(
    group_gpus: Int32[Array, "*#groups"], gpus_per_worker: Int[ArrayLike, "*#groups"]
) -> Int32[Array, "*#groups"]:
    """How many workers of `gpus_per_worker` GPUs fit on groups with `group_gpus` (free) GPUs, broadcast."""
    return group_gpus // jnp.maximum(gpus_per_worker, 1)


def partition_axes(cluster: Cluster) -> Cluster:
    """`in_axes` that maps a function of one partition over all: what is not per partition is shared."""
    return jax.tree.map(lambda _: 0, cluster).replace(link_bytes_s=None, reference=None)


def one_partition(cluster: Cluster, partition: Int[ArrayLike, ""]) -> Cluster:
    """A single partition, by its number, without the leading axis P."""
    shared = {"link_bytes_s": cluster.link_bytes_s, "reference": cluster.reference}
    return jax.tree.map(lambda leaf: leaf[partition], cluster.replace(**dict.fromkeys(shared))).replace(**shared)
