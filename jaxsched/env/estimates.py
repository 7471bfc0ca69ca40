"""What policies know of the work that running jobs have left (docs/semantics.md, section 7)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from jaxsched.env.state import State
from jaxsched.semantics import OVERDUE


def estimated_left_s(state: State) -> Float32[Array, "P R"]:
    """Ideal seconds that each running job has left by its estimate; 0 in free slots."""
    running = state.running
    estimate = state.jobs.estimate_s[jnp.maximum(running.job, 0)]
    left = running.remaining_s + (estimate - running.duration_s)  # to the last bit what is left if that is known
    left = jnp.where(left > 0, left, OVERDUE * (running.duration_s - running.remaining_s))
    return jnp.where(running.job >= 0, left, 0.0)
