"""From an observation to graphs: containment (group, server, rack, scheduler) and the graph of schedulers.

Nodes of a `jraph.GraphsTuple` are those that speak here: senders are indices of these, receivers of those that listen,
and `hear` alone reads it. All sizes are static; padding entries of the cluster keep an edge of weight 0, not heard.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jraph
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.env.observation import Observation


class Level(NamedTuple):
    """Which parent each child belongs to, whether the child is real, and how many parents there are."""

    parent: Int32[Array, "children"]
    real: Float32[Array, "children"]  # 0 or 1
    parents: int
    each: int  # children that every parent has, one behind the other; 0: as `parent` says


class Talk(NamedTuple):
    """A graph, and what is said along its edges."""

    graph: jraph.GraphsTuple
    spoken: Float32[Array, "edges H"]
    listeners: int
    each: int  # edges that lead to every listener, one behind the other; 0: as the receivers say


def containment(obs: Observation) -> tuple[Level, Level, Level]:
    """Levels group -> server, server -> rack, rack -> scheduler over all partitions, of any number of environments."""
    n, k = obs.group_mask.shape[-2:]
    group_real = obs.group_mask.reshape(-1, n, k)
    p, t = group_real.shape[0], obs.rack.shape[-2]
    server_real = group_real.any(-1).reshape(-1).astype(jnp.float32)
    rack = (obs.server_rack.reshape(p, n) + t * jnp.arange(p)[:, None]).reshape(-1)
    rack_real = jnp.minimum(jnp.zeros(p * t).at[rack].add(server_real), 1.0)
    return (
        Level(jnp.repeat(jnp.arange(p * n), k), group_real.reshape(-1).astype(jnp.float32), p * n, k),
        Level(rack, server_real, p * t, 0),
        Level(jnp.repeat(jnp.arange(p), t), rack_real, p, t),
    )


def upward(level: Level, children: Float32[Array, "children H"]) -> Talk:
    """Every child speaks to its parent."""
    senders = jnp.arange(children.shape[0])
    return _talk(children, children, senders, level.parent, level.real, level.parents, level.each)


def downward(level: Level, parents: Float32[Array, "parents H"]) -> Talk:
    """Every parent speaks to its children."""
    count = level.parent.shape[0]
    spoken = jnp.repeat(parents, level.each, 0) if level.each else parents[level.parent]
    return _talk(parents, spoken, level.parent, jnp.arange(count), level.real, count, 1)


def exchange(real: Bool[Array, "*batch P"], schedulers: Float32[Array, "S H"]) -> Talk:
    """The complete graph of the schedulers of each environment, through which they exchange views.

    Args: `schedulers` of all environments in a row. Those that are not `real`, because their partition only pads, are
    not heard.
    """
    p, count = real.shape[-1], schedulers.shape[0]
    first = jnp.arange(0, count, p)[:, None]
    senders = (first + jnp.tile(jnp.arange(p), p)).reshape(-1)
    receivers = (first + jnp.repeat(jnp.arange(p), p)).reshape(-1)
    weight = (senders != receivers) & real.reshape(-1)[senders]
    spoken = jnp.broadcast_to(
        schedulers.reshape(-1, 1, p, schedulers.shape[1]), (count // p, p, p, schedulers.shape[1])
    )
    spoken = spoken.reshape(count * p, -1)
    return _talk(schedulers, spoken, senders, receivers, weight.astype(jnp.float32), count, p)


def hear(talk: Talk) -> Float32[Array, "listeners H"]:
    """What every listener hears: the sum of what is said to it, by the weights of the edges."""

    weighed = lambda loudness, *_: loudness * talk.spoken
    received_alone = lambda nodes, sent, received, globals_: received
    add_up = lambda edges, *_: _add_up(edges, jnp.asarray(talk.graph.receivers), talk.listeners, talk.each)
    nodes = jraph.GraphNetwork(weighed, received_alone, aggregate_edges_for_nodes_fn=add_up)(talk.graph).nodes
    assert isinstance(nodes, Array)
    return nodes


def _add_up(edges: Float32[Array, "edges F"], receivers: Int32[Array, "edges"], listeners: int, each: int) -> Array:
    """Sums of what leads to every listener. Of as many edges each there is nothing to look up."""
    if each:
        return edges.reshape(listeners, each, edges.shape[1]).sum(1)
    return jraph.segment_sum(edges, receivers, listeners)


def _talk(
    speakers: Float32[Array, "speakers H"],
    spoken: Float32[Array, "edges H"],
    senders: Int32[Array, "edges"],
    receivers: Int32[Array, "edges"],
    weight: Float32[Array, "edges"],
    listeners: int,
    each: int,
) -> Talk:
    """Edges carry their weight over the square root of all that their receiver hears.

    So the sum of messages sees load, and stays in range as a level grows.
    """
    root = jnp.sqrt(jnp.maximum(_add_up(weight[:, None], receivers, listeners, each), 1.0))
    loudness = weight[:, None] / (jnp.repeat(root, each, 0) if each else root[receivers])
    graph = jraph.GraphsTuple(
        nodes=speakers,
        edges=loudness,
        senders=senders,
        receivers=receivers,
        n_node=jnp.array([speakers.shape[0]]),
        n_edge=jnp.array([senders.shape[0]]),
        globals=None,
    )
    return Talk(graph, spoken, listeners, each)
