"""The world as a program: round after round until every job is done."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxsched.adaptive.clock import advance, change_nodes, shape_of
from jaxsched.adaptive.contention import stretches
from jaxsched.adaptive.knowing import learn
from jaxsched.adaptive.state import SCHEDULERS, AdaptiveJobs, AdaptiveWorld, State, start
from jaxsched.adaptive.view import Allocation, AllocationPolicy, view_of
from jaxsched.errors import UserError

CHUNK = 16  # rounds between choices of the jobs that are computed
LEAST_WINDOW = 16


def one_round(policy: AllocationPolicy, world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> State:
    """A period passes, then the policy decides."""
    stretch = stretches(world, jobs, state)
    after = learn(world, jobs, state, advance(world, jobs, state, stretch), stretch)
    world, state = change_nodes(world, jobs, after)
    view = view_of(world, jobs, state)
    decided = policy.allocate(view)
    decided = decided if isinstance(decided, Allocation) else Allocation(gpus=decided)
    within = view.active & (decided.gpus >= view.least_gpus) & (decided.gpus <= view.most_gpus)
    gpus = jnp.where(within, decided.gpus, 0).astype(jnp.int32)
    if decided.kind is None and len(world.widths) > 1:
        raise UserError(
            f"policy {policy.name}: gives numbers of GPUs only, but the cluster has {len(world.widths)} GPU types; it "
            "should return Allocation(gpus=..., kind=...)"
        )
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
        saved=jnp.where(restarts, state.progress, state.saved),
        start_s=jnp.where(restarts, jnp.minimum(state.start_s, state.now_s), state.start_s),
    )


def play(policy: AllocationPolicy, world: AdaptiveWorld, jobs: AdaptiveJobs, most_rounds: int) -> State:
    """The state in which all jobs are done, or after `most_rounds`. `jobs` has a leading axis of lists.

    A round is computed for a *window* of jobs only, those in the system: few of a list are there at once. A window
    holds for `CHUNK` rounds. Its size is a power of two, for which there is a compiled program.
    """
    state = jax.vmap(lambda jobs: start(jobs, world.node_gpus.shape[0], fits=world.fits))(jobs)
    size, needed = jobs.real.shape[1], 1
    while needed:
        window = min(max(LEAST_WINDOW, 1 << (needed - 1).bit_length()), size)
        state, needed = _play_while_it_suits(policy, window, world, jobs, state, most_rounds)
        needed = int(needed)
    return state


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play_while_it_suits(
    policy: AllocationPolicy,
    window: int,
    world: AdaptiveWorld,
    jobs: AdaptiveJobs,
    state: State,
    most_rounds: Int[Array, ""],
) -> tuple[State, Int[Array, ""]]:
    """Plays while a window of this size is neither too small nor more than twice what is needed; then says what is."""

    def needed(state: State) -> Int[Array, ""]:
        there = jax.vmap(lambda jobs, state: _in_system(world, jobs, state).sum())(jobs, state).max()
        going = (state.finish_s == jnp.inf).any() & (state.now_s.max() < most_rounds * world.period_s)
        return jnp.where(going, jnp.maximum(there, 1), 0)

    def suits(carry: tuple) -> Bool[Array, ""]:
        least = 1 if window <= LEAST_WINDOW else window // 2 + 1
        return (carry[1] >= least) & (carry[1] <= window)

    def chunk(carry: tuple) -> tuple:
        part = functools.partial(_chunk, policy, window, world)
        state = jax.vmap(part, axis_name=SCHEDULERS)(jobs, carry[0])
        return state, needed(state)

    return jax.lax.while_loop(suits, chunk, (state, needed(state)))


def _in_system(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> Bool[Array, "J"]:
    """Whoever is submitted before the next chunk ends, and is not done."""
    return jobs.real & (state.finish_s == jnp.inf) & (jobs.submit_s <= state.now_s + CHUNK * world.period_s)


def _chunk(policy: AllocationPolicy, window: int, world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> State:
    """`CHUNK` rounds of the jobs of a window, which keep their order."""
    if world.owner.size:  # nodes of others have no GPUs
        mine = world.owner == jax.lax.axis_index(SCHEDULERS)
        world = world.replace(node_gpus=jnp.where(mine, world.node_gpus, 0))
    size = jobs.real.shape[0]
    (rows,) = jnp.nonzero(_in_system(world, jobs, state), size=window, fill_value=size)
    at, there = jnp.minimum(rows, size - 1), rows < size
    some = jax.tree.map(lambda leaf: leaf[at], jobs).replace(real=there)
    part = jax.tree.map(lambda leaf: leaf[at] if leaf.ndim else leaf, state)
    part = part.replace(finish_s=jnp.where(there, part.finish_s, 0.0), place=jnp.where(there[:, None], part.place, 0))
    part = jax.lax.fori_loop(0, CHUNK, lambda _, part: one_round(policy, world, some, part), part)
    return jax.tree.map(
        lambda whole, played: whole.at[rows].set(played, mode="drop") if whole.ndim else played, state, part
    )
