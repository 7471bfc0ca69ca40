"""The resource vector of a partition: every capacity a job can contend for, on one axis `M`.

`M = [cpu of NK groups | pcie of NK groups | qpi of N servers | nic of N servers | E links]`. One flat axis lets totals,
shares and slowdowns be matmuls and reductions, without a special case per channel. GPUs that jobs share are not on it:
a job lies on one of them at most (`dynamics.gpu_sharing`).

Totals are the summed utilisation of every resource, with the links that partitions share; where links are few without a
`scatter`, which no loop holds that becomes one function (`machine.loop_options`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from jaxsched.cluster.hardware import Cluster

CHANNELS = ("cpu", "pcie", "qpi", "nic", "link", "gpu")
CPU, PCIE, QPI, NIC, LINK, GPU = range(6)


class Layout(NamedTuple):
    """Static sizes of a partition and the slices of its resource axis."""

    servers: int  # N
    groups: int  # K per server
    links: int  # E

    @property
    def size(self) -> int:
        """M."""
        return 2 * self.nk + 2 * self.servers + self.links

    @property
    def nk(self) -> int:
        """GPU groups of the partition."""
        return self.servers * self.groups

    @property
    def cpu(self) -> slice:
        return slice(0, self.nk)

    @property
    def pcie(self) -> slice:
        return slice(self.nk, 2 * self.nk)

    @property
    def qpi(self) -> slice:
        return slice(2 * self.nk, 2 * self.nk + self.servers)

    @property
    def nic(self) -> slice:
        return slice(2 * self.nk + self.servers, 2 * self.nk + 2 * self.servers)

    @property
    def link(self) -> slice:
        return slice(2 * self.nk + 2 * self.servers, self.size)

    @property
    def wires(self) -> tuple[tuple[int, slice], ...]:
        """Channel and slice of everything that carries communication: all but the CPU."""
        return (PCIE, self.pcie), (QPI, self.qpi), (NIC, self.nic), (LINK, self.link)


def layout_of(cluster: Cluster) -> Layout:
    """The layout shared by all partitions of `cluster` (with or without the leading P axis)."""
    return Layout(cluster.group_gpus.shape[-2], cluster.group_gpus.shape[-1], cluster.link_id.shape[-1])


def comm_capacity(cluster: Cluster) -> Float32[Array, "wires"]:
    """Bytes/s of the communication resources (all but the CPU) of one partition (no leading P axis)."""
    return jnp.concatenate(
        [
            cluster.pcie_bytes_s.reshape(-1),
            cluster.qpi_bytes_s,
            cluster.nic_bytes_s,
            cluster.link_bytes_s[cluster.link_id],
        ]
    )


PAIRS = 64  # links' places of which every one is compared with every other; more are scattered


def link_totals(cluster: Cluster, own: Float32[Array, "P M"]) -> Float32[Array, "P E"]:
    """Utilisation of each partition's links by all running jobs, of every partition that reaches them."""
    on_link, place = own[:, layout_of(cluster).link], cluster.link_id
    if place.size > PAIRS:
        return jnp.zeros_like(cluster.link_bytes_s).at[place].add(on_link)[place]
    same = place.reshape(-1, 1) == place.reshape(-1)
    return jnp.where(same, on_link.reshape(-1), 0.0).sum(-1).reshape(place.shape)


def with_links(own: Float32[Array, "*P M"], on_links: Float32[Array, "*P E"]) -> Float32[Array, "*P M"]:
    """Utilisation of every resource by all running jobs: only links have those of other partitions, too."""
    return jnp.concatenate([own[..., : own.shape[-1] - on_links.shape[-1]], on_links], -1)
