"""What policies know of run times and of the work that jobs have left (docs/semantics.md, sections 7 and 9)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from jaxsched.env.extensions.history import estimates_s
from jaxsched.env.state import FINISHED, EnvConfig, EnvParams, State
from jaxsched.semantics import ESTIMATES, HISTORY, OVERDUE, RUNTIMES
from jaxsched.semantics import KNOWLEDGE as KNOWLEDGE
from jaxsched.semantics import NOTHING as NOTHING


def mask_unknown(config: EnvConfig, params: EnvParams, state: State) -> State:
    """The state as a policy sees it that knows what `config.knows` says.

    With `estimates` every run time, and what is left of it, is by the job's estimate. With `history` likewise but for
    jobs that have finished, and the estimate is made of those. With `nothing` estimates are NaN, and run times 0, so
    that what is left is minus what has been done.
    """
    knows = config.knows
    if knows == RUNTIMES:
        return state
    duration_s, row = state.jobs.duration_s[:], jnp.maximum(state.running.job, 0)
    if knows == ESTIMATES:
        estimate_s = state.jobs.estimate_s[:]
        return _shifted(state, estimate_s - duration_s, estimate_s, row)
    if knows == HISTORY:
        known = jnp.where(state.records.status == FINISHED, duration_s, estimates_s(params, state))
        return _shifted(state, known - duration_s, known, row)
    return _shifted(state, -duration_s, jnp.full_like(duration_s, jnp.nan), row)


def _shifted(state: State, more: Float32[Array, "J"], estimate: Float32[Array, "J"], row: Array) -> State:
    """The state with so many seconds `more` in every run time and in what is left of it."""
    running, service = state.running, state.service
    there = running.job >= 0  # free slots have what the last job had

    def in_slots(seconds: Array) -> Array:
        return jnp.where(there, seconds + more[row], 0.0)

    if service.there:
        # `lost_s` tells how long checkpoint intervals are, and no more.
        service = service.replace(
            left_s=service.left_s + more + service.left_low_s, left_low_s=jnp.zeros_like(service.left_low_s)
        )
    return state.replace(
        jobs=state.jobs.replace(duration_s=state.jobs.duration_s[:] + more, estimate_s=estimate),
        running=running.replace(
            duration_s=in_slots(running.duration_s),
            remaining_s=in_slots(running.remaining_s) + jnp.where(there, running.remaining_low_s, 0.0),
            remaining_low_s=jnp.zeros_like(running.remaining_low_s),
        ),
        service=service,
    )


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
    left = remaining_s + (estimate_s - duration_s)  # to the last bit what is left if that is known
    return jnp.where(left > 0, left, OVERDUE * (duration_s - remaining_s))
