"""`match`: of the jobs that may start and their places, the pair that costs least for the job's length.

`greedy-wait` takes the first job that has a good place. Where jobs share GPUs, what a place is worth depends on who
runs there, and a job behind the first may suit it better. Fractions of a GPU do not wait for a better place.

Where jobs may be stopped the orders are levels, and jobs of one level are alike: of those the pair that costs least.
"""

import functools

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.dynamics.batching import everywhere, lane_by_lane, of_parts
from jaxsched.env.observation import window_slots
from jaxsched.env.queues import Discipline, order_keys
from jaxsched.env.reservations import openings
from jaxsched.env.state import Action, EnvParams, State
from jaxsched.policies.base import Act, forward_choice, place_or_forward
from jaxsched.policies.faster import preempting
from jaxsched.policies.filling import quantise
from jaxsched.policies.greedy_wait import acceptable
from jaxsched.policies.offers import Here, Scene, by_partition, choice_score, offers, scene_of
from jaxsched.workload.jobs import WHOLE

_NEVER = 2**30  # more than any score


def match(threshold: float, patience: float, queue: Discipline, forward: str, lifetimes: bool = False) -> Act:
    """The policy of docs/semantics.md, section 7; arguments as of `greedy_wait`.

    A `queue` with `preempt` has levels, and nobody waits for a better place.
    """

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        keys = order_keys(queue, state, params)
        can_start, open_to = openings(queue, params, state, keys)
        slots, found = window_slots(queue, keys, state, can_start)
        slots, found = slots[:, :-1], found[:, :-1]
        key_of = jnp.take_along_axis(keys, slots, -1)
        if queue.preempt:
            found &= key_of == key_of[:, :1]
        scene = scene_of(state, params, slots, found, lifetimes, every_gpu=True)
        relative = jnp.sqrt(key_of / jnp.maximum(key_of[:, :1], 1e-9))
        if queue.preempt:
            scene, relative = _alike(state, scene), jnp.ones_like(relative)
        choose = functools.partial(_choose, threshold, patience)
        place, window, workers, gpu = lane_by_lane(choose)(params, scene, relative)
        slot = jnp.take_along_axis(slots, window[:, None], -1)[:, 0]
        forward_slot, target, possible = forward_choice(state, params, keys, can_start, open_to, forward)
        gpu = gpu if scene.every_gpu else None
        action = place_or_forward(state, place, slot, workers, possible, forward_slot, target, gpu)
        return preempting(queue, forward, params, state, keys, action) if queue.preempt else action

    return act


def _alike(state: State, scene: Scene) -> Scene:
    """The scene in which all jobs count the same, as run times are not known: each second of each for one second."""
    return scene.replace(
        left_s=(state.running.job >= 0).astype(jnp.float32), duration_s=jnp.ones_like(scene.duration_s)
    )


def _choose(
    threshold: float, patience: float, params: EnvParams, scene: Scene, relative: Float32[Array, "P W"]
) -> tuple[Bool[Array, "P"], Int32[Array, "P"], Int32[Array, "P NK"], Int32[Array, "P"]]:
    """Whether a job is placed, its place in the window, its workers, and its GPU as in `Action`."""
    nothing = (jnp.int32(_NEVER), jnp.zeros_like(scene.free[0]), jnp.int32(-1))

    def best(part: tuple[Here, Array], p: Array, w: Array) -> tuple[Array, Array, Array]:
        here, relative = part
        on, milli = offers(params, here, p, w), here.scene.job.milli
        choice = jnp.argmin(choice_score(on))
        good = acceptable(threshold, patience, on)
        if milli is not None:
            good |= milli[w] < WHOLE
        score = quantise(relative[w] * (on.effective + on.later)[choice])
        score = jnp.where((good & on.valid)[choice], score, _NEVER)
        return score, on.workers[choice], jnp.int32(-1) if on.gpu is None else on.gpu[choice]

    here = by_partition(params, scene), relative
    score, workers, gpu = of_parts(here, scene.some, best, everywhere(nothing, scene.some))
    window = jnp.argmin(score, 1).astype(jnp.int32)
    pick = functools.partial(jnp.take_along_axis, axis=1)
    placed = pick(score, window[:, None])[:, 0] < _NEVER
    return placed, window, pick(workers, window[:, None, None])[:, 0], pick(gpu, window[:, None])[:, 0]
