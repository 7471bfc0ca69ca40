"""Totals: the summed utilisation of every resource, with the links that partitions share."""

import jax.numpy as jnp
from jax import Array

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.resources import layout_of


def totals(cluster: Cluster, use: Array, active: Array) -> Array:
    """float32[P, M]: utilisation of each resource by all running jobs.

    A link's total sums over all partitions that reach it.

    Args:
        use: float32[P, M, R]. active: bool[P, R].
    """
    local = jnp.einsum("pr,pmr->pm", active.astype(jnp.float32), use)
    link = layout_of(cluster).link
    everywhere = jnp.zeros_like(cluster.link_bytes_s).at[cluster.link_id].add(local[:, link])
    return local.at[:, link].set(everywhere[cluster.link_id])
