"""Totals: the summed utilisation of every resource, with the links that partitions share.

Where links are few without a `scatter`, which no loop holds that becomes one function (`machine.loop_options`).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.resources import layout_of

PAIRS = 64  # links' places of which every one is compared with every other; more are scattered


def own_use(use: Float32[Array, "M R"], active: Bool[Array, "R"]) -> Float32[Array, "M"]:
    """Utilisation of each resource by the running jobs of one partition."""
    return use @ active.astype(jnp.float32)


def totals(cluster: Cluster, own: Float32[Array, "P M"]) -> Float32[Array, "P M"]:
    """Utilisation of each resource by all running jobs, of that by each partition's `own`.

    A link's total sums over all partitions that reach it.
    """
    link = layout_of(cluster).link
    on_link, place = own[:, link], cluster.link_id
    if place.size > PAIRS:
        everywhere = jnp.zeros_like(cluster.link_bytes_s).at[place].add(on_link)[place]
    else:
        same = place.reshape(-1, 1) == place.reshape(-1)
        everywhere = jnp.where(same, on_link.reshape(-1), 0.0).sum(-1).reshape(place.shape)
    return jnp.concatenate([own[:, : link.start], everywhere], -1)
