"""The menu of the learned policy: candidate placements of the window's jobs, with what each would do."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import JobSpec, best_hardware
from jaxsched.dynamics.traffic import rack_matrix
from jaxsched.env.observation import Observation
from jaxsched.env.state import EnvConfig, EnvParams, State, job_spec
from jaxsched.networks.hierarchy import Menu
from jaxsched.policies.base import views
from jaxsched.policies.candidates import CAPS, candidates
from jaxsched.policies.greedy_wait import candidate_prints, next_completion_s, what_if
from jaxsched.policies.rules import View, per_server

_STAKE = 4.0  # largest log of a stake: beyond it, only the sign matters


def build_menu(config: EnvConfig, params: EnvParams, state: State, obs: Observation, lazy: bool = False) -> Menu:
    """The menu for the first `W` jobs of the observation's window.

    `lazy` goes through the window one job after the other and passes over places in it that no scheduler fills: for one
    environment alone that saves most of the work, for vmapped ones it saves nothing.
    """
    partitions = jnp.arange(state.queue.shape[0])[:, None]
    slots, some = obs.job_slot[:, :-1], obs.job_mask[:, :-1]
    row = jnp.maximum(state.queue[partitions, slots], 0)
    jobs = job_spec(state.jobs, row)
    duration = state.jobs.duration_s[row]
    best = best_hardware(params.cluster)
    layout = layout_of(params.cluster)
    view, axes = views(state, params)
    running = state.running
    left = jnp.where(running.job >= 0, running.remaining_s, 0.0)
    wait = next_completion_s(params, state)

    def one_job(view: View, rows, left, now, wait: Array, job: JobSpec, duration: Array, some: Array) -> Menu:
        workers, valid = candidates(view, job)
        prints = candidate_prints(view, best, job, workers)
        own, added = what_if(config, params.interference, layout, rows, left, now, view.total, prints)
        effective = own + added / jnp.maximum(duration, 1e-9)
        stake = jnp.clip(jnp.log((effective - 1.0) * duration / wait + 1e-9), -_STAKE, _STAKE)
        servers = jax.vmap(lambda w: per_server(layout, w))(workers)
        used = (servers > 0).sum(-1)
        racks = ((servers @ rack_matrix(view.cluster).astype(jnp.int32)) > 0).sum(-1)
        groups = (workers > 0).sum(-1)
        free_after = view.free - workers * job.gpus_per_worker
        touched = workers > 0
        stranded = jnp.where(touched, free_after, 0).sum(-1)
        shared = (touched & (view.total[layout.cpu] > 0)).sum(-1)
        cap = jnp.arange(workers.shape[0]) % len(CAPS)
        features = jnp.stack(
            [
                jnp.log(own),
                jnp.log1p(added / jnp.maximum(duration, 1.0)),
                jnp.log(effective),
                jnp.log1p(added / 60.0) / 4,
                jnp.log1p(used.astype(jnp.float32)),
                jnp.log1p(groups.astype(jnp.float32)),
                jnp.log1p(racks.astype(jnp.float32)),
                jnp.log1p(jnp.maximum(stranded, 0).astype(jnp.float32)),
                shared / jnp.maximum(groups, 1),
                (cap == 1).astype(jnp.float32),
                (cap == 2).astype(jnp.float32),
                stake / _STAKE,
            ],
            -1,
        )
        mask = valid & some
        return Menu(
            workers=workers.astype(jnp.int8),
            features=jnp.where(mask[:, None], features, 0.0),
            log_effective=jnp.where(mask, jnp.log(effective), 0.0),
            log_stake=jnp.where(mask, stake, 0.0),
            brief=mask & (effective * duration <= wait),
            mask=mask,
        )

    per_partition = jax.vmap(one_job, in_axes=(axes, 0, 0, 0, 0, 0, 0, 0))

    def at(place: Array) -> Menu:
        job = jax.tree.map(lambda leaf: leaf[:, place], jobs)
        arguments = (view, running.print, left, running.slowdown, wait, job, duration[:, place], some[:, place])
        if not lazy:
            return per_partition(*arguments)
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(per_partition, *arguments))
        return lax.cond(some[:, place].any(), lambda: per_partition(*arguments), lambda: empty)

    window = jnp.arange(slots.shape[1])
    menus = lax.map(at, window) if lazy else jax.vmap(at)(window)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), menus)
