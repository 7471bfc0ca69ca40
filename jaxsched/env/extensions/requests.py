"""CPUs and memory that jobs reserve of their servers, if some do (docs/semantics.md, section 2).

They are reserved, not used: contention for CPU cores is another matter (section 5). What is left follows from the jobs
that run, so that the state holds nothing of it.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.occupants import in_servers
from jaxsched.env.state import State


def asks_of(state: State, row: Int32[Array, "*jobs"]) -> Int32[Array, "*jobs 2"]:
    """What each worker of the jobs in these rows reserves."""
    return jnp.moveaxis(state.jobs.asks[:, row], 0, -1)


def spare(state: State, cluster: Cluster) -> Int32[Array, "P N 2"]:
    """What is left of each server."""
    job, occupants = state.running.job, state.running.occupants
    asks = jnp.where((job >= 0)[..., None], asks_of(state, jnp.maximum(job, 0)), 0)
    return cluster.reservable - jax.vmap(in_servers)(occupants, asks)
