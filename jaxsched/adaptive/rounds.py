"""The world as a program: round after round until every job is done."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxsched.adaptive.clock import advance, shape_of
from jaxsched.adaptive.policies import Allocation, AllocationPolicy, view_of
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, State, start


def one_round(policy: AllocationPolicy, world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> State:
    """A period passes, then the policy decides."""
    state = advance(world, jobs, state)
    view = view_of(world, jobs, state)
    decided = policy.allocate(view)
    decided = decided if isinstance(decided, Allocation) else Allocation(gpus=decided)
    gpus = jnp.where(view.active, decided.gpus, 0).astype(jnp.int32)
    kind = jnp.zeros_like(gpus) if decided.kind is None else decided.kind
    order = jnp.arange(gpus.shape[0], dtype=jnp.int32) if decided.order is None else decided.order
    place = policy.placing(world, state, gpus, kind, order)
    state = state if decided.memory is None else state.replace(memory=decided.memory)
    return _moved(world, jobs, state, place, kind)


def _moved(
    world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, place: Int[Array, "J N"], kind: Int[Array, "J"]
) -> State:
    gpus = place.sum(-1, dtype=jnp.int32)
    restarts = (place != state.place).any(-1) & (gpus > 0)
    return state.replace(
        place=place,
        kind=jnp.where(gpus > 0, kind, state.kind),
        shape=shape_of(world, place),
        waiting_s=jnp.where(restarts, jobs.restart_s, state.waiting_s),
        restarts=state.restarts + restarts,
        widest=jnp.maximum(state.widest, gpus),
        start_s=jnp.where(restarts, jnp.minimum(state.start_s, state.now_s), state.start_s),
    )


@functools.partial(jax.jit, static_argnums=0)
def play(policy: AllocationPolicy, world: AdaptiveWorld, jobs: AdaptiveJobs, most_rounds: Int[Array, ""]) -> State:
    """The state in which all jobs are done, or after `most_rounds`. `jobs` may have a leading axis of lists."""

    def going(state: State) -> Bool[Array, ""]:
        return ((state.finish_s == jnp.inf).any()) & (state.now_s < most_rounds * world.period_s)

    def whole(jobs: AdaptiveJobs) -> State:
        begun = start(jobs, world.node_gpus.shape[0])
        return jax.lax.while_loop(going, lambda state: one_round(policy, world, jobs, state), begun)

    return whole(jobs) if jobs.real.ndim == 1 else jax.vmap(whole)(jobs)
