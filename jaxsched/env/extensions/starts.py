"""Starts of jobs: those of one round, and what is recorded of them.

Records hold the first start and the last placement of a job. Runs in which jobs start more than once may keep a log of
every start (`env.state.Starts`).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from jaxsched.env.extensions.parts import Starts
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.pytree import Pytree


class Placed(Pytree):
    """What schedulers have placed in a round: one job each, or none."""

    legal: Bool[Array, "P"]  # the scheduler has placed a job, and could
    row: Int32[Array, "P"]  # of the job table; arbitrary where not `legal`, as all below
    slot: Int32[Array, "P"]  # running slot
    workers: Int32[Array, "P N K"]
    ps: Int32[Array, "P N K"]
    gpu: Int32[Array, "P"]  # as in `Running`

    def in_slots(self, old: Array, new: Array) -> Array:
        """`old` [P, R, ...] with `new` [P, ...] in the running slots of the placed jobs."""
        slot = jnp.where(self.legal, self.slot, old.shape[1])
        return old.at[jnp.arange(old.shape[0]), slot].set(new.astype(old.dtype), mode="drop")

    def in_rows(self, old: Array, new: Array) -> Array:
        """`old` [J, ...] with `new` [P, ...] in the rows of the placed jobs."""
        return old.at[jnp.where(self.legal, self.row, old.shape[0])].set(new.astype(old.dtype), mode="drop")


def no_starts(config: EnvConfig, groups: int) -> Starts:
    """An empty log of `config.starts` rows, with so many GPU `groups` in a partition."""
    rows = config.starts
    columns = {
        name: jnp.zeros(rows, jnp.int32)
        for name in ("job", "partition", "boundary", "ran", "stops", "failure_restarts")
    }
    return Starts(
        count=jnp.int32(0),
        **columns,
        workers=jnp.zeros((rows, groups), jnp.int8),
        ps=jnp.zeros((rows, groups), jnp.int16),
        gpu=jnp.zeros(rows if config.shared_gpus else 0, jnp.int32),
    )


def on_start(params: EnvParams, state: State, placed: Placed) -> State:
    """The state with these starts in its records of placements and in its log, where it keeps them."""
    return _log(_record(state, placed), placed)


def _record(state: State, placed: Placed) -> State:
    records, p = state.records, len(placed.row)
    if not records.workers.shape[0]:
        return state
    records = records.replace(
        workers=placed.in_rows(records.workers, placed.workers.reshape(p, -1)),
        ps=placed.in_rows(records.ps, placed.ps.reshape(p, -1)),
        gpu=placed.in_rows(records.gpu, placed.gpu) if records.gpu.size else records.gpu,
    )
    return state.replace(records=records)


def _log(state: State, placed: Placed) -> State:
    starts, row, p = state.starts, placed.row, len(placed.row)
    if not starts.there:
        return state
    place = starts.count + jnp.cumsum(placed.legal, dtype=jnp.int32) - 1
    place = jnp.where(placed.legal, place, starts.job.shape[0])
    columns = {
        "job": row,
        "partition": jnp.arange(p),
        "boundary": jnp.full_like(row, state.clock),
        "ran": state.service.ran[row],
        "stops": state.service.stops[row],
        "failure_restarts": state.faults.count[row] if state.faults.there else jnp.zeros_like(row),
        "workers": placed.workers.reshape(p, -1),
        "ps": placed.ps.reshape(p, -1),
    }
    if starts.gpu.size:
        columns["gpu"] = state.records.gpu[row]

    def put(old: Array, new: Array) -> Array:
        return old.at[place].set(new.astype(old.dtype), mode="drop")

    changes = {name: put(getattr(starts, name), column) for name, column in columns.items()}
    return state.replace(starts=starts.replace(count=starts.count + placed.legal.sum(dtype=jnp.int32), **changes))
