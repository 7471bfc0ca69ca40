"""What schedulers are shown as one graph of jobs, hardware, links, schedulers and options; sizes never change.

All nodes have the same columns (`features.NODE`): the kind, whether the node is real, and a block for each kind, 0 in
nodes of others. Racks stand for their switches; of switches above them a world knows the links only. Every line of the
menu is a node, between its job and the GPU groups that it would take. So actions are scored at the last `P * A` nodes,
and schedulers are the `P` before these. An edge stands once, in the direction of `features.EDGES`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.adapters.features import EDGES, NODES
from jaxsched.adapters.shown import Seen, show_menu
from jaxsched.dynamics.resources import layout_of
from jaxsched.env.observation import Menu, Observation
from jaxsched.env.state import EnvParams, State


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
