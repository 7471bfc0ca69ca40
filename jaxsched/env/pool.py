"""Pools of prepared start states, so that a restart is a look-up: states with a leading axis, in which no job runs.

When an environment restarts, the placements in its running slots stay as they are: no job runs, so nothing reads them.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, PRNGKeyArray

from jaxsched.env.stages import Playing, at_boundary
from jaxsched.env.state import Running, State


def draw_number(key: PRNGKeyArray, pool: State) -> Int32[Array, ""]:
    """The number of the member that `draw_start` draws with this key."""
    return jax.random.randint(key, (), 0, pool.clock.shape[0])


def draw_start(key: PRNGKeyArray, pool: State) -> State:
    """A random member of the pool."""
    index = draw_number(key, pool)
    return jax.tree.map(lambda leaf: leaf[index], pool)


def start_if(key: PRNGKeyArray, played: State | Playing, done: Bool[Array, ""], pool: State) -> State | Playing:
    """`played`, or where it is `done` a random member of the pool."""
    start = draw_start(key, small_parts(pool))
    if isinstance(played, Playing):
        begun, rest = at_boundary(start), played.replace(state=small_parts(played.state))
        after = lax.cond(done, lambda: begun, lambda: rest)
        return after.replace(state=with_large_parts(after.state, played.state.running))
    return with_large_parts(lax.cond(done, lambda: start, lambda: small_parts(played)), played.running)


def restart(key: PRNGKeyArray, states: State, done: Bool[Array, "B"], pool: State) -> State:
    """Environments that are `done` restart from random members of `pool`; both have a leading axis.

    One after the other, so that no other is touched: for CPUs.
    """
    size = pool.clock.shape[0]
    members = jax.random.randint(key, done.shape, 0, size)

    def body(carry: tuple[State, Array]) -> tuple[State, Array]:
        states, left = carry
        one = jnp.argmax(left)
        put = jax.tree.map(lambda old, new: old.at[one].set(new[members[one]]), states, small_parts(pool))
        return put, left.at[one].set(False)

    fresh, _ = lax.while_loop(lambda carry: carry[1].any(), body, (small_parts(states), done))
    return with_large_parts(fresh, states.running)


def restart_playing(key: PRNGKeyArray, playing: Playing, done: Bool[Array, "B"], pool: State) -> Playing:
    """As `restart`, all at once: for accelerators."""
    members = jax.random.randint(key, done.shape, 0, pool.clock.shape[0])
    fresh = jax.vmap(at_boundary)(small_parts(pool))

    def put(old: Array, new: Array) -> Array:
        return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new[members], old)

    kept = playing.state.running
    started = jax.tree.map(put, playing.replace(state=small_parts(playing.state)), fresh)
    return started.replace(state=with_large_parts(started.state, kept))


def small_parts(state: State) -> State:
    """The state without the placements in its running slots."""
    return state.replace(running=state.running.replace(footprint=None, workers=None, ps=None))


def with_large_parts(state: State, placed: Running) -> State:
    """`small_parts` of a state again with placements: those of `placed`."""
    running = state.running.replace(footprint=placed.footprint, workers=placed.workers, ps=placed.ps)
    return state.replace(running=running)
