"""`greedy-wait`: the strongest policy we can write by hand. It knows the true dynamics and every duration.

For each of the first jobs of its order it tries every candidate placement, charges it with its own slowdown and with
the slowdown it inflicts on all running jobs of the partition, and would rather wait than take a bad one.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.dynamics.resources import Layout, layout_of
from jaxsched.dynamics.speed import Best, Footprint, JobSpec, best_hardware, contenders, footprint, slowdown
from jaxsched.env.observation import Observation, window_slots
from jaxsched.env.queues import feasible, order_keys
from jaxsched.env.state import Action, EnvConfig, EnvParams, State, job_spec
from jaxsched.policies.base import ActFn, forward_choice, place_or_forward, views
from jaxsched.policies.candidates import candidates
from jaxsched.policies.filling import place_ps, quantise
from jaxsched.policies.rules import View


def candidate_prints(view: View, best: Best, job: JobSpec, workers: Array) -> Footprint:
    """Footprints, leading axis C, of placing `job` as `workers: int32[C, NK]` on one partition."""
    shape = view.cluster.group_gpus.shape
    ps = jax.vmap(place_ps, in_axes=(0, None))(workers, job.ps)

    def one(w: Array, u: Array) -> Footprint:
        return footprint(view.cluster, best, view.profiles, job, w.reshape(shape), u.reshape(shape))

    return jax.vmap(one)(workers, ps)


def what_if(
    config: EnvConfig,
    weights,
    layout: Layout,
    rows: Footprint,
    remaining_s: Array,
    now: Array,
    total: Array,
    prints: Footprint,
) -> tuple[Array, Array]:
    """What each candidate would do: its own slowdown, and the seconds it adds to the running jobs. `float32[C]` each.

    Args:
        rows, remaining_s, now: the partition's running jobs, leading axis R; free slots have `remaining_s` 0. `now` is
            their present slowdown.
        total: float32[M]. prints: leading axis C.
    """

    after = total[:, None] + prints.use.T  # [M, C]
    own = slowdown(config.interference, weights, layout, contenders(prints), after)
    running = contenders(jax.tree.map(lambda leaf: leaf[None], rows))  # [M, 1, R]
    others = slowdown(config.interference, weights, layout, running, after[:, :, None])
    return own, (remaining_s * jnp.maximum(others - now, 0.0)).sum(-1)


def next_completion_s(params: EnvParams, state: State) -> Array:
    """float32[P]: seconds until something can change in a partition, at least one interval; inf if nothing runs."""
    running = state.running
    ends = jnp.where(running.job >= 0, running.remaining_s * running.slowdown, jnp.inf).min(-1)
    return jnp.maximum(ends, params.interval_s)


def greedy_wait(
    config: EnvConfig, threshold: float | Array, patience: float | Array, order: str = "area", forward: bool = True
) -> ActFn:
    """The policy of docs/semantics.md, section 7.

    It accepts a placement of effective slowdown up to `threshold`, or one that loses no more seconds than `patience`
    times the wait until something can change: the next completion in the partition, at least one interval.
    """

    def act(key: Array, obs: Observation, state: State, params: EnvParams) -> Action:
        p = state.queue.shape[0]
        partitions = jnp.arange(p)
        keys = order_keys(order, state)
        can_start = feasible(config, state)
        slots, found = window_slots(config, keys, state, can_start)
        layout = layout_of(params.cluster)
        best = best_hardware(params.cluster)
        view, axes = views(state, params)
        running = state.running
        left = jnp.where(running.job >= 0, running.remaining_s, 0.0)
        idle = (running.job < 0).all(-1)
        wait = next_completion_s(params, state)

        def assess(view: View, job: JobSpec, duration: Array, rows, left, now, wait) -> tuple[Array, Array]:
            workers, valid = candidates(view, job)
            prints = candidate_prints(view, best, job, workers)
            own, added = what_if(config, params.interference, layout, rows, left, now, view.total, prints)
            effective = own + added / jnp.maximum(duration, 1e-9)
            score = jnp.where(valid, quantise(effective), jnp.iinfo(jnp.int32).max)
            choice = jnp.argmin(score)
            lost = quantise((effective - 1.0) * duration / wait)
            good = (score <= quantise(jnp.float32(threshold))) | (lost <= quantise(jnp.float32(patience)))
            return good[choice] & valid[choice], workers[choice]

        def consider(carry):
            w, taken, slot, workers = carry
            row = jnp.maximum(state.queue[partitions, slots[:, w]], 0)
            job = job_spec(state.jobs, row)
            duration = state.jobs.duration_s[row]
            good, option = jax.vmap(assess, in_axes=(axes, 0, 0, 0, 0, 0, 0))(
                view, job, duration, running.print, left, running.slowdown, wait
            )
            accepted = found[:, w] & ~taken & (good | (idle & (w == 0)))
            return (
                w + 1,
                taken | accepted,
                jnp.where(accepted, slots[:, w], slot),
                jnp.where(accepted[:, None], option, workers),
            )

        def undecided(carry) -> Array:
            w, taken, _, _ = carry
            some = jnp.take_along_axis(found, jnp.full((p, 1), jnp.minimum(w, config.window - 1)), -1)[:, 0]
            return (w < config.window) & (some & ~taken & ~state.waited).any()

        nothing = (jnp.int32(0), jnp.zeros(p, bool), slots[:, 0], jnp.zeros_like(view.free))
        _, place, slot, workers = lax.while_loop(undecided, consider, nothing)
        if forward:
            forward_slot, target, possible = forward_choice(config, state, params, keys, can_start)
        else:
            forward_slot, target, possible = slot, slot, jnp.zeros(p, bool)
        return place_or_forward(state, place, slot, workers, possible, forward_slot, target)

    return act
