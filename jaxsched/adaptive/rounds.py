"""The world as a program: round after round until every job is done. In a round every job runs, epoch by epoch."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.contention import stretches
from jaxsched.adaptive.knowing import learn, share_of, speed_of
from jaxsched.adaptive.state import SCHEDULERS, AdaptiveJobs, AdaptiveWorld, State, start
from jaxsched.adaptive.tables import LISTED_NODES, code_weights
from jaxsched.adaptive.view import Allocation, AllocationPolicy, View, view_of
from jaxsched.errors import UserError
from jaxsched.user_code import call, check_shape


def advance(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, stretch: Float64[Array, "J"]) -> State:
    """The state a period later, in which jobs synchronise so many times as long. Whoever is done holds no GPUs."""
    tables, gpus = world.tables, state.gpus
    kept = 1.0 - world.interference * _crowded(state.place)
    waited = jnp.where(gpus > 0, jnp.minimum(state.waiting_s, world.period_s), 0.0)

    def going(carry: tuple) -> Array:
        return jnp.any(carry[0] > 0)

    def one_epoch(carry: tuple) -> tuple:
        left_s, at_s, progress, epoch, finish_s = carry
        row = jnp.minimum(epoch, tables.epochs[jobs.plan] - 1)
        speed = speed_of(world, jobs, state, row) * kept
        if world.network.contends:
            speed = speed / (1.0 + share_of(world, jobs, state, row) * (stretch - 1.0))
        end = tables.ends[jobs.plan, row]
        on = left_s > 0
        ends = on & (progress + speed * left_s >= end)
        took_s = jnp.where(ends, jnp.minimum(jnp.round((end - progress) / speed), left_s), left_s)
        progress = jnp.where(ends, end, jnp.where(on, progress + speed * left_s, progress))
        epoch, at_s = epoch + ends, at_s + took_s
        done = ends & (epoch == tables.epochs[jobs.plan])
        return jnp.where(done, 0.0, left_s - took_s), at_s, progress, epoch, jnp.where(done, at_s, finish_s)

    left_s = jnp.where((gpus > 0) & (state.finish_s == jnp.inf), world.period_s - waited, 0.0)
    begun = left_s, state.now_s + waited, state.progress, state.epoch, state.finish_s
    _, at_s, progress, epoch, finish_s = jax.lax.while_loop(going, one_epoch, begun)
    done = finish_s < jnp.inf
    return state.replace(
        now_s=state.now_s + world.period_s,
        place=jnp.where(done[:, None], 0, state.place),
        progress=progress,
        epoch=epoch,
        waiting_s=state.waiting_s - waited,
        service=state.service + jnp.where(gpus > 0, at_s - state.now_s, 0.0) * gpus,
        finish_s=finish_s,
    )


def change_nodes(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> tuple[AdaptiveWorld, State]:
    """The world without the nodes that are out now; who had GPUs there has none, and is where it was when last saved.

    That is at its last start, or at the end of its last epoch (docs/semantics.md, section 13).
    """
    now_s = state.now_s
    seen = (now_s < world.out_to_s) | (now_s - world.period_s < world.out_from_s)
    due = (world.out_from_s <= now_s) & seen
    out = jnp.zeros(world.node_gpus.shape, bool).at[world.out_node].max(due)
    hit = ((state.place > 0) & out).any(-1)
    before = jnp.maximum(state.epoch - 1, 0)
    ended = jnp.where(state.epoch > 0, world.tables.ends[jobs.plan, before], 0.0)
    return world.replace(node_gpus=jnp.where(out, 0, world.node_gpus)), state.replace(
        place=jnp.where(hit[:, None], 0, state.place),
        progress=jnp.where(hit, jnp.maximum(state.saved, ended), state.progress),
    )


def shape_of(world: AdaptiveWorld, place: Int[Array, "J N"]) -> Int[Array, "J"]:
    """Rows of the tables of placements; of none whatever."""
    nodes, gpus = (place > 0).sum(-1), place.sum(-1)
    tables = world.tables
    by_size = tables.shape_of_size[
        jnp.minimum(nodes, tables.shape_of_size.shape[0] - 1), jnp.minimum(gpus, tables.shape_of_size.shape[1] - 1)
    ]
    if not world.spread:
        return by_size
    code = jnp.asarray(code_weights(max(world.widths)), jnp.int32)[place].sum(-1)
    return jnp.where(nodes <= LISTED_NODES, tables.shape_of_code[jnp.where(nodes <= LISTED_NODES, code, 0)], by_size)


def _crowded(place: Int[Array, "J N"]) -> Float64[Array, "J"]:
    """1 for jobs on several nodes that share a node with another such job, 0 for others."""
    wide = (place > 0) & ((place > 0).sum(-1, keepdims=True) > 1)
    return (wide & (wide.sum(0) > 1)).any(-1).astype(float)


CHUNK = 16  # rounds between choices of the jobs that are computed
LEAST_WINDOW = 16


def one_round(policy: AllocationPolicy, world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> State:
    """A period passes, then the policy decides."""
    stretch = stretches(world, jobs, state)
    after = learn(world, jobs, state, advance(world, jobs, state, stretch), stretch)
    world, state = change_nodes(world, jobs, after)
    view = view_of(world, jobs, state)
    decided = _decide(policy, view)
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


def _decide(policy: AllocationPolicy, view: View) -> Allocation:
    """What the policy says. UserError if a user's one fails, or says what is none."""
    who = f"policy {policy.name}"
    decided = call(who, policy.allocate, view)
    if not isinstance(decided, Allocation):
        check_shape(who, decided, view.active.shape, "a number of GPUs for each job", whole=True)
        return Allocation(gpus=decided)
    for name in ("gpus", "kind", "order", "memory"):
        if (value := getattr(decided, name)) is not None:
            check_shape(who, value, view.active.shape, f"{name} for each job", whole=name != "memory")
    return decided


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
    """The state in which all jobs are done, or `most_rounds` after the first one. `jobs` has a leading axis of lists.

    A round is computed for a *window* of jobs only, those in the system: few of a list are there at once. A window
    holds for `CHUNK` rounds. Its size is a power of two, for which there is a compiled program.
    """
    state = jax.vmap(lambda jobs: start(world, jobs))(jobs)
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
        going = (state.finish_s == jnp.inf).any() & (state.now_s.max() < world.begin_s + most_rounds * world.period_s)
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
