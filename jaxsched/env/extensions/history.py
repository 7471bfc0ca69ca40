"""What finished jobs tell of others: expected run times (docs/semantics.md, section 9, "History").

All of it is whole numbers and single 32-bit operations, so that every engine finds the same to the last bit.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Bool, Float32, Int, Int32

from jaxsched.env.extensions.parts import History
from jaxsched.env.state import RUNNING, EnvConfig, EnvParams, State
from jaxsched.semantics import (
    FIRST_BIN_S,
    HISTORY,
    MOST_STEPS,
    OUTLIVED,
    PARTS,
    PRIOR_JOBS,
    PRIOR_STEPS,
    SERVICE_BINS,
    SIZES,
    STEPS,
)
from jaxsched.workload.jobs import JobTable, look_up

GRID = (2.0 ** (np.arange(1, MOST_STEPS + 1) / STEPS)).astype(np.float32)  # where the steps begin
SECONDS = (2.0 ** (np.arange(MOST_STEPS * PARTS + 1) / (STEPS * PARTS))).astype(np.float32)  # of means
BIN_EDGES = (FIRST_BIN_S * 2.0 ** np.arange(SERVICE_BINS - 1)).astype(np.float32)  # of `gittins`, GPU-seconds


def class_counts(tenants: int, models: int) -> tuple[int, ...]:
    """How many classes each stage has."""
    return (1, SIZES, SIZES * tenants, SIZES * tenants * models)


def no_history(config: EnvConfig, params: EnvParams) -> History:
    """No job has finished yet; of size 0 unless policies know the history."""
    known = config.knows == HISTORY
    classes = sum(class_counts(config.tenants, params.profiles.compute_s.shape[-1])) if known else 0
    none = jnp.zeros(classes, jnp.int32)
    return History(jobs=none, steps=none)


def classes_of(
    jobs: JobTable, row: Int[ArrayLike, "*jobs"], tenants: int, models: int
) -> tuple[Int[ArrayLike, "*jobs"], ...]:
    """The classes of jobs, one of each stage, as places in `History`; NumPy's arrays give such."""
    gpus = look_up(jobs.workers, row) * look_up(jobs.gpus_per_worker, row)
    size = (gpus[..., None] > 2 ** np.arange(SIZES - 1)).sum(-1, dtype=jnp.int32)
    tenant = size * tenants + look_up(jobs.tenant, row)
    counts = class_counts(tenants, models)
    begins = np.cumsum([0, *counts[:-1]])
    inside = (0 * size, size, tenant, tenant * models + look_up(jobs.model, row))
    return tuple(int(begin) + index for begin, index in zip(begins, inside, strict=True))


def on_interval(params: EnvParams, state: State, finished: Bool[Array, "P R"]) -> State:
    """The state whose history has the jobs in the running slots that have `finished`, too."""
    history, jobs, row = state.history, state.jobs, jnp.maximum(state.running.job, 0)
    if not history.there:
        return state
    run_s = jobs.duration_s[row]
    once, steps = finished.astype(jnp.int32), jnp.where(finished, on_grid(run_s), 0)
    counts, sums = history.jobs, history.steps
    for index in classes_of(jobs, row, state.attained_s.shape[0], params.profiles.compute_s.shape[-1]):
        counts, sums = counts.at[index].add(once), sums.at[index].add(steps)
    return state.replace(history=History(jobs=counts, steps=sums))


def on_grid(x: Float32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """Steps of the grid that `x` has reached: 0 below 2^(1/16)."""
    return jnp.searchsorted(jnp.asarray(GRID), x, side="right").astype(jnp.int32)


def estimates_s(params: EnvParams, state: State) -> Float32[Array, "J"]:
    """Run times that the history lets one expect of all jobs; of those that have run for long, at least twice that."""
    rows = jnp.arange(state.jobs.arrival.shape[-1])
    tenants, models = state.attained_s.shape[0], params.profiles.compute_s.shape[-1]
    expected = expected_s(state.history, classes_of(state.jobs, rows, tenants, models))
    runs = state.records.status == RUNNING
    if not state.service.there:
        ran = jnp.where(runs, state.clock - state.records.start, 0)
    else:
        ran = state.service.ran + jnp.where(runs, state.clock - state.service.since, 0)
    return jnp.maximum(expected, OUTLIVED * (ran.astype(jnp.float32) * params.interval_s))


def expected_s(history: History, classes: tuple[Int[ArrayLike, "*jobs"], ...]) -> Float32[Array, "*jobs"]:
    """The mean of the logarithms of run times, by class, each shrunk towards that of the wider class."""
    mean = jnp.int32(PARTS * PRIOR_STEPS)
    for index in classes:
        count = history.jobs[index] + PRIOR_JOBS
        whole, rest = history.steps[index] // count, history.steps[index] % count
        mean = PARTS * whole + (PARTS * rest + PRIOR_JOBS * mean) // count
    return jnp.asarray(SECONDS)[jnp.clip(mean, 0, len(SECONDS) - 1)]
