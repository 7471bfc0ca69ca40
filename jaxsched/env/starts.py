"""A log of every start of a job, for runs in which jobs start more than once.

Records hold the first start and the last placement of a job. The log has what a job has had by each start
(`env.state.Service`), and so says how long each of its attempts was, and whether a scheduler or a failure ended it.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int8, Int16, Int32, Shaped

from jaxsched.pytree import Pytree


class Starts(Pytree):
    """Starts in order of time; rows from `count` on are stale. What comes after the last row is only counted."""

    count: Int32[Array, ""]
    job: Int32[Array, "A"]  # row of the job table
    partition: Int32[Array, "A"]
    boundary: Int32[Array, "A"]
    ran: Int32[Array, "A"]  # intervals in which the job had held GPUs before
    stops: Int32[Array, "A"]  # by schedulers, before
    falls: Int32[Array, "A"]  # by failures, before
    workers: Int8[Array, "A NK"]
    ps: Int16[Array, "A NK"]
    gpu: Int32[Array, "A"] | None  # as in `env.state.Running`; None without shared GPUs


def no_starts(rows: int, groups: int, *, shared: bool) -> Starts | None:
    """An empty log of so many rows; None without any."""
    if not rows:
        return None
    columns = {name: jnp.zeros(rows, jnp.int32) for name in ("job", "partition", "boundary", "ran", "stops", "falls")}
    return Starts(
        count=jnp.int32(0),
        **columns,
        workers=jnp.zeros((rows, groups), jnp.int8),
        ps=jnp.zeros((rows, groups), jnp.int16),
        gpu=jnp.zeros(rows, jnp.int32) if shared else None,
    )


def logged(starts: Starts, happens: Bool[Array, "P"], **columns: Shaped[Array, "P ..."]) -> Starts:
    """The log with the starts that happen in a round, by the names of its columns."""
    place = starts.count + jnp.cumsum(happens, dtype=jnp.int32) - 1
    place = jnp.where(happens, place, starts.job.shape[0])

    def put(old: Array, new: Array) -> Array:
        return old.at[place].set(new.astype(old.dtype), mode="drop")

    changes = {name: put(getattr(starts, name), column) for name, column in columns.items()}
    return starts.replace(count=starts.count + happens.sum(dtype=jnp.int32), **changes)
