"""What a policy is, and the pieces that all hand-written ones share: choosing a job, forwarding, acting."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxsched.cluster.hardware import partition_axes
from jaxsched.env.observation import Observation
from jaxsched.env.queues import feasible_elsewhere, first
from jaxsched.env.shares import room_of
from jaxsched.env.state import FORWARD, PLACE, WAIT, Action, EnvConfig, EnvParams, State
from jaxsched.policies.filling import place_ps
from jaxsched.policies.rules import View

ActFn = Callable[[Array, Observation, State, EnvParams], Action]


@dataclasses.dataclass(frozen=True)
class Policy:
    """A named, jit-able and vmap-able function `act(key, obs, state, params) -> Action`."""

    name: str
    act: ActFn

    def __call__(self, key: Array, obs: Observation, state: State, params: EnvParams) -> Action:
        return self.act(key, obs, state, params)


def views(state: State, params: EnvParams) -> tuple[View, View]:
    """One view per partition, stacked on a leading axis P, and the `in_axes` that map over them."""
    p = state.free.shape[0]
    room = room_of(state.free, state.shared)
    view = View(
        cluster=params.cluster,
        free=state.free.reshape(p, -1),
        total=state.total,
        profiles=params.profiles,
        room=None if room is None else room.reshape(p, -1),
    )
    axes = View(
        cluster=partition_axes(params.cluster),
        free=0,
        total=0,
        profiles=jax.tree.map(lambda _: None, params.profiles),
        room=None if room is None else 0,
    )
    return view, axes


def forward_choice(config: EnvConfig, state: State, params: EnvParams, keys: Array, can_start: Array) -> tuple:
    """The first blocked job that has forwards left, and where it would start now.

    Returns `slot: int32[P]`, `target: int32[P]`, `possible: bool[P]`.
    """
    p = state.queue.shape[0]
    row = jnp.maximum(state.queue, 0)
    left = (state.records.forwards[row] < params.max_forwards) & (state.queue >= 0) & ~can_start
    slot, some = first(keys, state.queue, left)
    job = jnp.maximum(state.queue[jnp.arange(p), slot], 0)
    idle = (state.queue < 0).all(-1)
    open_to = feasible_elsewhere(config, state, job) & idle & ~jnp.eye(p, dtype=bool)
    free = state.free.sum((1, 2))
    target = jnp.argmax(jnp.where(open_to, free, -1), -1).astype(jnp.int32)
    return slot, target, some & open_to.any(-1)


def place_or_forward(
    state: State, place: Array, slot: Array, workers: Array, forward: Array, forward_slot: Array, target: Array
) -> Action:
    """The action that places where `place: bool[P]`, else forwards where `forward: bool[P]`, else waits.

    Args: `slot, forward_slot, target: int32[P]`, `workers: int32[P, NK]`; PS follow the workers.
    """
    p = jnp.arange(state.queue.shape[0])
    shape = state.free.shape
    wanted = state.jobs.ps[jnp.maximum(state.queue[p, slot], 0)]
    ps = jax.vmap(place_ps)(workers, wanted)
    return Action(
        kind=jnp.where(place, PLACE, jnp.where(forward, FORWARD, WAIT)).astype(jnp.int32),
        slot=jnp.where(place, slot, forward_slot),
        workers=workers.reshape(shape),
        ps=ps.reshape(shape),
        target=target,
    )
