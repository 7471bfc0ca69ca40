"""The hardware of a GPU cluster as arrays: partitions, servers, GPU groups, racks and links; and a picture.

Axes, here and everywhere: `P` partitions (one scheduler each), `N` servers per partition, `K` GPU groups per server,
`T` racks per partition, `E` links that a partition can reach, `H` links of its longest route, `L` links in all. Smaller
partitions and servers are padded with groups of 0 GPUs; every capacity of a padding entry is 1 so that no division
needs a mask. `build.pad` brings clusters of different shapes to one.

In the picture (SVG) a server is a box and a GPU a square. Sockets stand one below the other in a server, servers side
by side, partitions in rows of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import ArrayLike, Bool, Float32, Int, Int32

from jaxsched.cluster.gpu_types import GPU_TYPES
from jaxsched.pytree import Pytree, static

ENDLESS = 2**30  # workers of a job that reserves nothing


class Cluster(Pytree):
    """A partitioned cluster. Every leaf may be swept or vmapped; bandwidths are bytes/s per direction."""

    group_gpus: Int32[Array, "P N K"]  # 0 = padding
    group_gpu_type: Int32[Array, "P N K"]  # see `servers.numbered_types`, -1 = padding
    group_speed: Float32[Array, "P N K"]  # relative to the cluster's reference type
    group_cores: Float32[Array, "P N K"]  # CPU cores of the socket
    pcie_bytes_s: Float32[Array, "P N K"]
    qpi_bytes_s: Float32[Array, "P N"]
    nic_bytes_s: Float32[Array, "P N"]
    reservable: Int32[Array, "P N 2"]  # thousandths of CPU cores, and MiB, that jobs may reserve; 0 = padding
    server_id: Int32[Array, "P N"]  # row in the inventory, -1 = padding
    server_rack: Int32[Array, "P N"]  # rack index local to the partition, 0..T-1
    rack_id: Int32[Array, "P T"]  # global rack number, -1 = padding
    domain_block: Int32[Array, "P D"]  # see below; D = T, or 0 where no rack is an NVLink domain
    link_bytes_s: Float32[Array, "links"]  # the last entry is a dummy of capacity 1
    link_id: Int32[Array, "P E"]  # global link of a local link, L = padding (the dummy)
    route: Float32[Array, "P T T E"]  # share of the traffic rack t -> rack u that crosses local link e
    path: Int32[Array, "P T T H"]  # the same as lists: local links on the way from t to u, 0 = padding
    path_share: Float32[Array, "P T T H"]  # and the share that crosses each; 0 = padding
    uneven: Int32[Array, "P U"]  # 1: some racks are more links apart than others; U = 1, or 0: nowhere, ever
    reference: Int32[Array, ""]  # the GPU type that run times are on: that of most GPUs
    gpu_types: tuple[str, ...] = static(default=GPU_TYPES)  # names of the numbers in `group_gpu_type`
    """`domain_block`: of a rack that is an NVLink domain, so many servers a gang takes at most; 0: it is none."""
    own_speeds: tuple[tuple[str, float], ...] = static(default=())  # of types that `GPU_SPEEDS` lacks or has others of

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, N, K)."""
        partitions, servers, groups = self.group_gpus.shape[-3:]
        return partitions, servers, groups

    def _repr_html_(self) -> str | None:
        """In a notebook: a square per GPU, in the colour of its type. None where it is batched or traced."""
        leaves = jax.tree.leaves(self)
        if self.group_gpus.ndim != 3 or any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        gpus, kinds = np.asarray(self.group_gpus), np.asarray(self.group_gpu_type)
        titles = [
            f"scheduler {p}: {(gpus[p].sum(-1) > 0).sum()} servers, {gpus[p].sum()} GPUs" for p in range(len(gpus))
        ]
        key = {self.gpu_types[kind]: hue(kind) for kind in np.unique(kinds[gpus > 0]).tolist()}
        return servers_svg(gpus, lambda p, n, k: [hue(int(kinds[p, n, k]))] * int(gpus[p, n, k]), titles, key)


def in_domain(cluster: Cluster) -> Bool[Array, "*P N"]:
    """Whether the rack of each server is an NVLink domain; of a cluster that has some, or of a partition of it."""
    return jnp.take_along_axis(cluster.domain_block, cluster.server_rack, -1) > 0


def block_of_racks(cluster: Cluster) -> Int32[Array, "*P T"]:
    """How many servers a gang takes at most of each rack: all, as many as there may be, where it is no domain."""
    servers = cluster.server_rack.shape[-1]
    if not cluster.domain_block.size:
        return jnp.full(cluster.rack_id.shape, servers, jnp.int32)
    return jnp.where(cluster.domain_block > 0, cluster.domain_block, servers)


def ahead_in_rack(of_server: Int32[Array, "*jobs N"], rack: Int32[Array, "N"]) -> Bool[Array, "*jobs N N"]:
    """Whether the second server is in the rack of the first, and before it in order of most workers, then of index."""
    here, there, index = of_server[..., :, None], of_server[..., None, :], jnp.arange(rack.shape[0])
    return (rack[:, None] == rack) & ((there > here) | ((there == here) & (index < index[:, None])))


def room_of_racks(
    of_server: Int32[Array, "*jobs N"], rack: Int32[Array, "N"], block: Int32[Array, "T"]
) -> Int32[Array, "*jobs T"]:
    """Workers that fit the roomiest servers of each rack, a block of them, by what fits each server."""
    inside = ahead_in_rack(of_server, rack).sum(-1) < block[rack]
    return jnp.where(inside, of_server, 0) @ (rack[:, None] == jnp.arange(block.shape[0])).astype(jnp.int32)


def total_gpus(cluster: Cluster, gpu_type: str | None = None) -> int:
    """Number of GPUs of the cluster (a concrete, not a traced, one): of one type, if that is given."""
    gpus = np.asarray(cluster.group_gpus)
    if gpu_type is None:
        return int(gpus.sum())
    return int(gpus[np.asarray(cluster.group_gpu_type) == cluster.gpu_types.index(gpu_type)].sum())


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


def workers_within(left: Int32[Array, "*#servers 2"], asks: Int32[Array, "*#servers 2"]) -> Int32[Array, "*servers"]:
    """Workers of a job for whom what is `left` of a server, as of `Cluster.reservable`, is enough."""
    return jnp.where(asks > 0, left // jnp.maximum(asks, 1), ENDLESS).min(-1)


def workers_held(
    gpus: Int[np.ndarray, "A P N K"], reservable: Int[np.ndarray, "P N 2"], kinds: Int[np.ndarray, "J 4"]
) -> tuple[Int[np.ndarray, "D P"], Int[np.ndarray, "J"]]:
    """On the host: workers that empty partitions hold of each of the D different kinds of jobs, and a job's kind.

    Args:
        gpus: of each group, as each set of GPU types sees it.
        reservable: as in `Cluster`.
        kinds: of each job its set, GPUs per worker, and what a worker reserves.
    """
    code = np.zeros(len(kinds), np.int64)
    for column in kinds.T:  # many times as fast as `unique` of rows
        values, place = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + place, return_inverse=True)
    _, first, kind = np.unique(code, return_index=True, return_inverse=True)
    held = np.zeros((len(first), gpus.shape[1]), np.int64)
    for row, (chosen, wide, *asks) in enumerate(kinds[first].tolist()):
        of_server = (gpus[chosen] // max(wide, 1)).sum(-1)
        for place, asked in enumerate(asks):
            if asked:
                of_server = np.minimum(of_server, reservable[..., place] // asked)
        held[row] = of_server.sum(-1)
    return held, kind


def partition_axes(cluster: Cluster) -> Cluster:
    """`in_axes` that maps a function of one partition over all: what is not per partition is shared."""
    return jax.tree.map(lambda _: 0, cluster).replace(link_bytes_s=None, reference=None)


def one_partition(cluster: Cluster, partition: Int[ArrayLike, ""]) -> Cluster:
    """A single partition, by its number, without the leading axis P."""
    shared = {"link_bytes_s": cluster.link_bytes_s, "reference": cluster.reference}
    return jax.tree.map(lambda leaf: leaf[partition], cluster.replace(**dict.fromkeys(shared))).replace(**shared)


SIDE, GAP, PAD, HEAD, WIDTH = 10, 2, 4, 16, 720  # pixels
MOST_SERVERS = 256
FREE, PARTLY = "#ffffff", "#bdbdbd"

Fill = Callable[[int, int, int], Sequence[str]]  # (partition, server, socket) -> a colour per GPU


def hue(number: int) -> str:
    """A colour of its own for every small number: the golden angle apart, in three shades."""
    return f"hsl({number * 137.5 % 360:.0f} 60% {45 + 15 * (number % 3)}%)"


def servers_svg(
    gpus: Int[np.ndarray, "P N K"], fill: Fill, titles: Sequence[str], key: Mapping[str, str] | None = None
) -> str:
    """The picture. `titles`: a line per partition; `key`: what colours mean. At most `MOST_SERVERS` are drawn."""
    parts, y, drawn = [], 0.0, 0
    real = gpus.sum(-1) > 0
    for p, title in enumerate(titles):
        if not real[p].any() or drawn >= MOST_SERVERS:
            continue
        y += HEAD
        parts.append(_text(0, y - 4, title))
        x, tall = 0, 0
        for n in np.flatnonzero(real[p]).tolist()[: MOST_SERVERS - drawn]:
            sockets = [fill(p, n, k) for k in range(gpus.shape[2]) if gpus[p, n, k] > 0]
            wide = 2 * PAD + max(map(len, sockets)) * (SIDE + GAP) - GAP
            if x and x + wide > WIDTH:
                x, y, tall = 0, y + tall + PAD, 0
            parts.append(_server(x, y, wide, sockets))
            x, tall = x + wide + PAD, max(tall, 2 * PAD + len(sockets) * (SIDE + GAP) - GAP)
            drawn += 1
        y += tall + PAD
    left = int(real.sum()) - drawn
    if left:
        y += HEAD
        parts.append(_text(0, y - 4, f"and {left:,} more servers"))
    x = 0
    for name, colour in (key or {}).items():
        parts.append(_square(x, y + PAD, colour) + _text(x + SIDE + PAD, y + PAD + SIDE - 1, name))
        x += SIDE + 3 * PAD + 7 * len(name)
    y += HEAD + PAD if key else 0
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" role="img" font-size="11"'
    return f'{head} font-family="sans-serif"><title>{escape("; ".join(titles))}</title>{"".join(parts)}</svg>'


def _server(x: float, y: float, wide: float, sockets: Sequence[Sequence[str]]) -> str:
    tall = 2 * PAD + len(sockets) * (SIDE + GAP) - GAP
    box = f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="2" fill="#eeeeee" stroke="#888888"/>'
    at = [
        _square(x + PAD + column * (SIDE + GAP), y + PAD + row * (SIDE + GAP), colour)
        for row, colours in enumerate(sockets)
        for column, colour in enumerate(colours)
    ]
    return box + "".join(at)


def _square(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="{colour}" stroke="#555555"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
