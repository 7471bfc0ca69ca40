"""Totals: the summed utilisation of every resource, with the links that partitions share."""

import jax.numpy as jnp
from jax import Array

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.resources import layout_of


def own_use(use: Array, active: Array) -> Array:
    """float32[M]: utilisation of each resource by the running jobs of one partition.

    Args: `use: float32[M, R]`, `active: bool[R]`.
    """
    return use @ active.astype(jnp.float32)


def totals(cluster: Cluster, own: Array) -> Array:
    """float32[P, M]: utilisation of each resource by all running jobs.

    A link's total sums over all partitions that reach it. Args: `own: float32[P, M]`, by partition.
    """
    link = layout_of(cluster).link
    everywhere = jnp.zeros_like(cluster.link_bytes_s).at[cluster.link_id].add(own[:, link])
    return own.at[:, link].set(everywhere[cluster.link_id])
