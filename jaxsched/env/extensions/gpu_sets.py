"""What jobs ask for: types of GPUs that they are bound to, CPUs and memory (docs/semantics.md, section 2).

Few jobs differ in that: the sets of types that some job names are numbered (`EnvConfig.gpu_sets`), and `State.usable`
says of each set which groups of the cluster it has. Where no job is bound there is no set, and nothing is masked.

CPUs and memory are reserved, not used: contention for cores is another matter (section 5). What is left follows from
the jobs that run.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int32, Shaped

from jaxsched.cluster.gpu_types import types_named
from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.occupants import in_servers
from jaxsched.env.state import EnvConfig, State
from jaxsched.workload.jobs import JobTable, split_types

Seen = Callable[[State, Cluster], Shaped[Array, "..."]]


def with_choice(config: EnvConfig, jobs: JobTable) -> JobTable:
    """`jobs` with columns of what they may use of the cluster, or reserve, exactly where the world has it."""
    lead, size = jobs.workers.shape[:-1], jobs.workers.shape[-1]
    allowed = jobs.allowed if jobs.allowed.size else jnp.zeros((*lead, size), jnp.int32)
    asks = jobs.asks if jobs.asks.size else jnp.zeros((*lead, 2, size), jnp.int32)
    none = jnp.zeros((*lead, 0), jnp.int32), jnp.zeros((*lead, 0, 0), jnp.int32)
    return jobs.replace(allowed=allowed if config.gpu_sets else none[0], asks=asks if config.asks else none[1])


def usable_groups(cluster: Cluster, sets: Sequence[str]) -> Bool[Array, "A P N K"]:
    """Which groups each set has; the first of them, "", all that have GPUs."""
    kinds, real = cluster.group_gpu_type, cluster.group_gpus > 0
    if not sets:
        return jnp.zeros((0, *real.shape), bool)
    return jnp.asarray(types_of_sets(cluster.gpu_types, sets))[:, jnp.maximum(kinds, 0)] & real


def types_of_sets(gpu_types: Sequence[str], sets: Sequence[str]) -> Bool[np.ndarray, "A types"]:
    """Which of a cluster's GPU types each set has; "" has all."""
    named = [types_named(split_types(text), gpu_types) if text else frozenset(gpu_types) for text in sets]
    return np.array([[name in types for name in gpu_types] for types in named], bool).reshape(-1, len(gpu_types))


def of_each_job(state: State, cluster: Cluster, row: Int32[Array, "*jobs"], find: Seen) -> Shaped[Array, "..."]:
    """What `find` finds for the jobs in these rows, each of which sees only GPUs that it may use.

    Args:
        find: of a state and a cluster: arrays that begin with the axes of `row`.
    """
    if not state.binds:
        return find(state, cluster)
    found = jax.vmap(lambda usable: find(*_masked(state, cluster, usable)))(state.usable)
    own = state.jobs.allowed[row].reshape(1, *row.shape, *(1,) * (found.ndim - 1 - row.ndim))
    return jnp.take_along_axis(found, own, 0)[0]


def _masked(state: State, cluster: Cluster, usable: Bool[Array, "P N K"]) -> tuple[State, Cluster]:
    """The state and the cluster as who may use these groups sees them."""
    seen = state.replace(
        free=jnp.where(usable, state.free, 0), shared=jnp.where(usable[..., None], state.shared, jnp.int16(0))
    )
    return seen, cluster.replace(group_gpus=jnp.where(usable, cluster.group_gpus, 0))


def usable_by(state: State, row: Int32[Array, "P"]) -> Bool[Array, "P N K"]:
    """The groups of each partition that its job, the one in row `row`, may use; there must be sets."""
    return state.usable[state.jobs.allowed[row], jnp.arange(row.shape[0])]


def share_no_gpu(state: State, row: Int32[Array, "P Q"], gang: Int32[Array, "P"]) -> Bool[Array, "P Q P"]:
    """Whether a partition has no GPU that both the job and its own `gang` may use; there must be sets."""
    common = jnp.einsum("apnk,bpnk->abp", state.usable.astype(jnp.int32), state.usable.astype(jnp.int32)) > 0
    allowed = state.jobs.allowed
    return ~common[allowed[row][..., None], allowed[gang], jnp.arange(gang.shape[0])]


def asks_of(state: State, row: Int32[Array, "*jobs"]) -> Int32[Array, "*jobs 2"]:
    """What each worker of the jobs in these rows reserves."""
    return jnp.moveaxis(state.jobs.asks[:, row], 0, -1)


def spare(state: State, cluster: Cluster) -> Int32[Array, "P N 2"]:
    """What is left of each server."""
    job, occupants = state.running.job, state.running.occupants
    asks = jnp.where((job >= 0)[..., None], asks_of(state, jnp.maximum(job, 0)), 0)
    return cluster.reservable - jax.vmap(in_servers)(occupants, asks)
