"""What schedulers are shown: columns with names, units and ranges, in the order of the arrays; as rows or as one graph.

The columns are those of `env.observation` and `policies.menu`, which say how each is worked out, and that our network
reads. Shown as rows, a scheduler has all features in a row, its options, and which of them are legal.

In the graph of jobs, hardware, links, schedulers and options sizes never change. All nodes have the same columns
(`NODE`): the kind, whether the node is real, and a block for each kind, 0 in nodes of others. Racks stand for their
switches; of switches above them a world knows the links only. Every line of the menu is a node, between its job and the
GPU groups that it would take. So actions are scored at the last `P * A` nodes, and schedulers are the `P` before these.
An edge stands once, in the direction of `EDGES`.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.resources import layout_of
from jaxsched.env.observation import Menu, Observation
from jaxsched.env.state import EnvParams, State

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


# `features`: float32[P, F], `options`: float32[P, A, O] and `mask`: bool[P, A] of the options that are legal.
# In place of `features`, a `graph` (`Graph`) where that is the observation.
Seen = dict[str, Any]


def show_menu(observation: Observation, menu: Menu, may_wait: bool = True) -> Seen:
    """Of every scheduler all features in a row, its options, and which of them are legal.

    The length of a row of features depends on the cluster's size. That of an option does not. Who may not wait has that
    in the mask only if nothing else is legal.
    """
    acts = jnp.concatenate([menu.mask, observation.forward_mask], -1)
    mask = jnp.concatenate([acts, may_wait | ~acts.any(-1, keepdims=True)], -1)
    return {"features": _features(observation, menu), "options": _options(observation, menu, mask), "mask": mask}


def action_names(placements: int, schedulers: int) -> list[str]:
    """What each number of an action stands for."""
    return [
        *(f"placement {i}" for i in range(placements)),
        *(f"forward to scheduler {i}" for i in range(schedulers)),
        "wait",
    ]


def _features(obs: Observation, menu: Menu) -> Float32[Array, "P F"]:
    others = jnp.broadcast_to(obs.scheduler.mean(0), obs.scheduler.shape)
    parts = [
        obs.scheduler, others, obs.group * obs.group_mask[..., None], obs.server, obs.rack, obs.job,
        obs.job_mask.astype(jnp.float32), menu.features, menu.rank / 4.0, menu.order / 8.0,
    ]  # fmt: skip
    return jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], -1)


def _options(obs: Observation, menu: Menu, mask: Bool[Array, "P A"]) -> Float32[Array, "P A O"]:
    """What is known of each option, zeros where there is nothing to say or the option is not legal.

    In this order: whether it is a placement, a forward, to wait (3 columns); of a placement the menu's features (see
    `policies.menu`), the job's place in the window over 4, the placement's place in greedy-wait's order over 8, whether
    the job would be done before any that runs (3); the job (`env.observation.job_features`); the scheduler that would
    have the job (`env.observation.scheduler_features`).
    """
    p, k = menu.mask.shape
    own, numbers = obs.scheduler[:, None], jnp.stack([menu.rank / 4.0, menu.order / 8.0, menu.brief], -1)
    placed = jnp.concatenate([menu.features, numbers], -1)
    nowhere = jnp.zeros((p, 1, placed.shape[-1]))
    rows = [
        _rows(k, 0, placed, jnp.take_along_axis(obs.job, menu.rank[..., None], 1), own),
        _rows(p, 1, nowhere, obs.job[:, -1:], obs.scheduler[None]),
        _rows(1, 2, nowhere, jnp.zeros_like(obs.job[:, :1]), own),
    ]
    return jnp.where(mask[..., None], jnp.concatenate(rows, 1), 0.0)


def _rows(count: int, kind: int, *parts: Float32[Array, "..."]) -> Float32[Array, "P count O"]:
    """So many options of one kind, each with all parts."""
    p = parts[0].shape[0]
    return jnp.concatenate([jnp.broadcast_to(x, (p, count, x.shape[-1])) for x in (jnp.eye(3)[kind], *parts)], -1)


class Graph(NamedTuple):
    """Arrays with the names of `jraph.GraphsTuple`, which `jraph.GraphsTuple(**graph._asdict())` makes of them."""

    nodes: Float32[Array, "V D"]
    edges: Float32[Array, "M De"]
    receivers: Int32[Array, "M"]
    senders: Int32[Array, "M"]
    globals: None
    n_node: Int32[Array, "1"]
    n_edge: Int32[Array, "1"]


class _Edges(NamedTuple):
    """Of one kind."""

    senders: Int32[Array, "M"]
    receivers: Int32[Array, "M"]
    weight: Float32[Array, "M"]
    real: Bool[Array, "M"]


def show_graph(params: EnvParams, state: State, obs: Observation, menu: Menu, may_wait: bool) -> Seen:
    """`graph`; `options` and `mask` as `show_menu` has them."""
    seen = show_menu(obs, menu, may_wait)
    nodes, real = _nodes(params, state, obs, seen)
    first, total = {}, 0
    for kind, rows in nodes.items():
        first[kind], total = total, total + rows.shape[0]
    edges = _edges(params, obs, menu, seen["mask"], first)
    graph = Graph(
        nodes=_blocks(nodes, real),
        edges=jnp.concatenate([_labelled(place, edges[kind]) for place, kind in enumerate(EDGES)]),
        receivers=jnp.concatenate([edges[kind].receivers for kind in EDGES]),
        senders=jnp.concatenate([edges[kind].senders for kind in EDGES]),
        globals=None,
        n_node=jnp.array([total]),
        n_edge=jnp.array([sum(one.weight.shape[0] for one in edges.values())]),
    )
    return {"graph": graph, "options": seen["options"], "mask": seen["mask"]}


def _nodes(params: EnvParams, state: State, obs: Observation, seen: Seen) -> tuple[dict[str, Array], dict[str, Array]]:
    """Columns of each kind, and which nodes are real."""
    cluster, layout = params.cluster, layout_of(params.cluster)
    links = cluster.link_bytes_s.shape[0]  # the last one is a dummy
    load = jnp.zeros(links).at[cluster.link_id].max(state.total[:, layout.link])
    link = jnp.stack([jnp.log1p(load), cluster.link_bytes_s / cluster.nic_bytes_s.max()], -1)
    parts = {
        "job": obs.job, "group": obs.group, "server": obs.server, "rack": obs.rack, "link": link[:-1],
        "scheduler": obs.scheduler, "option": seen["options"],
    }  # fmt: skip
    there = {
        "job": obs.job_mask, "group": obs.group_mask, "server": obs.group_mask.any(-1), "rack": cluster.rack_id >= 0,
        "link": jnp.ones(links - 1, bool), "scheduler": obs.group_mask.any((-1, -2)), "option": seen["mask"],
    }  # fmt: skip
    rows = {kind: part.reshape(-1, part.shape[-1]) for kind, part in parts.items()}
    return rows, {kind: real.reshape(-1) for kind, real in there.items()}


def _blocks(nodes: dict[str, Array], real: dict[str, Array]) -> Float32[Array, "V D"]:
    """All nodes under the columns of all kinds."""
    width, at, found = sum(map(len, NODES.values())), 0, []
    for place, kind in enumerate(NODES):
        rows, there = nodes[kind], real[kind].astype(jnp.float32)[:, None]
        head = jnp.broadcast_to(jnp.eye(len(NODES))[place], (rows.shape[0], len(NODES)))
        block = jnp.pad(rows * there, ((0, 0), (at, width - at - rows.shape[1])))
        found.append(jnp.concatenate([head, there, block], -1))
        at += rows.shape[1]
    return jnp.concatenate(found)


def _labelled(place: int, edges: _Edges) -> Float32[Array, "M De"]:
    kind = jnp.broadcast_to(jnp.eye(len(EDGES))[place], (edges.weight.shape[0], len(EDGES)))
    real = edges.real.astype(jnp.float32)
    return jnp.concatenate([kind, (edges.weight * real)[:, None], real[:, None]], -1)


def _edges(
    params: EnvParams, obs: Observation, menu: Menu, mask: Bool[Array, "P A"], first: dict[str, int]
) -> dict[str, _Edges]:
    """Edges of each kind between nodes, of which each kind's `first` is known."""
    cluster = params.cluster
    (p, n, k), t, s = cluster.shape, cluster.rack_id.shape[1], obs.job.shape[1]
    placements, a = menu.mask.shape[1], mask.shape[1]
    number = lambda kind, *sizes: first[kind] + jnp.arange(math.prod(sizes)).reshape(sizes)
    group, server, rack = number("group", p, n, k), number("server", p, n), number("rack", p, t)
    job, scheduler, option = number("job", p, s), number("scheduler", p), number("option", p, a)
    group_there = obs.group_mask
    rack_there = cluster.rack_id >= 0
    rows = jnp.arange(p)[:, None]
    sends = cluster.route.max(2)  # [P, T, E]
    over = jnp.minimum(cluster.link_id, cluster.link_bytes_s.shape[0] - 2)  # the dummy is no node
    known = cluster.link_id < cluster.link_bytes_s.shape[0] - 1
    workers = menu.workers.astype(jnp.float32)
    of_job = jnp.concatenate([job[rows, menu.rank], jnp.broadcast_to(job[:, -1:], (p, p))], -1)
    to = jnp.concatenate(
        [
            jnp.broadcast_to(scheduler[:, None], (p, placements)),
            jnp.broadcast_to(scheduler, (p, p)),
            scheduler[:, None],
        ],
        -1,
    )
    others = ~jnp.eye(p, dtype=bool)
    return {
        "group in server": _of(group, server[..., None], 1.0, group_there),
        "server in rack": _of(server, rack[rows, obs.server_rack], 1.0, group_there.any(-1)),
        "rack of scheduler": _of(rack, scheduler[:, None], 1.0, rack_there),
        "rack sends over link": _of(
            rack[..., None], first["link"] + over[:, None], sends, (sends > 0) & known[:, None]
        ),
        "job of scheduler": _of(job, scheduler[:, None], 1.0, obs.job_mask),
        "scheduler to scheduler": _of(scheduler[:, None], scheduler[None], 1.0, others),
        "job to option": _of(of_job, option[:, :-1], 1.0, mask[:, :-1]),
        "option to group": _of(
            option[:, :placements, None],
            group.reshape(p, 1, -1),
            workers / jnp.maximum(workers.sum(-1, keepdims=True), 1.0),
            menu.mask[..., None] & (workers > 0),
        ),
        "option to scheduler": _of(option, to, 1.0, mask),
    }


def _of(senders: Array, receivers: Array, weight: Array | float, real: Array) -> _Edges:
    """Edges between all that broadcast against each other."""
    shape = jnp.broadcast_shapes(jnp.shape(senders), jnp.shape(receivers), jnp.shape(weight), real.shape)
    flat = lambda part, dtype: jnp.broadcast_to(jnp.asarray(part, dtype), shape).reshape(-1)
    return _Edges(
        flat(senders, jnp.int32), flat(receivers, jnp.int32), flat(weight, jnp.float32), flat(real, jnp.bool_)
    )
