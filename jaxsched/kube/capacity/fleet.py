"""Nodes into the same `Cluster` pytree as everywhere, padded to sizes that survive nodes that come and go.

Two views of the same nodes: `split`, one GPU group per socket, for pods that fit a socket, and `merged`, one group per
node, for larger pods. Both have the same shapes, so that one compiled policy serves both.
"""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int, Int32

from jaxsched.cluster.build import Shape, build_rows, pad, renumber_types, shape_of
from jaxsched.cluster.gpu_types import FASTEST, GPU_TYPES, MIG_PARTS, GpuType, find_gpu_type, slice_name
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import MAX_GROUP_GPUS, MAX_GROUPS, SERVERS_PER_SCHEDULER, Server, split_gpus
from jaxsched.cluster.topology import from_host_map
from jaxsched.errors import DoubtfulFile
from jaxsched.io.files import shorten
from jaxsched.kube.read.gangs import natural
from jaxsched.kube.read.hints import GPU_GROUPS, PRODUCT_LABELS, TOPOLOGY_PRESETS, numbers
from jaxsched.kube.read.objects import Node
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.pytree import on_device

MOST_CORES = 1e6  # of a node; the ledger counts what it says, the simulator's arrays have bounds
LONGEST_PRODUCT = 256  # characters of a name
MOST_NAMED = 5  # products of a warning
HOPS = 6  # of a route at most: up and down in each of three tiers
MOST_RACKS = 8  # of a partition that labels may make of its nodes without another array size


@dataclasses.dataclass(frozen=True, eq=False)
class Fleet:
    """The GPU nodes of a cluster, in topology order; row i of everything is `nodes[i]`."""

    nodes: tuple[Node, ...]
    groups: tuple[tuple[int, ...], ...]  # GPUs per socket
    place: Int[np.ndarray, "S 2"]  # partition and slot of each node
    split: Cluster
    merged: Cluster
    shape: Shape  # of both clusters; fixed while a policy stays compiled

    @property
    def rows(self) -> Int[np.ndarray, "P N"]:
        """The node of each slot, -1 = none."""
        rows = np.full((self.shape.partitions, self.shape.servers), -1)
        rows[self.place[:, 0], self.place[:, 1]] = np.arange(len(self.nodes))
        return rows

    def by_slot(self, by_node: Int[np.ndarray, "S K"]) -> Int32[np.ndarray, "P N K"]:
        """The same by partition and slot."""
        spread = np.zeros((self.shape.partitions, self.shape.servers, self.shape.groups), np.int32)
        spread[self.place[:, 0], self.place[:, 1]] = by_node
        return spread


NVLINK_GBYTES_S = 900.0  # of a GPU of an NVLink domain, per direction: GB200 NVL72


def gpu_nodes(nodes: Iterable[Node], settings: PlanSettings) -> list[Node]:
    """The nodes that have GPUs, whether usable or not: pods may run on those that are not."""
    return [node for node in nodes if 0 < dict(node.allocatable).get(settings.gpu_resource, 0) <= MAX_GROUP_GPUS]


def oversized_nodes(nodes: Iterable[Node], settings: PlanSettings) -> dict[str, str]:
    """Why nothing is placed on nodes that have more GPUs than can be counted, as where GPUs are sliced by time."""
    counts = {node.name: dict(node.allocatable).get(settings.gpu_resource, 0) for node in nodes}
    limit = MAX_GROUP_GPUS
    return {name: f"has {gpus} GPUs, at most {limit} are planned" for name, gpus in counts.items() if gpus > limit}


def nodes_without_gpus(nodes: Iterable[Node], settings: PlanSettings) -> list[Node]:
    """The nodes that only pods without GPUs can go to."""
    return [node for node in nodes if not dict(node.allocatable).get(settings.gpu_resource) and node.refusal is None]


def topology_labels(nodes: Sequence[Node], settings: PlanSettings) -> tuple[str, ...]:
    """The setting, else the first preset whose innermost label some node has, else none."""
    if settings.topology:
        return settings.topology
    found = (preset for preset in TOPOLOGY_PRESETS.values() if any(preset[0] in node.labels for node in nodes))
    return next(found, ())


def find_missing(nodes: Sequence[Node], settings: PlanSettings) -> list[str]:
    """What the settings name and no GPU node has, perhaps misspelt, with the option that names it."""
    own = gpu_nodes(nodes, settings)
    if not own:
        return [f"{settings.gpu_resource} (--gpu-resource)"]
    labels = {label: "--topology" for label in settings.topology}
    labels |= {settings.partition_label: "--partition-label"} if settings.partition_label else {}
    return [
        f"the label {label} ({option})"
        for label, option in labels.items()
        if not any(label in node.labels for node in own)
    ]


def array_inputs(node: Node, settings: PlanSettings) -> tuple:
    """All of a node that the arrays depend on: when it changes for no node, neither does the fleet."""
    units = dict(node.allocatable)
    labels = tuple((label, node.labels.get(label, "")) for label in _read_labels(settings))
    return node.name, units.get(settings.gpu_resource, 0), units.get("cpu", 0), labels


def read_fleet(nodes: Sequence[Node], settings: PlanSettings, keep: Shape | None = None) -> Fleet:
    """Make the simulator's cluster of nodes.

    Args:
        nodes: Those of `gpu_nodes`. Without topology labels they stand together in a rack of their own.
        settings: Labels, bandwidths, partitions, speeds of GPUs.
        keep: The shape of the arrays if everything fits; else, and if None, it is a new one with headroom.

    Returns:
        The fleet; without nodes it is nothing but padding.
    """
    tiers = topology_labels(nodes, settings)
    ordered = sorted(nodes, key=lambda node: (position(node, tiers), natural(node.name)))
    types = gpu_types(ordered, settings)
    servers = [_server(node, settings, gpu_type.name) for node, gpu_type in zip(ordered, types)]
    speeds = {**settings.all_gpu_speeds, **dict(types)}
    if not servers:
        shape = keep or Shape(
            settings.schedulers or 1, servers=4, groups=2, racks=1, domains=0, links=4, hops=HOPS, uneven=1, all_links=4
        )
        padding = _all_types(_without_gpus(shape), settings)
        return Fleet((), (), np.zeros((0, 2), int), padding, padding, shape)
    rows = _partitions(ordered, settings, keep)
    positions = [position(node, tiers) for node in ordered]
    topology = from_host_map(positions, settings.nic_gbits_s, settings.oversubscription)
    if settings.domain_block:
        blocks = np.full(len(topology.rack_names), settings.domain_block)
        topology = dataclasses.replace(topology, domain_block=blocks)
    split = _all_types(build_rows(servers, topology, rows, speeds), settings)
    merged = _all_types(build_rows([_merge(server) for server in servers], topology, rows, speeds), settings)
    needed = shape_of(split)
    shape = keep if keep is not None and _fits(needed, keep) else _with_headroom(needed, settings)
    place = np.zeros((len(ordered), 2), int)
    for (partition, slot), row in np.ndenumerate(rows):
        if row >= 0:
            place[row] = partition, slot
    groups = tuple(server.groups for server in servers)
    return Fleet(tuple(ordered), groups, place, pad(split, shape), pad(merged, shape), shape)


def _read_labels(settings: PlanSettings) -> tuple[str, ...]:
    presets = (label for preset in TOPOLOGY_PRESETS.values() for label in preset)
    return (*settings.topology, *presets, *PRODUCT_LABELS, GPU_GROUPS, settings.partition_label)


def position(node: Node, tiers: Sequence[str]) -> tuple[str, str, str]:
    """(core, pod, rack) of a node, as `from_host_map` wants it; further tiers are folded into the core."""
    names = [node.labels.get(label, "") for label in tiers]
    rack, pod = (names + ["", ""])[:2]
    return "/".join(names[:1:-1]), pod, rack


def _server(node: Node, settings: PlanSettings, gpu_type: str) -> Server:
    units, domain = dict(node.allocatable), settings.domain_block > 0
    gpus = units[settings.gpu_resource]
    return Server(
        groups=(gpus,) if domain else _groups(node, gpus),
        nvlink_gbytes_s=gpus * NVLINK_GBYTES_S if domain else None,
        gpu_type=gpu_type,
        cores=min(max(units.get("cpu", 0) / 1000, 1e-3), MOST_CORES),
        pcie_gbytes_s=settings.pcie_gbytes_s,
        nic_gbits_s=settings.nic_gbits_s,
    )


def _groups(node: Node, gpus: int) -> tuple[int, ...]:
    """GPUs per socket: the node's label if it adds up, else `split_gpus`."""
    stated = numbers(node.labels.get(GPU_GROUPS, ""))
    if sum(stated) == gpus and len(stated) <= MAX_GROUPS and all(stated):
        return stated
    return split_gpus(gpus)


def product_of(node: Node) -> str:
    """What the node's labels call its GPUs; "" if they do not say."""
    return next((node.labels[label][:LONGEST_PRODUCT] for label in PRODUCT_LABELS if node.labels.get(label)), "")


def gpu_types(nodes: Sequence[Node], settings: PlanSettings) -> list[GpuType]:
    """The GPU type of each node. Unknown ones count as the slowest known; if no node says anything, all are alike."""
    speeds, products = settings.all_gpu_speeds, [product_of(node) for node in nodes]
    unknown = min(speeds, key=lambda name: speeds[name]) if any(products) else FASTEST
    found = {one: find_gpu_type(one, speeds, settings.gpu_resource) for one in set(products)}
    return [found[one] or GpuType(unknown, speeds[unknown]) for one in products]


def unknown_products(nodes: Iterable[Node], settings: PlanSettings) -> str:
    """A warning about GPU nodes whose GPUs are not known while others' are, or that name unknown ones; "" if none."""
    counts = Counter(map(product_of, gpu_nodes(nodes, settings)))
    if set(counts) <= {""}:
        return ""
    names = [one for one in counts if find_gpu_type(one, settings.all_gpu_speeds, settings.gpu_resource) is None]
    if not names:
        return ""
    words = [f"{shorten(name, 60) or 'no name'} ({counts[name]} nodes)" for name in sorted(names)[:MOST_NAMED]]
    return f"GPUs that are not known count as the slowest known ones: {', '.join(words)}; give --gpu-speeds FILE"


def warn_of_products(nodes: Iterable[Node], settings: PlanSettings) -> None:
    """The same as a warning about a file."""
    if words := unknown_products(nodes, settings):
        warnings.warn(words, DoubtfulFile, stacklevel=2)


def _all_types(cluster: Cluster, settings: PlanSettings) -> Cluster:
    """Its GPU types numbered the same whatever nodes there are: a program that is compiled for it stays compiled."""
    slices = (slice_name(base, own, parts) for base, parts in MIG_PARTS.items() for own in range(1, parts))
    known = (*GPU_TYPES, *settings.all_gpu_speeds, *slices, *cluster.gpu_types)
    return renumber_types(cluster, tuple(dict.fromkeys(known)))


def _merge(server: Server) -> Server:
    sockets = len(server.groups)
    return dataclasses.replace(server, groups=(server.gpus,), pcie_gbytes_s=server.pcie_gbytes_s * sockets)


def _partitions(ordered: Sequence[Node], settings: PlanSettings, keep: Shape | None) -> Int[np.ndarray, "P N"]:
    """The nodes of each partition, -1 = none: by label, else contiguous blocks of almost equal size."""
    if settings.partition_label:
        names = [node.labels.get(settings.partition_label, "") for node in ordered]
        blocks = [np.flatnonzero(np.asarray(names) == name) for name in sorted(set(names))]
        if keep is not None and len(blocks) < keep.partitions:
            blocks += [np.zeros(0, int)] * (keep.partitions - len(blocks))
    else:
        count = (
            keep.partitions
            if keep is not None
            else settings.schedulers or (1 if settings.domain_block else -(-len(ordered) // SERVERS_PER_SCHEDULER))
        )
        blocks = np.array_split(np.arange(len(ordered)), count)
    width = max(1, *(len(block) for block in blocks))
    return np.stack([np.pad(block, (0, width - len(block)), constant_values=-1) for block in blocks])


def _fits(needed: Shape, shape: Shape) -> bool:
    """A cluster of shape `needed` can be padded to `shape`; the number of partitions must be the same."""
    sizes = zip(dataclasses.astuple(needed), dataclasses.astuple(shape))
    return needed.partitions == shape.partitions and all(need <= size for need, size in sizes)


def _with_headroom(needed: Shape, settings: PlanSettings) -> Shape:
    def more(count: int) -> int:
        return int(np.ceil(count * settings.headroom))

    servers = -(-more(needed.servers) // 4) * 4
    racks = max(more(needed.racks) + 1, min(servers, MOST_RACKS))
    return Shape(
        partitions=needed.partitions,
        servers=servers,
        groups=max(2, needed.groups),
        racks=racks,
        domains=racks if needed.domains else 0,
        links=HOPS * racks,  # enough wherever the boundaries between partitions move
        hops=max(HOPS, needed.hops),
        uneven=1,  # other labels of racks must not change the shape
        # a rack for every node
        all_links=max(more(needed.all_links) + HOPS * racks, HOPS * needed.partitions * servers),
    )


def _without_gpus(shape: Shape) -> Cluster:
    """A cluster of nothing but padding."""
    topology = from_host_map([("", "", "")])
    padded = pad(build_rows([Server((1,))], topology, np.zeros((1, 1), int)), shape)
    return padded.replace(
        group_gpus=on_device(np.zeros(padded.group_gpus.shape), np.int32),
        server_id=on_device(np.full(padded.server_id.shape, -1), np.int32),
    )
