"""What must hold after every decision round, checked on the device: `--debug-checks`.

A fault that is found here is one of ours, or of a policy or a law that a user has written. In simulations JAX's
checkify carries the first one out of the compiled loop; training has its own way (`learning.rollout`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import checkify
from jaxtyping import Bool, Int32

from jaxsched.dynamics.occupants import in_groups
from jaxsched.env.extensions.sharing import take
from jaxsched.env.state import FINISHED, EnvParams, State
from jaxsched.workload.jobs import WHOLE


class Fault(NamedTuple):
    """Something that must not be, of a job or of a partition."""

    what: str
    of: str


NUMBER = Fault("a number that is not finite", "job")
LOAD = Fault("a load that is not finite", "partition")
GPUS = Fault("GPUs that are lost or given twice", "partition")
JOB = Fault("a job that is lost, or in two places", "job")
FAULTS = (NUMBER, LOAD, GPUS, JOB)  # in the order of `findings`


class Finding(NamedTuple):
    """For which jobs or partitions a fault is there."""

    fault: Fault
    wrong: Bool[Array, "n"]
    names: Int32[Array, "n"]  # of the jobs or partitions


def findings(params: EnvParams, state: State) -> tuple[Finding, ...]:
    """Numbers are finite, GPUs neither lost nor given twice, and each arrived job is in exactly one place.

    Such a place is a queue, a running slot, the finished or the rejected ones. A shared GPU holds what its jobs ask
    for, and no more than all of it.
    """
    running, jobs = state.running, state.jobs
    active = running.job >= 0
    numbers = running.remaining_s + running.remaining_low_s + running.slowdown
    unsound = (active & ~jnp.isfinite(numbers)).ravel()
    partitions = jnp.arange(state.queue.shape[0])
    gpus = jnp.where(active, running.whole_gpus, 0)
    held = jax.vmap(in_groups)(running.occupants, gpus)
    wrong = jnp.zeros(partitions.shape, bool)
    if state.shares:
        held += (state.shared > 0).sum(-1, dtype=jnp.int32)
        asked, _ = take(
            jnp.zeros_like(state.shared), jnp.where(active, running.gpu, -1), jobs.milli[jnp.maximum(running.job, 0)]
        )
        wrong = ((asked != state.shared) | (asked > WHOLE)).any((1, 2, 3))
    gpus = params.cluster.group_gpus
    if state.faults.there:
        gpus = jnp.where(state.faults.out[..., None], 0, gpus)
    lost = wrong | ((held + state.free != gpus) | (state.free < 0)).any((1, 2))
    rows = jnp.arange(jobs.arrival.shape[0])
    places = (state.records.status == FINISHED).astype(jnp.int32)
    for held_by in (state.queue.ravel(), running.job.ravel()):
        places = places.at[jnp.where(held_by >= 0, held_by, len(rows))].add(1, mode="drop")
    expected = (rows < state.next_job) & (jobs.home[:] >= 0)
    return (
        Finding(NUMBER, unsound, running.job.ravel()),
        Finding(LOAD, ~jnp.isfinite(state.own + state.total).all(-1), partitions),
        Finding(GPUS, lost, partitions),
        Finding(JOB, places != expected, rows),
    )


def check_state(params: EnvParams, state: State, environment: Int32[Array, ""]) -> None:
    """`findings` as checks of `checkify`, whose error says which environment, boundary, round and job or partition."""
    where = "of environment {environment}, boundary {boundary}, round {round}"
    for one in findings(params, state):
        checkify.check(
            ~one.wrong.any(),
            f"{one.fault.what}: {one.fault.of} {{one}} {where}",
            one=one.names[one.wrong.argmax()],
            environment=environment,
            boundary=state.clock,
            round=state.round,
        )
