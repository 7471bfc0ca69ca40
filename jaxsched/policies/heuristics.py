"""Hand-written policies: a queue order, with or without backfilling and forwarding, and a placement rule."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.env.observation import Observation
from jaxsched.env.queues import first, order_keys
from jaxsched.env.reservations import openings
from jaxsched.env.state import Action, EnvConfig, EnvParams, State, job_spec
from jaxsched.policies.base import STAY, ActFn, forward_choice, place_or_forward, views
from jaxsched.policies.rules import RULES, Rule


def heuristic(
    config: EnvConfig,
    rule: str | Rule,
    order: str = "fifo",
    backfill: bool = False,
    forward: str = STAY,
    reserve: bool = False,
) -> ActFn:
    """The policy of docs/semantics.md, section 7, with this rule (a name or a function), order and switches."""
    place_workers = RULES[rule] if isinstance(rule, str) else rule

    def act(key: Array, obs: Observation, state: State, params: EnvParams) -> Action:
        p = state.queue.shape[0]
        job_key, group_key = jax.random.split(key)
        if rule == "random":
            keys = jax.random.uniform(job_key, state.queue.shape)
        else:
            keys = order_keys(order, state)
        can_start, open_to = openings(config, params, state, keys, reserve)
        if backfill or rule == "random":
            slot, place = first(keys, state.queue, can_start)
        else:
            slot, _ = first(keys, state.queue, state.queue >= 0)
            place = can_start[jnp.arange(p), slot]
        job = job_spec(state.jobs, state.queue[jnp.arange(p), slot])
        view, axes = views(state, params)
        place_all = jax.vmap(place_workers, in_axes=(0, axes, 0))
        keys_of_groups = jax.random.split(group_key, p)
        nowhere = jnp.zeros_like(view.free)
        workers = lax.cond(place.any(), lambda: place_all(keys_of_groups, view, job), lambda: nowhere)
        forward_slot, target, possible = forward_choice(state, params, keys, can_start, open_to, forward)
        return place_or_forward(state, place, slot, workers, possible, forward_slot, target)

    return act
