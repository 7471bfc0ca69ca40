"""`greedy-wait`: the strongest policy we can write by hand for jobs with whole GPUs. It knows the simulator's laws.

For each of the first jobs of its order it tries every candidate placement, charges it with its own slowdown and with
the slowdown it inflicts on all running jobs of the partition, and would rather wait than take a bad one.
"""

import functools

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, PRNGKeyArray, PyTree

from jaxsched.dynamics.batching import everywhere, lane_by_lane, of_parts, on_cpu
from jaxsched.env.observation import window_slots
from jaxsched.env.queues import Discipline, order_keys
from jaxsched.env.reservations import openings
from jaxsched.env.state import Action, EnvParams, State
from jaxsched.policies.base import Act, forward_choice, place_or_forward
from jaxsched.policies.faster import preempting
from jaxsched.policies.filling import quantise
from jaxsched.policies.offers import Here, Offers, Scene, by_partition, choice_score, offers, scene_of
from jaxsched.policies.spec import TO_IDLE


def greedy_wait(
    threshold: float, patience: float, queue: Discipline, forward: str = TO_IDLE, lifetimes: bool = False
) -> Act:
    """The policy of docs/semantics.md, section 7.

    It accepts a placement of effective slowdown up to `threshold`, or one that loses no more seconds than `patience`
    times the wait until something can change: the next completion in the partition, at least one interval. With
    `lifetimes` it also charges placements, when it compares them, with the seconds by which their servers would be
    wholly free later: wide gangs can start there.
    """

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        keys = order_keys(queue, state, params)
        can_start, open_to = openings(queue, params, state, keys)
        slots, found = window_slots(queue, keys, state, can_start)
        scene = scene_of(state, params, slots[:, :-1], found[:, :-1], lifetimes)
        choose = functools.partial(_choose, threshold, patience)
        place, window, workers = lane_by_lane(choose)(params, scene)
        slot = jnp.take_along_axis(slots, window[:, None], -1)[:, 0]
        forward_slot, target, possible = forward_choice(state, params, keys, can_start, open_to, forward)
        action = place_or_forward(state, place, slot, workers, possible, forward_slot, target)
        return preempting(queue, forward, params, state, keys, action) if queue.preempt else action

    return act


def acceptable(threshold: float, patience: float, on: Offers) -> Bool[Array, "C"]:
    """Which candidates are good enough; all where the partition runs nothing, for then the stake is 0."""
    good = quantise(on.loss) <= quantise(jnp.float32(threshold))
    return good | (quantise(on.stake) <= quantise(jnp.float32(patience)))


def _choose(
    threshold: float, patience: float, params: EnvParams, scene: Scene
) -> tuple[Bool[Array, "P"], Int32[Array, "P"], Int32[Array, "P NK"]]:
    """The first job of each window that has an acceptable placement: whether, its place in the window, its workers."""
    here = by_partition(params, scene)
    nothing = (jnp.array(False), jnp.zeros_like(scene.free[0]))

    def best_offer(part: Here, p: Array, w: Array) -> tuple[Array, Array]:
        on = offers(params, part, p, w)
        choice = jnp.argmin(choice_score(on))
        good = acceptable(threshold, patience, on)
        return good[choice] & on.valid[choice], on.workers[choice]

    if not on_cpu():  # all jobs of the windows at once
        accepted, options = of_parts(here, scene.some, best_offer, everywhere(nothing, scene.some))
        taken, window = accepted.any(1), jnp.argmax(accepted, 1).astype(jnp.int32)
        workers = jnp.take_along_axis(options, window[:, None, None], 1)[:, 0]
        return taken, jnp.where(taken, window, 0), jnp.where(taken[:, None], workers, 0)

    def consider(carry: tuple[Array, Array, Array], w: Array) -> tuple[tuple[Array, Array, Array], None]:
        taken, window, workers = carry
        best = lambda part, p: best_offer(part, p, w)
        some = scene.some[:, w] & ~taken
        accepted, option = of_parts(here, some, best, everywhere(nothing, some))
        window = jnp.where(accepted, w, window)
        return (taken | accepted, window, jnp.where(accepted[:, None], option, workers)), None

    partitions = scene.wait_s.shape
    none = (jnp.zeros(partitions, bool), jnp.zeros(partitions, jnp.int32), jnp.zeros_like(scene.free))
    (taken, window, workers), _ = lax.scan(consider, none, jnp.arange(scene.some.shape[1]))
    return taken, window, workers
