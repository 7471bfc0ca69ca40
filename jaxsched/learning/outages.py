"""When servers fail in the environments that are trained on: drawn anew for every one of them."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, PRNGKeyArray

from jaxsched.cluster.outages import Rates
from jaxsched.env.state import Failures
from jaxsched.workload.jobs import NEVER

MOST_OUTAGES = 32  # of a server in the life of one environment; after them it stays up


def no_outages(servers: tuple[int, ...]) -> Failures:
    """Servers, partitions by servers of each, that could fail and do not."""
    return Failures(changes=jnp.full((*servers, 1), NEVER, jnp.int32))


def drawn(
    key: PRNGKeyArray, rates: Rates, servers: tuple[int, ...], interval_s: Float32[Array, ""] | float
) -> Failures:
    """The outages of each server by itself (docs/semantics.md, section 11, "Drawn outages"), `MOST_OUTAGES` of them.

    Args: `interval_s`: where all times of a world are scaled, in units of that scale.
    """
    means_s = 3600.0 * jnp.array([rates.mtbf_h, rates.mttr_h], jnp.float32)
    steps = jax.random.exponential(key, (*servers, MOST_OUTAGES, 2)) * means_s
    times = jnp.cumsum(steps.reshape(*servers, -1), -1) / interval_s
    changes = jnp.ceil(jnp.minimum(times, NEVER // 2)).astype(jnp.int32)
    # Out, and back, for at least one boundary each: the i-th change comes i boundaries after the first at the earliest.
    place = jnp.arange(changes.shape[-1])
    changes = jax.lax.cummax(changes - place, axis=changes.ndim - 1) + place
    return Failures(changes=jnp.append(changes, jnp.full((*servers, 1), NEVER, jnp.int32), -1))
