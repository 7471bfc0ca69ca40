"""Hand-written policies: a placement rule, a queue discipline, and how blocked jobs are forwarded."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.dynamics.footprint import JobSpec
from jaxsched.env.queues import Discipline, next_job, order_keys
from jaxsched.env.reservations import openings
from jaxsched.env.state import Action, EnvParams, State, job_spec
from jaxsched.errors import UserError
from jaxsched.policies.base import Act, choose_forward, make_views, place_or_forward
from jaxsched.policies.rules import RULES, Rule, View, fastest, of_types
from jaxsched.policies.spec import STAY

FIFO = Discipline()


def make_heuristic(rule: str | Rule, queue: Discipline = FIFO, forward: str = STAY) -> Act:
    """The policy of docs/semantics.md, section 7, with this rule (a name or a function): one job at a time.

    The rule `random` also draws the order of the queue.
    """
    place_workers = RULES[rule] if isinstance(rule, str) else _check(rule)

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        p = jnp.arange(state.queue.shape[0])
        job_key, group_key = jax.random.split(key)
        drawn = rule == "random"
        keys = _draw(job_key, state.queue) if drawn else order_keys(queue, state, params)
        can_start, open_to = openings(queue, params, state, keys)
        slot, starts = next_job(queue, keys, state, can_start)
        job = job_spec(state.jobs, state.queue[p, slot])
        view, axes = make_views(state, params)
        place = _on_fastest(place_workers) if state.gpu_speeds > 1 else place_workers
        place = _of_types(place) if state.binds else place
        place_all = jax.vmap(place, in_axes=(0, axes, 0))
        keys_of_groups = jax.random.split(group_key, len(p))
        nowhere = jnp.zeros_like(view.free)
        workers = lax.cond(starts.any(), lambda: place_all(keys_of_groups, view, job), lambda: nowhere)
        forward_slot, target, possible = choose_forward(state, params, keys, can_start, open_to, forward)
        return place_or_forward(state, starts, slot, workers, possible, forward_slot, target)

    return act


def _draw(key: PRNGKeyArray, queue: Int32[Array, "P Q"]) -> Float32[Array, "P Q"]:
    """A random number for each queued job, drawn from the key and the job's index, whichever slot it is in."""
    folded = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))(key, queue)
    return (jax.random.key_data(folded)[..., 0] >> 8) * jnp.float32(2.0**-24)


def _check(rule: Rule) -> Rule:
    """The rule, with UserError if it returns anything but whole workers per GPU group."""

    def checked(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
        workers = rule(key, view, job)
        given = getattr(workers, "dtype", None), getattr(workers, "shape", None)
        if given[0] is None or not jnp.issubdtype(given[0], jnp.integer) or given[1] != view.free.shape:
            found = type(workers).__name__ if given[0] is None else f"{given[0]} of shape {given[1]}"
            raise UserError(
                f"rule {getattr(rule, '__name__', repr(rule))}: returned {found}, should be the workers of each GPU "
                f"group, int32 of shape {view.free.shape}"
            )
        return jnp.asarray(workers, jnp.int32)

    return checked


def _on_fastest(rule: Rule) -> Rule:
    """The rule on the fastest GPUs that the job fits."""
    return lambda key, view, job: rule(key, fastest(view, job), job)


def _of_types(rule: Rule) -> Rule:
    """The rule on the GPUs that the job may use."""
    return lambda key, view, job: rule(key, of_types(view, job), job)
