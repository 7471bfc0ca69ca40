"""A round of time: every job that holds GPUs runs, epoch by epoch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float64, Int

from jaxsched.adaptive.knowing import share_of, speed_of
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, State
from jaxsched.adaptive.tables import LISTED_NODES, code_weights


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
