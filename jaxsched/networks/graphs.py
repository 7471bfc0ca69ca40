"""From an observation to graphs: containment (group, server, rack, scheduler) and the graph of schedulers.

Each level is a bipartite `jraph.GraphsTuple` whose nodes are those that speak followed by those that listen. All sizes
are static, so nothing is padded at run time; padding entries of the cluster keep an edge of weight 0, not heard.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jraph
from jax import Array

from jaxsched.env.observation import Observation


class Level(NamedTuple):
    """Which parent each child belongs to, and whether the child is real; both `[children]`, plus the parents' count."""

    parent: Array  # int32
    real: Array  # float32
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


def upward(level: Level, children: Array) -> jraph.GraphsTuple:
    """Edges from every child to its parent; `children: float32[C, H]` are heard, the parents' nodes are empty."""
    count = children.shape[0]
    return _graph(children, level.parents, jnp.arange(count), count + level.parent, level.real)


def downward(level: Level, parents: Array) -> jraph.GraphsTuple:
    """Edges from every parent to its children; `parents: float32[D, H]` are heard, the children's nodes are empty."""
    count = level.parent.shape[0]
    return _graph(parents, count, level.parent, level.parents + jnp.arange(count), level.real)


def exchange(real: Array, schedulers: Array) -> jraph.GraphsTuple:
    """The complete graph of the schedulers `float32[S, H]` of each environment, through which they exchange views.

    Schedulers that are not `real: bool[..., P]`, because their partition only pads, are not heard.
    """
    p = real.shape[-1]
    first = jnp.arange(0, schedulers.shape[0], p)[:, None]
    senders = (first + jnp.repeat(jnp.arange(p), p)).reshape(-1)
    receivers = (first + jnp.tile(jnp.arange(p), p)).reshape(-1)
    weight = (senders != receivers) & real.reshape(-1)[senders]
    return _graph(schedulers, 0, senders, receivers, weight.astype(jnp.float32))


def _graph(speakers: Array, listeners: int, senders: Array, receivers: Array, weight: Array) -> jraph.GraphsTuple:
    """Edges carry their weight over the square root of all that their receiver hears.

    So the sum of messages sees load, and stays in range as a level grows.
    """
    nodes = jnp.pad(speakers, ((0, listeners), (0, 0)))
    heard = jraph.segment_sum(weight, receivers, nodes.shape[0])
    loudness = weight / jnp.sqrt(jnp.maximum(heard, 1.0))[receivers]
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=loudness[:, None],
        senders=senders,
        receivers=receivers,
        n_node=jnp.array([nodes.shape[0]]),
        n_edge=jnp.array([senders.shape[0]]),
        globals=None,
    )
