"""The ideal step of jobs (docs/semantics.md, section 5), with plans and without, and tables of plans; on the host."""

import itertools
import types
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from jaxtyping import ArrayLike, Bool, Float64

from jaxsched.cluster.hardware import Cluster
from jaxsched.event_loop._kernel.jit import Rows
from jaxsched.event_loop._kernel.plans import (
    count_bytes_between,
    count_bytes_near,
    count_bytes_out,
    enter_domain,
    sums_first,
    write_shares,
)
from jaxsched.event_loop._kernel.records import DOMAIN, SHARE, Plans, World
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.models import Profiles
from jaxsched.workload.patterns import PatternTable

NOTHING = types.SimpleNamespace(ring=0.0, border=0.0, near=0.0, out=0.0)  # of a group


def build_plans(table: PatternTable) -> Plans:
    """Of a catalogue."""
    gpus, stride, size, tree = (
        np.asarray(leaf, np.int64) for leaf in (table.gpus, table.stride, table.size, table.tree)
    )
    summed = np.asarray(table.summed, np.float64) if table.summed.size else np.zeros((len(gpus), 2))
    return Plans(gpus, stride, size, np.asarray(table.nbytes, np.float64), summed, tree)


def compute_ideal_s(
    cluster: Cluster, profiles: Profiles, jobs: JobTable
) -> tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """Seconds of computation and of communication per step on the ideal placement (docs/semantics.md, section 5).

    As `dynamics.footprint.ideal_comm_s`, of the second.
    """
    of_reference = np.asarray(cluster.group_gpu_type) == np.asarray(cluster.reference)
    group_gpus = np.where(of_reference, np.asarray(cluster.group_gpus), 0)
    workers, ps = np.asarray(jobs.workers, np.int64), np.asarray(jobs.ps)
    model = np.asarray(jobs.model)
    gradient, compute_s = (np.asarray(leaf, float)[model] for leaf in (profiles.gradient_bytes, profiles.compute_s))
    gpus = np.maximum(workers * np.asarray(jobs.gpus_per_worker), 1)
    groups, servers = -(-gpus // group_gpus.max()), -(-gpus // group_gpus.sum(-1).max())
    pcie_bytes_s = _find_largest(cluster.pcie_bytes_s, group_gpus > 0)
    qpi_bytes_s, nic_bytes_s = (
        _find_largest(leaf, group_gpus.sum(-1) > 0) for leaf in (cluster.qpi_bytes_s, cluster.nic_bytes_s)
    )

    sizes = _find_domains(cluster, group_gpus.sum(-1) > 0)
    domains = -(-servers // sizes[0])
    fewest, most = servers // domains, -(-servers // domains)  # servers of a domain, with even shares

    ring = 2.0 * (gpus - 1) / gpus * gradient
    ring_s = np.maximum(ring / pcie_bytes_s, np.where((groups > servers) | (most > 1), ring / qpi_bytes_s, 0.0))
    ring_s = np.maximum(ring_s, np.where(domains > 1, ring / fewest / nic_bytes_s, 0.0))

    spread = np.minimum(groups, (group_gpus > 0).sum(-1).max())
    pcie = workers * gradient / groups / pcie_bytes_s
    qpi = gradient * workers / servers**2 * np.maximum(1.0 - 1.0 / spread, 2.0 * (most - 1)) / qpi_bytes_s
    nic = 2.0 * gradient * workers / servers * (1.0 - fewest / servers) / nic_bytes_s
    comm_s = np.where(ps > 0, np.maximum(np.maximum(pcie, qpi), nic), ring_s)
    if profiles.plans.gpus.size:
        gpus, best = (int(group_gpus.sum(-1).max()), int(group_gpus.max())), (pcie_bytes_s, qpi_bytes_s, nic_bytes_s)
        plans = build_plans(profiles.plans)
        planned_s = np.min([compute_planned_comm_s(plans, cluster.shape[1], gpus, best, size) for size in sizes], 0)
        comm_s = np.where(np.asarray(profiles.plans.gpus)[model] > 0, planned_s[model], comm_s)
    return compute_s, comm_s


def _find_domains(cluster: Cluster, real: Bool[np.ndarray, "P N"]) -> tuple[int, ...]:
    """Most of the `real` servers of an NVLink domain, and of those a gang's; 1 where there is none."""
    if not cluster.domain_block.size:
        return (1,)
    blocks, rack = np.asarray(cluster.domain_block), np.asarray(cluster.server_rack)
    inside = np.stack([((rack == r) & real).sum(-1) for r in range(blocks.shape[1])], -1) * (blocks > 0)
    return max(int(inside.max()), 1), max(int(np.minimum(inside, blocks).max()), 1)


def _find_largest(bytes_s: ArrayLike, real: Bool[np.ndarray, "..."]) -> float:
    """The largest where something is."""
    return float(np.where(real, np.asarray(bytes_s), 0.0).max())


def compute_planned_comm_s(
    plans: Plans, servers: int, gpus: tuple[int, int], bytes_s: tuple[float, float, float], domain: int = 1
) -> Float64[np.ndarray, "models"]:
    """Seconds of communication of each model with a plan on the ideal placement (docs/semantics.md, section 5).

    Args:
        plans: of the catalogue.
        servers: the most of a partition.
        gpus: of the largest server, and of the largest group.
        bytes_s: best PCIe, QPI and NIC.
        domain: servers after each other that are one.
    """
    found, w = np.zeros(len(plans.gpus)), cast(World, types.SimpleNamespace(plans=plans))
    for m, ranks in enumerate(plans.gpus.tolist()):
        shares = _find_shares(w, m, min(ranks, servers * gpus[0]), gpus, domain)
        for start in range(0, min(ranks, servers * gpus[0]), gpus[0]):
            first = start // (gpus[0] * domain) * (gpus[0] * domain)
            near = first, min(first + gpus[0] * domain, servers * gpus[0], ranks)
            sent = _find_sent(w, m, (start, min(start + gpus[0], ranks)), near, gpus[1], shares)
            found[m] = max(found[m], *(x / speed for x, speed in zip(sent, bytes_s)))
    return found


def _find_sent(
    w: World, m: int, server: tuple[int, int], near: tuple[int, int], group_gpus: int, shares: Mapping[int, Any]
) -> tuple[float, float, float]:
    """The most bytes on PCIe of a group of a server, those on its QPI, and on its NIC; `near`: ranks of its domain."""
    borders = [*range(*server, group_gpus), server[1]]
    of = [shares.get(x, NOTHING) for x in borders[:-1]]
    pcie = max(
        count_bytes_out(w, m, x, y, x, y)[1] + share.ring + share.out
        for (x, y), share in zip(itertools.pairwise(borders), of)
    )
    inside = [count_bytes_between(w, m, server[0], x, x, server[1]) for x in borders[1:-1]]
    qpi = max((sent + share.border for sent, share in zip(inside, of[1:])), default=0.0)
    qpi += count_bytes_near(w, m, *server, *near) + of[0].near
    return pcie, qpi, count_bytes_out(w, m, *server, *near)[0] + sum(share.out for share in of)


def _find_shares(w: World, m: int, held: int, gpus: tuple[int, int], domain: int) -> Mapping[int, Any]:
    """What groups send where domains sum up gradients first, by their first rank; empty where they do not."""
    if not sums_first(w, m):
        return {}
    wide, ranks, count = gpus[0] * domain, int(w.plans.gpus[m]), 0
    domains = Rows(np.zeros(-(-held // wide) + 1, DOMAIN))
    for start in range(0, held, wide):
        count = enter_domain(domains, count, start, min(start + wide, held), 0)
    if held < ranks:  # what a cluster has no room for is a domain behind all others
        count = enter_domain(domains, count, held, ranks, 0)
    groups = [(s, x) for s in range(0, held, gpus[0]) for x in range(s, min(s + gpus[0], held), gpus[1])]
    shares = Rows(np.zeros(len(groups), SHARE))
    for i, (server, start) in enumerate(groups):
        share, end = shares[i], min(server + gpus[0], held)
        share.start, share.end, share.domain = start, min(start + gpus[1], end), start // wide * wide
        share.left, share.right = server, end
    write_shares(w, m, domains, count, shares, len(groups))
    return {start: shares[i] for i, (_, start) in enumerate(groups)}
