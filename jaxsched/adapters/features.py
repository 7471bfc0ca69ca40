"""The columns of what schedulers are shown: name, unit and range of each, in the order of the arrays.

They are those of `env.observation` and `policies.menu`, which say how each is worked out, and that our network reads.
"""

import math
from typing import NamedTuple

INF = math.inf


class Feature(NamedTuple):
    """A column. Logarithms are natural ones, `log1p(x)` of what is named."""

    name: str
    unit: str
    low: float = 0.0
    high: float = INF


SHARE, FLAG = ("share", 0.0, 1.0), ("0 or 1", 0.0, 1.0)

GROUP = (
    Feature("free", *SHARE),
    Feature("free_gpus", "GPUs / 4"),
    Feature("gpus", "GPUs / 8"),
    Feature("speed", "of the reference GPU type's"),
    Feature("cpu_load", "log1p of use / cores"),
    Feature("pcie_load", "log1p of use / bandwidth"),
    Feature("slowed", "log1p of the sum of slowdowns - 1"),
    Feature("left", "log1p of minutes / 4, mean over its jobs"),
)
SERVER = (
    Feature("free", *SHARE),
    Feature("empty", *FLAG),
    Feature("qpi_load", "log1p of use / bandwidth"),
    Feature("nic_load", "log1p of use / bandwidth"),
)
RACK = (Feature("busiest_link", "log1p of use / bandwidth"), Feature("free", *SHARE))
SCHEDULER = (
    Feature("free", *SHARE),
    Feature("queued", "log1p of jobs / 4"),
    Feature("queued_work", "log1p of minutes on all its GPUs / 4"),
    Feature("slowed", "mean slowdown - 1"),
    Feature("left", "log1p of minutes / 4, mean over its jobs"),
    Feature("nic_load", "log1p of the mean use / bandwidth"),
    Feature("busiest_link", "log1p of use / bandwidth"),
)
JOB = (
    Feature("workers", "log1p of workers"),
    Feature("gpus", "log1p of GPUs"),
    Feature("has_ps", *FLAG),
    Feature("ps", "log1p of parameter servers"),
    Feature("estimate", "log1p of minutes / 4"),
    Feature("estimate_in_intervals", "log1p of intervals / 4"),
    Feature("age", "log1p of minutes / 4"),
    Feature("age_over_estimate", "log1p of the ratio"),
    Feature("gradients_by_nic", "log1p of seconds / seconds of a step"),
    Feature("gradients_by_pcie", "log1p of seconds / seconds of a step"),
    Feature("cpu_bound", "cores / 8 times sensitivity"),
    Feature("cores", "cores / 16"),
    Feature("input_by_pcie", "log1p of seconds / seconds of a step, times sensitivity"),
    Feature("forwards", "times forwarded"),
)
PLACEMENT = (
    Feature("slowdown", "log of the job's own", -INF),
    Feature("added_over_run_time", "log1p of seconds added to others / run time"),
    Feature("stretched", "log of all that is lost, over its run time", -INF),
    Feature("added", "log1p of minutes added to others / 4"),
    Feature("servers", "log1p of servers"),
    Feature("groups", "log1p of GPU groups"),
    Feature("racks", "log1p of racks"),
    Feature("left_over", "log1p of GPUs left free in its groups"),
    Feature("shared_groups", *SHARE),
    Feature("at_most_two_of_a_group", *FLAG),
    Feature("at_most_one_of_a_group", *FLAG),
    Feature("stake", "log of seconds lost / until the next completion, within 4, / 4", -1.0, 1.0),
)
OPTION = (
    *(Feature(name, *FLAG) for name in ("placement", "forward", "wait")),
    *PLACEMENT,
    Feature("place_in_window", "place / 4"),
    Feature("greedy_wait_place", "place in greedy-wait's order / 8"),
    Feature("brief", *FLAG),
    *(Feature(f"job.{one.name}", *one[1:]) for one in JOB),
    *(Feature(f"scheduler.{one.name}", *one[1:]) for one in SCHEDULER),
)
LINK = (Feature("load", "log1p of use / bandwidth"), Feature("capacity", "bandwidth / that of the widest NIC"))

# Kinds of nodes of the graph, in the order of its nodes, and what kinds of edges say beside their kind.
NODES = {
    "job": JOB, "group": GROUP, "server": SERVER, "rack": RACK, "link": LINK, "scheduler": SCHEDULER, "option": OPTION,
}  # fmt: skip
EDGES = ("group in server", "server in rack", "rack of scheduler", "rack sends over link", "job of scheduler",
         "scheduler to scheduler", "job to option", "option to group", "option to scheduler")  # fmt: skip
EDGE = (
    *(Feature(kind, *FLAG) for kind in EDGES),
    Feature("weight", "share of a rack's traffic; workers / gang; 1 of the others", 0.0, 1.0),
    Feature("real", *FLAG),
)
NODE = (
    *(Feature(kind, *FLAG) for kind in NODES),
    Feature("real", *FLAG),
    *(Feature(f"{kind}.{one.name}", *one[1:]) for kind, columns in NODES.items() for one in columns),
)
