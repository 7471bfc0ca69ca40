"""What stages call, in this order: each extension says what becomes of it, and returns the state as it is without it.

Jobs that leave their GPUs before they are done do so under a `lax.cond`, of which only some parts of the state come:
see `on_stop` in `sharing` and `note_stop` in `preemption`.
"""

from jaxsched.env.extensions import history, preemption, sharing, starts

ON_START = (sharing.on_start, preemption.on_start, starts.on_start)  # (params, state, placed) -> state
ON_INTERVAL = (sharing.on_interval, history.on_interval)  # (params, state, finished) -> state
