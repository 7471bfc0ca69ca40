"""From an observation to graphs: containment (group, server, rack, scheduler) and the graph of schedulers.

Each level is a bipartite `jraph.GraphsTuple` whose nodes are the children followed by the parents. All sizes are
static, so nothing is padded at run time; padding entries of the cluster keep an edge of weight 0.
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
    """Levels group -> server, server -> rack, rack -> scheduler over all partitions of one environment."""
    p, n, k = obs.group_mask.shape
    t = obs.rack.shape[1]
    servers = jnp.arange(p * n)
    server_real = obs.group_mask.any(-1).reshape(-1).astype(jnp.float32)
    rack = (obs.server_rack + t * jnp.arange(p)[:, None]).reshape(-1)
    rack_real = jnp.minimum(jnp.zeros(p * t).at[rack].add(server_real), 1.0)
    return (
        Level(jnp.repeat(servers, k), obs.group_mask.reshape(-1).astype(jnp.float32), p * n),
        Level(rack, server_real, p * t),
        Level(jnp.repeat(jnp.arange(p), t), rack_real, p),
    )


def upward(level: Level, children: Array, parents: Array) -> jraph.GraphsTuple:
    """Edges from every child to its parent; `children: float32[C, H]`, `parents: float32[D, H]`."""
    count = children.shape[0]
    return _graph(jnp.concatenate([children, parents]), jnp.arange(count), count + level.parent, level.real)


def downward(level: Level, children: Array, parents: Array) -> jraph.GraphsTuple:
    """Edges from every parent to its children."""
    count = children.shape[0]
    return _graph(jnp.concatenate([children, parents]), count + level.parent, jnp.arange(count), level.real)


def exchange(schedulers: Array, real: Array) -> jraph.GraphsTuple:
    """The complete graph of schedulers `float32[P, H]`, through which they exchange pooled observations.

    Schedulers that are not `real: bool[P]`, because their partition only pads, are not heard.
    """
    p = schedulers.shape[0]
    senders = jnp.repeat(jnp.arange(p), p)
    receivers = jnp.tile(jnp.arange(p), p)
    return _graph(schedulers, senders, receivers, ((senders != receivers) & real[senders]).astype(jnp.float32))


def _graph(nodes: Array, senders: Array, receivers: Array, weight: Array) -> jraph.GraphsTuple:
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=weight[:, None],
        senders=senders,
        receivers=receivers,
        n_node=jnp.array([nodes.shape[0]]),
        n_edge=jnp.array([senders.shape[0]]),
        globals=None,
    )
