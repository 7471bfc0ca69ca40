"""Potential-based shaping (Ng, Harada & Russell, 1999): what the present state will cost if nothing better is done.

`Phi = -weight [sum over running of remaining (slowdown - 1) + waiting * sum over queued of duration] / scale`
per scheduler. Adding `gamma Phi' - Phi` to the reward leaves the best policy unchanged and tells every single
placement what it cost. With `reward.interference` off the first sum is left out. Jobs that have only just arrived are
left out of `Phi'`: nobody's decision brought them.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.env.state import EnvParams, State
from jaxsched.learning.config import RewardConfig


def potential(
    config: RewardConfig, params: EnvParams, state: State, without_arrivals: Bool[Array, ""]
) -> Float32[Array, "P"]:
    """Phi; `without_arrivals` leaves out the jobs that arrived at this boundary."""
    running = state.running
    active = running.job >= 0
    late = jnp.where(active & config.interference, running.remaining_s * (running.slowdown - 1.0), 0.0).sum(-1)
    row = jnp.maximum(state.queue, 0)
    counts = (state.queue >= 0) & ~(without_arrivals & (state.jobs.arrival[row] == state.clock))
    waiting = jnp.where(counts, state.jobs.duration_s[row], 0.0).sum(-1)
    return -config.potential * (late + config.potential_waiting * waiting) / (params.interval_s * config.scale)
