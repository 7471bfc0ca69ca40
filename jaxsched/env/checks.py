"""What must hold after every decision round, checked on the device: `--debug-checks`.

A fault that is found here is one of ours, or of a policy or a law that a user has written. JAX's checkify carries the
first one out of the compiled loop.
"""

import jax.numpy as jnp
from jax import Array
from jax.experimental import checkify
from jaxtyping import Bool, Int32

from jaxsched.env.state import FINISHED, EnvParams, State


def check_state(params: EnvParams, state: State, environment: Int32[Array, ""]) -> None:
    """Numbers are finite, GPUs neither lost nor given twice, and each arrived job is in exactly one place.

    Such a place is a queue, a running slot, the finished or the rejected ones. The error of `checkify` says which
    environment, boundary, round and job or partition. GPUs are not counted where jobs share them.
    """
    running, jobs = state.running, state.jobs
    active = running.job >= 0

    def check(what: str, kind: str, wrong: Bool[Array, "n"], names: Int32[Array, "n"]) -> None:
        checkify.check(
            ~wrong.any(),
            f"{what}: {kind} {{one}} of environment {{environment}}, boundary {{boundary}}, round {{round}}",
            one=names[wrong.argmax()],
            environment=environment,
            boundary=state.clock,
            round=state.round,
        )

    numbers = running.remaining_s + running.remaining_low_s + running.slowdown
    check("a number that is not finite", "job", (active & ~jnp.isfinite(numbers)).ravel(), running.job.ravel())
    partitions = jnp.arange(state.queue.shape[0])
    check("a load that is not finite", "partition", ~jnp.isfinite(state.own + state.total).all(-1), partitions)
    if state.shared is None:
        gpus = jnp.where(active, running.gpus_per_worker, 0)
        held = jnp.einsum("prnk,pr->pnk", running.workers.astype(jnp.int32), gpus)
        gpus = params.cluster.group_gpus
        if state.faults is not None:
            gpus = jnp.where(state.faults.out[..., None], 0, gpus)
        wrong = (held + state.free != gpus) | (state.free < 0)
        check("GPUs that are lost or given twice", "partition", wrong.any((1, 2)), partitions)
    rows = jnp.arange(jobs.arrival.shape[0])
    places = (state.records.status == FINISHED).astype(jnp.int32)
    for held_by in (state.queue.ravel(), running.job.ravel()):
        places = places.at[jnp.where(held_by >= 0, held_by, len(rows))].add(1, mode="drop")
    expected = (rows < state.next_job) & (jobs.home >= 0)
    check("a job that is lost, or in two places", "job", places != expected, rows)
