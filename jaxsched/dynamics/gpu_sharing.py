"""Jobs that share one GPU: how much they press on it, and how much longer each computes (docs/semantics.md, 5).

A job's pressure is a vector that adds up over co-runners: first 1, its use of the GPU, then what the fitted law knows
of its model on this GPU type, then, where pairs of models have factors, 1 in its model's place. Without a law, or on a
GPU type that it does not cover, the law's numbers do not count.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.resources import GPU
from jaxsched.dynamics.sharing import SharingTable, mean_slowdown
from jaxsched.pytree import Pytree


class Sharers(Pytree):
    """Jobs that may share GPUs."""

    gpu: Int32[Array, "*jobs"]  # which of the partition's shared GPUs, -1 = none
    model: Int32[Array, "*jobs"]
    gpu_type: Int32[Array, "*jobs"]  # as in `Cluster.group_gpu_type`


def _known(table: SharingTable, values: Float32[Array, "A T models C"], jobs: Sharers) -> Float32[Array, "A *jobs C"]:
    """`values` of the jobs."""
    kinds = table.covered.shape[0]
    return values[:, jnp.clip(jobs.gpu_type, 0, kinds - 1), jobs.model]


def pressure_of(interference: Interference, jobs: Sharers) -> Float32[Array, "*jobs pressures"]:
    """What each job adds to the pressure on its GPU: one number, with a table `A C` more, with factors one a model."""
    table, pairs = interference.sharing, interference.pairs
    parts = [jnp.ones((*jobs.model.shape, 1), jnp.float32)]
    if table is not None:
        known = jnp.moveaxis(_known(table, table.pressure, jobs), 0, -2)
        parts.append(known.reshape(*jobs.model.shape, -1))
    if pairs is not None:
        parts.append(jax.nn.one_hot(jobs.model, pairs.shape[0]))
    return jnp.concatenate(parts, -1)


def stretch_under(
    interference: Interference, jobs: Sharers, others: Float32[Array, "*jobs pressures"]
) -> Float32[Array, "*jobs"]:
    """How much longer the jobs compute under the pressure of `others`; 1 alone."""
    pairs = interference.pairs
    if pairs is None:
        return _by_law(interference, jobs, others)
    law = _by_law(interference, jobs, others[..., : -pairs.shape[0]])
    return 1.0 + mean_factor(pairs, jobs.model, others[..., -pairs.shape[0] :]) * (law - 1.0)


def mean_factor(
    pairs: Float32[Array, "models models"], model: Int32[Array, "*jobs"], others: Float32[Array, "*jobs models"]
) -> Float32[Array, "*jobs"]:
    """The mean of the factors of a model beside so many `others` of each model; 0 beside none."""
    return (pairs[model] * others).sum(-1) / jnp.maximum(others.sum(-1), 1.0)


def _by_law(
    interference: Interference, jobs: Sharers, others: Float32[Array, "*jobs pressures"]
) -> Float32[Array, "*jobs"]:
    """`stretch_under` where all factors are 1."""
    table, use = interference.sharing, jnp.ones(jobs.model.shape, jnp.float32)
    stretch = jnp.broadcast_to(interference(GPU, jobs.model, use, others[..., 0]), use.shape)
    if table is None:
        return stretch
    members, kinds = table.laws.bias.shape[0], table.covered.shape[0]
    pushed = jnp.moveaxis(others[..., 1:].reshape(*use.shape, members, -1), -2, 0)
    law = mean_slowdown(table.laws, _known(table, table.sensitivity, jobs), pushed)
    covered = (jobs.gpu_type >= 0) & (jobs.gpu_type < kinds) & table.covered[jnp.clip(jobs.gpu_type, 0, kinds - 1)]
    return jnp.where(covered, law, stretch)


def others_on(
    gpus: int, jobs: Sharers, active: Bool[Array, "R"], pressure: Float32[Array, "R pressures"]
) -> Float32[Array, "R pressures"]:
    """The pressure of every job's co-runners on the same of the partition's shared `gpus`; exactly 0 alone."""
    here = active & (jobs.gpu >= 0)
    gpu = jnp.where(here, jobs.gpu, gpus)
    total = jax.ops.segment_sum(pressure, gpu, gpus + 1)
    return jnp.where(here[:, None], jnp.maximum(total[gpu] - pressure, 0.0), 0.0)


def stretch_of(interference: Interference, gpus: int, jobs: Sharers, active: Bool[Array, "R"]) -> Float32[Array, "R"]:
    """How much longer the computation of each running job of a partition takes; 1 for all others."""
    others = others_on(gpus, jobs, active, pressure_of(interference, jobs))
    return jnp.where(active & (jobs.gpu >= 0), stretch_under(interference, jobs, others), 1.0)


def stretch_with(
    interference: Interference, gpus: int, running: Sharers, now: Float32[Array, "R"], placed: Sharers
) -> tuple[Float32[Array, "C"], Float32[Array, "C R"]]:
    """Stretches if each of C placements of one job were added: of that job, and of those that run.

    Args: `gpus`: shared GPUs of the partition; `running`: leaves [R], `gpu` -1 in free slots, too; `now`: their
    stretches; `placed`: leaves [C].
    """
    columns = jnp.arange(placed.gpu.shape[0])
    pressure, added = (pressure_of(interference, jobs) for jobs in (running, placed))
    beside = (placed.gpu[:, None] == running.gpu) & (placed.gpu[:, None] >= 0)
    own = stretch_under(interference, placed, beside.astype(jnp.float32) @ pressure)
    others = others_on(gpus, running, running.gpu >= 0, pressure)
    place = jnp.cumsum(beside, axis=1)
    most = place[:, -1]

    # Few jobs share a GPU: look at the first co-runner of every placement, then at the second, and so on.
    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, after = carry
        row = jnp.argmax(beside & (place == k + 1), axis=1)
        jobs = jax.tree.map(lambda leaf: leaf[row], running)
        slower = stretch_under(interference, jobs, others[row] + added)
        return k + 1, after.at[columns, row].set(jnp.where(k < most, slower, after[columns, row]))

    start = (jnp.int32(0), jnp.broadcast_to(now, beside.shape))
    _, after = lax.while_loop(lambda carry: carry[0] < most.max(), body, start)
    return jnp.where(placed.gpu >= 0, own, 1.0), after
