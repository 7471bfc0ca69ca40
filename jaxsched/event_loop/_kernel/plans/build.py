"""Tables of plans, and what the ideal placement gives their jobs; on the host."""

import itertools
import types
from typing import cast

import numpy as np
from jaxtyping import Float64

from jaxsched.event_loop._kernel.plans.counts import count_bytes_between, count_bytes_near, count_bytes_out
from jaxsched.event_loop._kernel.records import Plans, World
from jaxsched.workload.patterns import PatternTable


def build_plans(table: PatternTable) -> Plans:
    """Of a catalogue."""
    gpus, stride, size = (np.asarray(leaf, np.int64) for leaf in (table.gpus, table.stride, table.size))
    return Plans(gpus, stride, size, np.asarray(table.nbytes, np.float64))


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
    found, w, (wide, narrow) = np.zeros(len(plans.gpus)), cast(World, types.SimpleNamespace(plans=plans)), gpus
    for m, ranks in enumerate(plans.gpus.tolist()):
        for start in range(0, min(ranks, servers * wide), wide):
            end = min(start + wide, ranks)
            borders = [*range(start, end, narrow), end]
            pcie = max(count_bytes_out(w, m, x, y, x, y, True) for x, y in itertools.pairwise(borders))
            qpi = max((count_bytes_between(w, m, start, x, x, end) for x in borders[1:-1]), default=0.0)
            first = start // (wide * domain) * (wide * domain)
            last = min(first + wide * domain, servers * wide, ranks)
            qpi += count_bytes_near(w, m, start, end, first, last)
            sent = (pcie, qpi, count_bytes_out(w, m, start, end, first, last, False))
            found[m] = max(found[m], *(x / speed for x, speed in zip(sent, bytes_s)))
    return found
