"""What policies know of the work that jobs have left (docs/semantics.md, section 7)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.env.state import State
from jaxsched.semantics import OVERDUE


def estimated_left_s(state: State) -> Float32[Array, "P R"]:
    """Ideal seconds that each running job has left by its estimate; 0 in free slots."""
    running = state.running
    estimate = state.jobs.estimate_s[jnp.maximum(running.job, 0)]
    left = left_by_estimate_s(estimate, running.duration_s, running.remaining_s)
    return jnp.where(running.job >= 0, left, 0.0)


def left_by_estimate_s(
    estimate_s: Float32[Array, "*jobs"], duration_s: Float32[Array, "*jobs"], remaining_s: Float32[Array, "*jobs"]
) -> Float32[Array, "*jobs"]:
    """Ideal seconds that jobs have left by their estimates, of which `remaining_s` are truly left."""
    left = _up_to_estimate_s(estimate_s, duration_s, remaining_s)
    return jnp.where(left > 0, left, OVERDUE * (duration_s - remaining_s))


def outlived(state: State) -> Bool[Array, "P R"]:
    """Whether each running job has run for longer than its estimate; False in free slots."""
    running = state.running
    estimate = state.jobs.estimate_s[jnp.maximum(running.job, 0)]
    return (running.job >= 0) & (_up_to_estimate_s(estimate, running.duration_s, running.remaining_s) <= 0)


def _up_to_estimate_s(estimate_s: Array, duration_s: Array, remaining_s: Array) -> Array:
    return remaining_s + (estimate_s - duration_s)  # to the last bit what is left if that is known
