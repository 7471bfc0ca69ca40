"""What waiting would bring a job: the best that it can have at all, and what it can have once running jobs have ended.

The measure of `greedy-wait` (docs/semantics.md, section 7, "Looking ahead"), as numbers rather than as a verdict.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.state import EnvParams, State
from jaxsched.policies.offers import Window, appraise
from jaxsched.pytree import Pytree

MOST_ENDS = 6  # times in the future at which a place is looked for: more hardly ever decide
_LITTLE = 1e-4  # of a slowdown: what is nearer to the best than this is not worth a look


class Held(Pytree):
    """What running jobs will give back, and when; of one partition without the axis P."""

    gpus: Int32[Array, "P R NK"]  # whole ones
    end_s: Float32[Array, "P R"]  # from now, by estimates at the present slowdowns; inf where none is given back
    all_gpus: Int32[Array, "P NK"]  # of the empty partition


class Hope(Pytree):
    """What a job can hope for, in slowdowns as `Offers.effective` has them."""

    reach: Float32[Array, ""]  # in an empty cluster with all its servers
    then: Float32[Array, ""]  # after the wait that saves most of its own length; as now if none saves anything
    wait_s: Float32[Array, ""]  # how long that is


def look_at_held(params: EnvParams, state: State) -> Held:
    """What the jobs of all partitions hold. Jobs with a fraction of a GPU give back nothing that is looked at."""
    running, cluster = state.running, params.cluster
    whole = jnp.where(running.job >= 0, running.whole_gpus, 0)
    p, r = whole.shape
    return Held(
        gpus=running.workers.reshape(p, r, -1).astype(jnp.int32) * whole[..., None],
        end_s=jnp.where(whole > 0, estimated_left_s(state) * running.slowdown, jnp.inf),
        all_gpus=cluster.group_gpus.reshape(p, -1),
    )


def look_ahead(
    params: EnvParams,
    window: Window,
    held: Held,
    partition: Int32[Array, ""],
    rank: Int32[Array, ""],
    eff: Float32[Array, ""],
) -> Hope:
    """What the job at place `rank` of the window can hope for.

    Args:
        params: As the policy sees them.
        window: of one partition.
        held: likewise.
        partition: its number.
        rank: of the job.
        eff: of the job's best placement now.

    Returns:
        Of the ends of running jobs, in ascending order, that for which `(eff - then) duration / wait` is greatest. The
        search is over where no later end can surpass it, or after `MOST_ENDS`.
    """

    def best_at(end_s: Array, everywhere: Bool[Array, ""]) -> Array:
        later = _at_end(window, held, end_s, everywhere)
        on = appraise(params, later, partition, rank)
        return jnp.minimum(jnp.where(on.valid, on.effective, jnp.inf).min(), eff)

    def next_end(end_s: Array) -> Array:
        return jnp.where(held.end_s > end_s, held.end_s, jnp.inf).min()

    def gain(then: Array, end_s: Array) -> Array:
        return (eff - then) / jnp.maximum(end_s, params.interval_s)

    def going(carry: tuple[Array, Array, Hope]) -> Array:
        turn, end_s, hope = carry
        hopeful = (eff > hope.reach + _LITTLE) & (gain(hope.reach, end_s) > gain(hope.then, hope.wait_s))
        return (turn == 0) | (hopeful & (turn <= MOST_ENDS) & jnp.isfinite(end_s))

    def look(carry: tuple[Array, Array, Hope]) -> tuple[Array, Array, Hope]:
        turn, end_s, hope = carry
        found = best_at(end_s, turn == 0)
        first = Hope(reach=found, then=eff, wait_s=window.wait_s)
        better = gain(found, end_s) > gain(hope.then, hope.wait_s)
        after = Hope(
            reach=hope.reach,
            then=jnp.where(better, found, hope.then),
            wait_s=jnp.where(better, jnp.maximum(end_s, params.interval_s), hope.wait_s),
        )
        after = jax.tree.map(lambda one, other: jnp.where(turn == 0, one, other), first, after)
        return turn + 1, next_end(jnp.where(turn == 0, -1.0, end_s)), after

    start = (jnp.int32(0), jnp.float32(0.0), Hope(reach=eff, then=eff, wait_s=window.wait_s))
    return lax.while_loop(going, look, start)[-1]


def _at_end(window: Window, held: Held, end_s: Float32[Array, ""], everywhere: Bool[Array, ""]) -> Window:
    """The window once the jobs are gone that have ended by then; or all of them `everywhere`, with their traffic."""
    gone = everywhere | (held.end_s <= end_s)
    free = window.free + jnp.where(gone[:, None], held.gpus, 0).sum(0)
    use = jnp.where(gone, window.footprint.use, 0.0).sum(-1)
    return window.replace(
        free=jnp.where(everywhere, held.all_gpus, free),
        total=jnp.where(everywhere, 0.0, jnp.maximum(window.total - use, 0.0)),
        left_s=jnp.where(gone, 0.0, window.left_s * (1.0 - end_s / held.end_s)),
        now=None,  # step times of the present
    )
