"""What a policy is, and the pieces that all hand-written ones share: choosing a job, forwarding, acting."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.cluster.hardware import partition_axes
from jaxsched.env.extensions.gpu_sets import spare
from jaxsched.env.extensions.sharing import room_of
from jaxsched.env.gpu_choice import speeds_in
from jaxsched.env.queues import Discipline, feasible_at, first, may_be_forwarded
from jaxsched.env.state import FORWARD, PLACE, WAIT, Action, EnvParams, State
from jaxsched.policies.filling import place_ps, quantise
from jaxsched.policies.rules import View
from jaxsched.policies.spec import STAY, TO_IDLE
from jaxsched.pytree import Pytree
from jaxsched.semantics import FASTER
from jaxsched.workload.jobs import look_up

Forwarded = tuple[Int32[Array, "P"], Int32[Array, "P"], Bool[Array, "P"]]  # queue slots, targets, whether there is one
Act = Callable[[PRNGKeyArray, State, EnvParams, PyTree], Action]  # of a key, a state, parameters and weights


class Judgement(Pytree):
    """How sure a learned policy is of what it does, for every scheduler."""

    act: Float32[Array, "P"]  # probability of doing something rather than waiting
    option: Float32[Array, "P"]  # probability of the likeliest option, if something is done
    entropy: Float32[Array, "P"]  # of both decisions together, in nats; 0 where nothing is legal
    value: Float32[Array, "P"]  # of the critic: what is still to come, in units of the training's rewards


Judge = Callable[[State, EnvParams, PyTree], Judgement]


def make_views(state: State, params: EnvParams) -> tuple[View, View]:
    """What rules see of each partition.

    Returns:
        The views, stacked on a leading axis P, and the `in_axes` that map over them.
    """
    p = state.free.shape[0]
    room = room_of(state.free, state.shared)
    view = View(
        cluster=params.cluster,
        free=state.free.reshape(p, -1),
        total=state.total,
        profiles=params.profiles,
        room=room.reshape(p, -1),
        usable=state.usable_by_partition,
        spare=spare(state, params.cluster) if state.asks else jnp.zeros((*state.free.shape[:2], 0), jnp.int32),
    )
    axes = jax.tree.map(lambda _: 0, view)
    return view, axes.replace(cluster=partition_axes(params.cluster), profiles=None)


def choose_forward(
    state: State,
    params: EnvParams,
    keys: Float32[Array, "P Q"],
    can_start: Bool[Array, "P Q"],
    open_to: Bool[Array, "P Q P"],
    rule: str,
) -> Forwarded:
    """Which blocked job each scheduler forwards, and where to (docs/semantics.md, section 7).

    Args:
        state: as the policy sees it.
        params: likewise.
        keys: of the order, see `order_keys`.
        can_start: of `openings`.
        open_to: likewise.
        rule: one of `FORWARDS`.

    Returns:
        Queue slots, targets, and whether there is such a job.
    """
    open_to &= ~can_start[..., None]
    p = jnp.arange(state.queue.shape[0])
    if rule == STAY:
        nowhere = jnp.zeros_like(p)
        return nowhere, nowhere, nowhere > 0
    if rule == TO_IDLE:
        row = jnp.maximum(state.queue, 0)
        left = (state.queue >= 0) & ~can_start & may_be_forwarded(params, state, row)
        open_to &= (state.queue < 0).all(-1)
    else:
        left = open_to.any(-1)
    slot, _ = first(keys, state.queue, left)
    here = open_to[p, slot]
    target = jnp.argmax(jnp.where(here, state.free.sum((1, 2)), -1), -1).astype(jnp.int32)
    return slot, target, here.any(-1)


def choose_faster(
    state: State, params: EnvParams, slot: Int32[Array, "P"], open_to: Bool[Array, "P Q P"], rule: str
) -> tuple[Int32[Array, "P"], Bool[Array, "P"]]:
    """Where a job goes that would start, and whether: its GPUs are much faster there (section 8, "Faster GPUs").

    Args:
        state: as the policy sees it.
        params: likewise.
        slot: queue slot of the job, of each scheduler.
        open_to: of `openings`, with `faster`.
        rule: one of `FORWARDS`.

    Returns:
        Targets, and whether the gain there is at least `FASTER`.
    """
    p = jnp.arange(state.queue.shape[0])
    there = open_to[p, slot] & (rule != STAY)
    if rule == TO_IDLE:
        there &= (state.queue < 0).all(-1)
    speed = speeds_in(params, state, jnp.maximum(state.queue[p, slot], 0))
    gain = jnp.where(there, quantise(speed / speed[p, p][:, None]), 0)
    most = gain.max(-1, keepdims=True)
    roomiest = jnp.argmax(jnp.where(gain == most, state.free.sum((1, 2)), -1), -1)
    return roomiest.astype(jnp.int32), most[:, 0] >= FASTER


def or_faster(
    queue: Discipline,
    forward: str,
    state: State,
    params: EnvParams,
    slot: Int32[Array, "P"],
    starts: Bool[Array, "P"],
    open_to: Bool[Array, "P Q P"],
    elsewhere: Forwarded,
) -> tuple[Bool[Array, "P"], Forwarded]:
    """Who places the job in `slot`, and what is forwarded; with `faster` that job, if its GPUs are faster elsewhere."""
    if not queue.faster or state.gpu_speeds == 1:
        return starts, elsewhere
    target, moves = choose_faster(state, params, slot, open_to, forward)
    moves &= starts
    forward_slot, other, possible = elsewhere
    return starts & ~moves, (jnp.where(moves, slot, forward_slot), jnp.where(moves, target, other), possible | moves)


def find_faster(
    queue: Discipline,
    forward: str,
    state: State,
    params: EnvParams,
    slots: Int32[Array, "P W"],
    open_to: Bool[Array, "P Q P"],
) -> tuple[Bool[Array, "P Q P"], Bool[Array, "P W"] | bool]:
    """Where who looks ahead lets queued jobs look for faster GPUs, and whether those in `slots` leave for such.

    That is where the job fits the fewest servers. Of others, none leaves before it would start here.
    """
    if not queue.faster or state.gpu_speeds == 1:
        return open_to, False
    near = open_to & feasible_at(state, jnp.maximum(state.queue, 0), params.cluster, consolidate=True)
    _, goes = jax.vmap(choose_faster, (None, None, 1, None, None), 1)(state, params, slots, near, forward)
    return near, goes


def place_or_forward(
    state: State,
    place: Bool[Array, "P"],
    slot: Int32[Array, "P"],
    workers: Int32[Array, "P NK"],
    forward_slot: Int32[Array, "P"],
    target: Int32[Array, "P"],
    forward: Bool[Array, "P"],
    gpu: Int32[Array, "P"] | None = None,
) -> Action:
    """The action that places where `place`, else forwards where `forward`, else waits; PS follow the workers.

    Args:
        state: before the round.
        place: schedulers that place a job.
        slot: queue slot of that job.
        workers: per GPU group of the partition; the job's parameter servers are put beside them.
        forward_slot: queue slot of the job that a scheduler forwards, if it places none.
        target: partition that it goes to.
        forward: whether there is such a job.
        gpu: as in `Action`.
    """
    p = jnp.arange(state.queue.shape[0])
    shape = state.free.shape
    wanted = look_up(state.jobs.ps, jnp.maximum(state.queue[p, slot], 0))
    ps = jax.vmap(place_ps)(workers, wanted)
    return Action(
        kind=jnp.where(place, PLACE, jnp.where(forward, FORWARD, WAIT)).astype(jnp.int32),
        slot=jnp.where(place, slot, forward_slot),
        workers=workers.reshape(shape),
        ps=ps.reshape(shape),
        target=target,
        gpu=gpu,
    )
