"""A run once more in the environment, from the record of what was started and stopped: for what JAX does not play."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Int32, PRNGKeyArray, PyTree

from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.extensions.preemption import may_stop
from jaxsched.env.state import STOP, Action, EnvConfig, EnvParams, State
from jaxsched.event_loop import Run, numba_missing
from jaxsched.policies.base import place_or_forward
from jaxsched.policies.policy import Policy
from jaxsched.simulation.attempts import STOPPED, Attempts
from jaxsched.simulation.outcome import Outcome
from jaxsched.workload.jobs import NEVER, JobTable, to_table


def order_of_starts(
    policy: Policy, result: Outcome, config: EnvConfig, params: EnvParams, interval_s: float, pairs: Pairs | None
) -> Int[np.ndarray, "A"]:
    """The place of each attempt of a run in the order of starts.

    Where jobs are not stopped runs keep no log of it, and the event loop plays the run again.
    """
    attempts = result.attempts
    if result.interruptions is not None:
        return np.arange(len(attempts.job))
    room = {"queue_slots": len(result.jobs), "running_slots": result.stats.running_slots}
    config = dataclasses.replace(config, starts=1, **room)
    table, plain = to_table(result.jobs, interval_s, sets=config.gpu_sets), numba_missing() is not None
    run = Run(config, params, table, policy, interval_s, in_python=plain, pairs=pairs)
    run.go_on()
    assert run.log is not None
    turn = np.full(len(result.jobs), NEVER)
    turn[run.log["job"]] = np.arange(len(run.log["job"]))
    return turn[attempts.job]


def repeat(
    attempts: Attempts, turn: Int[np.ndarray, "A"], jobs: JobTable, interval_s: float, shared_gpus: int
) -> tuple[Policy, JobTable]:
    """What does once more what was done in a run, and its jobs, which come first to where they first start.

    Args:
        attempts: of the run.
        turn: see `order_of_starts`.
        jobs: of the run.
        interval_s: seconds between boundaries.
        shared_gpus: GPUs of a group that jobs may share, as in `EnvConfig`.
    """
    order = np.argsort(attempts.job, kind="stable")
    job = attempts.job[order]
    first, after = (np.searchsorted(job, np.arange(len(jobs.arrival)), side=side) for side in ("left", "right"))
    gpu = np.full(len(job), -1) if attempts.gpu is None else attempts.gpu

    def column(values: np.ndarray, last: int) -> Array:
        return jnp.asarray(np.concatenate([values[order], np.full((1, *values.shape[1:]), last)]), jnp.int32)

    def boundary(seconds: np.ndarray) -> np.ndarray:
        return np.rint(seconds / interval_s)

    script = _Script(
        first=jnp.asarray(first, jnp.int32),
        after=jnp.asarray(after, jnp.int32),
        turn=column(turn, int(NEVER)),
        partition=column(attempts.partition, -1),
        start=column(boundary(attempts.start_s), int(NEVER)),
        stop=column(np.where(attempts.ended == STOPPED, boundary(attempts.end_s), NEVER), int(NEVER)),
        workers=column(attempts.workers, 0),
        gpu=column(np.where(gpu < 0, -1, gpu % max(shared_gpus, 1)), -1),
    )
    home, some = np.array(jobs.home), after > first
    home[some] = attempts.partition[order][first[some]]
    return Policy("record", script.act), jobs.replace(home=jnp.asarray(home))


@dataclasses.dataclass(frozen=True, eq=False)
class _Script:
    """The attempts of `J` jobs as arrays, those of a job side by side; behind them one that never comes."""

    first: Int32[Array, "J"]  # attempt of each job
    after: Int32[Array, "J"]  # attempt of the next job
    turn: Int32[Array, "A"]
    partition: Int32[Array, "A"]
    start: Int32[Array, "A"]  # boundary
    stop: Int32[Array, "A"]  # boundary at which a scheduler stops it; NEVER
    workers: Int32[Array, "A NK"]
    gpu: Int32[Array, "A"]  # as in `Action`

    def act(self, key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        """What is due: stops first, then jobs go to where they will start, then starts."""
        p = jnp.arange(state.queue.shape[0])
        at = self.first + _interruptions(state)
        attempt = jnp.where(at < self.after, at, self.turn.shape[0] - 1)
        running, queued = state.running.job, attempt[jnp.maximum(state.queue, 0)]
        stop = (running >= 0) & (self.stop[attempt[jnp.maximum(running, 0)]] <= state.clock) & may_stop(params, state)
        there = self.partition[queued]
        leaves = (state.queue >= 0) & (there >= 0) & (there != p[:, None])
        due = (state.queue >= 0) & (there == p[:, None]) & (self.start[queued] <= state.clock)
        forwards = leaves.any(-1)
        some = jnp.where(forwards[:, None], leaves, due)
        slot = jnp.argmin(jnp.where(some, self.turn[queued], NEVER), -1).astype(jnp.int32)
        chosen, starts = queued[p, slot], due.any(-1) & ~forwards
        gpu = self.gpu[chosen] if state.shares else None
        action = place_or_forward(state, starts, slot, self.workers[chosen], forwards, slot, there[p, slot], gpu)
        if not state.service.there:
            return action
        return action.replace(kind=jnp.where(stop.any(-1), STOP, action.kind), stop=stop)


def _interruptions(state: State) -> Int32[Array, "J"]:
    """How often each job has been stopped, by a scheduler or a failure."""
    stops = state.service.stops if state.service.there else jnp.zeros_like(state.jobs.arrival)
    return stops + state.faults.count if state.faults.there else stops
