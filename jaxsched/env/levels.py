"""Levels by which running and queued jobs compare (docs/semantics.md, section 8, "Orders")."""

import dataclasses
import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32

from jaxsched.env.extensions.history import bin_of, gittins_levels, on_grid
from jaxsched.env.extensions.preemption import intervals_run
from jaxsched.env.extensions.sharing import gpus_of
from jaxsched.env.knowledge import estimated_left_s, left_by_estimate_s
from jaxsched.env.state import EnvParams, State
from jaxsched.errors import UserError
from jaxsched.semantics import (
    FIRST_RUN_S,
    HIGHEST_LEVEL,
    LEVEL_OFFSET,
    LEVELS_PER_E,
    MLFQ_FIRST_S,
    MLFQ_LEVELS,
    MLFQ_RATIO,
    RUN_BINS,
    SMALLEST,
    STEPS,
    WIDTH_CLASSES,
)

SRTF, SRSF, LAS = CONTINUOUS = ("srtf", "srsf", "las")
MLFQ, TIRESIAS = ("mlfq", "tiresias")
GITTINS, THEMIS = STEPPED = ("gittins", "themis")
ORDERS = (*CONTINUOUS, MLFQ, TIRESIAS, *STEPPED)


@dataclasses.dataclass(frozen=True)
class LevelTable:
    """An order that is data: levels by the GPUs that jobs hold and their run time so far. UserError if misshapen."""

    levels: tuple[tuple[int, ...], ...]  # WIDTH_CLASSES rows of RUN_BINS
    margin: int = 0  # by how many levels more a running job may exceed a queued one before it is displaced

    def __post_init__(self) -> None:
        """Check shape and range."""
        if len(self.levels) != WIDTH_CLASSES or any(len(row) != RUN_BINS for row in self.levels):
            raise UserError(f"levels: should be {WIDTH_CLASSES} rows of {RUN_BINS} whole numbers")
        if any(abs(level) > HIGHEST_LEVEL for row in self.levels for level in row):
            raise UserError(f"levels: should be from -{HIGHEST_LEVEL} to {HIGHEST_LEVEL}")
        if not 0 <= self.margin <= HIGHEST_LEVEL:
            raise UserError(f"margin: {self.margin} should be from 0 to {HIGHEST_LEVEL}")


Ranking = str | LevelTable  # one of `ORDERS`, or their like as data


def margin(order: Ranking, hysteresis: float) -> int:
    """By how many levels more than a queued job a running one may exceed it before it is displaced."""
    if isinstance(order, LevelTable):
        return order.margin
    if order in STEPPED:
        return math.floor(STEPS * math.log2(1.0 + hysteresis) + 0.5)
    return math.floor(LEVELS_PER_E * math.log1p(hysteresis) + 0.5) if order in CONTINUOUS else 0


def of_queued(order: Ranking, quantum: float, params: EnvParams, state: State) -> Int32[Array, "P Q"]:
    """Levels of the queued jobs; arbitrary in empty slots."""
    row = jnp.maximum(state.queue, 0)
    if order not in (SRTF, SRSF):
        return _by_service(order, quantum, params, state, row, running=False)
    jobs, service = state.jobs, state.service
    left = jobs.estimate_s[row]
    if service.there:
        left = left_by_estimate_s(left, jobs.duration_s[row], service.left_s[row])
    return _level(left if order == SRTF else left * gpus_of(jobs, row))


def of_running(order: Ranking, quantum: float, params: EnvParams, state: State) -> Int32[Array, "P R"]:
    """Levels of the running jobs; arbitrary in free slots."""
    row = jnp.maximum(state.running.job, 0)
    if order not in (SRTF, SRSF):
        return _by_service(order, quantum, params, state, row, running=True)
    left = estimated_left_s(state)
    return _level(left if order == SRTF else left * gpus_of(state.jobs, row))


def attained_s(
    params: EnvParams, state: State, row: Int32[Array, "*jobs"], *, running: bool
) -> Float32[Array, "*jobs"]:
    """GPU-seconds that jobs, all running or all not, have received."""
    return run_s(params, state, row, running=running) * gpus_of(state.jobs, row).astype(jnp.float32)


def run_s(params: EnvParams, state: State, row: Int32[Array, "*jobs"], *, running: bool) -> Float32[Array, "*jobs"]:
    """Seconds for which jobs, all running or all not, have held GPUs."""
    return intervals_run(state, row, running=running).astype(jnp.float32) * params.interval_s


def _by_service(
    order: Ranking, quantum: float, params: EnvParams, state: State, row: Int32[Array, "*jobs"], *, running: bool
) -> Int32[Array, "*jobs"]:
    """By what jobs have received."""
    if isinstance(order, LevelTable):
        gpus = state.jobs.workers[row] * state.jobs.gpus_per_worker[row]
        return levels_of(order, gpus, run_s(params, state, row, running=running))
    if order == THEMIS:
        return _by_fairness(params, state, row, running=running)
    if order == GITTINS:
        if not state.history.there:
            raise UserError(f"order {GITTINS}: needs what finished jobs tell, which is kept where knows = history only")
        return gittins_levels(state.history)[bin_of(attained_s(params, state, row, running=running))]
    if order == LAS:
        return _level(attained_s(params, state, row, running=running))
    if order == TIRESIAS:
        return (attained_s(params, state, row, running=running) >= quantum).astype(jnp.int32)
    reached = run_s(params, state, row, running=running)[..., None] >= jnp.asarray(mlfq_limits_s(), jnp.float32)
    return reached.sum(-1, dtype=jnp.int32)


def _by_fairness(
    params: EnvParams, state: State, row: Int32[Array, "*jobs"], *, running: bool
) -> Int32[Array, "*jobs"]:
    """By how much longer than alone jobs take if they run on from now: those that have waited most for it first."""
    waited = state.clock - state.jobs.arrival[row] - intervals_run(state, row, running=running)
    ratio = 1.0 + waited.astype(jnp.float32) * params.interval_s / state.jobs.estimate_s[row]
    return -on_grid(ratio)


def mlfq_limits_s() -> list[float]:
    """Run times at which a job falls to the next of the queues of `mlfq`."""
    return [MLFQ_FIRST_S * MLFQ_RATIO**i for i in range(MLFQ_LEVELS)]


def _level(x: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    return jnp.floor(LEVELS_PER_E * jnp.log(jnp.maximum(x, SMALLEST)) + LEVEL_OFFSET).astype(jnp.int32)


def value_at(level: Int32[Array, "*jobs"]) -> Float32[Array, "*jobs"]:
    """The least value of a level of a continuous order."""
    return jnp.exp((level - LEVEL_OFFSET) / LEVELS_PER_E)


def levels_of(table: LevelTable, gpus: Int32[Array, "*jobs"], run_s: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """Levels of jobs that hold so many GPUs when they run, a shared one counted whole, and have run for so long."""
    wide = jnp.asarray([2**i for i in range(1, WIDTH_CLASSES)], jnp.int32)
    width = (gpus[..., None] >= wide).sum(-1)
    return jnp.asarray(table.levels, jnp.int32)[width, run_bin(run_s)]


def run_bin(run_s: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """How many of `run_limits_s` a run time has reached."""
    return (run_s[..., None] >= jnp.asarray(run_limits_s(), jnp.float32)).sum(-1, dtype=jnp.int32)


def run_limits_s() -> list[float]:
    """Run times at which a job may come to another level."""
    return [FIRST_RUN_S * 2.0**i for i in range(RUN_BINS - 1)]
