"""From an observation to graphs: containment (group, server, rack, scheduler) and the graph of schedulers.

Each level is a bipartite `jraph.GraphsTuple` whose nodes are those that speak followed by those that listen. All sizes
are static, so nothing is padded at run time; padding entries of the cluster keep an edge of weight 0, not heard.
"""

from typing import Any, NamedTuple

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


def containment(obs: Observation) -> tuple[Level, Level, Level]:
    """Levels group -> server, server -> rack, rack -> scheduler over all partitions, of any number of environments."""
    n, k = obs.group_mask.shape[-2:]
    group_real = obs.group_mask.reshape(-1, n, k)
    p, t = group_real.shape[0], obs.rack.shape[-2]
    server_real = group_real.any(-1).reshape(-1).astype(jnp.float32)
    rack = (obs.server_rack.reshape(p, n) + t * jnp.arange(p)[:, None]).reshape(-1)
    rack_real = jnp.minimum(jnp.zeros(p * t).at[rack].add(server_real), 1.0)
    return (
        Level(jnp.repeat(jnp.arange(p * n), k), group_real.reshape(-1).astype(jnp.float32), p * n),
        Level(rack, server_real, p * t),
        Level(jnp.repeat(jnp.arange(p), t), rack_real, p),
    )


def upward(level: Level, children: Float32[Array, "children H"]) -> jraph.GraphsTuple:
    """Edges from every child to its parent; `children` are heard, the parents' nodes are empty."""
    count = children.shape[0]
    return _graph(children, level.parents, jnp.arange(count), count + level.parent, level.real)


def downward(level: Level, parents: Float32[Array, "parents H"]) -> jraph.GraphsTuple:
    """Edges from every parent to its children; `parents` are heard, the children's nodes are empty."""
    count = level.parent.shape[0]
    return _graph(parents, count, level.parent, level.parents + jnp.arange(count), level.real)


def exchange(real: Bool[Array, "*batch P"], schedulers: Float32[Array, "S H"]) -> jraph.GraphsTuple:
    """The complete graph of the schedulers of each environment, through which they exchange views.

    Args: `schedulers` of all environments in a row. Those that are not `real`, because their partition only pads, are
    not heard.
    """
    p = real.shape[-1]
    first = jnp.arange(0, schedulers.shape[0], p)[:, None]
    senders = (first + jnp.repeat(jnp.arange(p), p)).reshape(-1)
    receivers = (first + jnp.tile(jnp.arange(p), p)).reshape(-1)
    weight = (senders != receivers) & real.reshape(-1)[senders]
    return _graph(schedulers, 0, senders, receivers, weight.astype(jnp.float32))


def hear(graph: jraph.GraphsTuple, listeners: int) -> Float32[Array, "listeners H"]:
    """What the last so many nodes hear: the sum of what others say to them, by the weights of the edges."""

    def weighed(loudness: Any, sent: Any, received: Any, globals_: Any) -> Array:
        return loudness * sent

    def received_alone(nodes: Any, sent: Any, received: Any, globals_: Any) -> Array:
        return received

    nodes = jraph.GraphNetwork(update_edge_fn=weighed, update_node_fn=received_alone)(graph).nodes
    assert isinstance(nodes, Array)
    return nodes[-listeners:]


def _graph(
    speakers: Float32[Array, "speakers H"],
    listeners: int,
    senders: Int32[Array, "edges"],
    receivers: Int32[Array, "edges"],
    weight: Float32[Array, "edges"],
) -> jraph.GraphsTuple:
    """Edges carry their weight over the square root of all that their receiver hears.

    So the sum of messages sees load, and stays in range as a level grows.
    """
    nodes = jnp.pad(speakers, ((0, listeners), (0, 0)))
    total = jraph.segment_sum(weight, receivers, nodes.shape[0])
    loudness = weight / jnp.sqrt(jnp.maximum(total, 1.0))[receivers]
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=loudness[:, None],
        senders=senders,
        receivers=receivers,
        n_node=jnp.array([nodes.shape[0]]),
        n_edge=jnp.array([senders.shape[0]]),
        globals=None,
    )
