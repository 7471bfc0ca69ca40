"""Pools of prepared start states, so that a restart is a look-up: states with a leading axis, in which no job runs.

When an environment restarts, the placements in its running slots stay as they are: no job runs, so nothing reads them.

Job lists never change, and lie in the pool once. A state that begins from it has the number of its list (`Listed`) and
gets its `jobs` for a step: `with_jobs` before it, `keep_jobs` after it, both within any `vmap` and any loop. A state
with a job list of its own goes through all this with it.
"""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, PRNGKeyArray, PyTree, Shaped

from jaxsched.dynamics.batching import on_cpu
from jaxsched.env.stages import Playing, at_boundary, state_of
from jaxsched.env.state import Running, State
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import JobTable

Played = TypeVar("Played", State, Playing, State | Playing)


class Column(Pytree):
    """A column of a job list that lies among others of its size, and is read there: `[row]`, or `[:]` for all of it."""

    lists: Shaped[Array, "L *axes J"]
    number: Int32[Array, ""]  # of the list
    __iter__ = None  # or Python would ask for one entry after the other, without end

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, slice):
            return self.lists[self.number][index]
        if isinstance(index, tuple):
            assert index[0] == slice(None), "of columns with axes `[:, row]` alone is read"
            return jnp.moveaxis(self.lists[self.number, :, index[1]], -1, 0)
        return self.lists[self.number, index]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the column."""
        return self.lists.shape[1:]

    @property
    def size(self) -> int:
        """Likewise."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """Likewise."""
        return self.lists.dtype


class Listed(Pytree):
    """In place of a job list its number among those of a pool."""

    number: Int32[Array, ""]
    mark: Int32[Array, ""]  # of the list, to tell another pool's by

    def is_of(self, lists: JobTable) -> Bool[Array, ""]:
        """Whether the list of this number is, as far as marks tell, the one that the state began with."""
        return marks_of(lists, self.number) == self.mark

    def columns(self, lists: JobTable) -> JobTable:
        """The list, whose columns are read where they lie in `lists`, that is, in tables on a leading axis."""
        return jax.tree.map(lambda leaf: Column(lists=leaf, number=self.number), lists)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name!r} here: a state has only the number of its job list; `env.with_jobs` adds it")


_MARKED = 8  # jobs


def marks_of(lists: JobTable, number: Int32[Array, "*B"]) -> Int32[Array, "*B"]:
    """What tells the lists of these numbers from those of other pools: of what their first jobs are like."""
    found = jnp.zeros_like(number)
    for name in ("arrival", "duration_s", "workers", "gpus_per_worker", "model"):
        some = getattr(lists, name)[number, :_MARKED]
        whole = lax.bitcast_convert_type(some, jnp.int32) if some.dtype == jnp.float32 else some.astype(jnp.int32)
        found = found * 31 + (whole * jnp.arange(1, 2 * some.shape[-1], 2)).sum(-1)
    return found


def draw_number(key: PRNGKeyArray, pool: State) -> Int32[Array, ""]:
    """The number of the member that `draw_start` draws with this key."""
    return jax.random.randint(key, (), 0, pool.clock.shape[0])


def draw_start(key: PRNGKeyArray, pool: State) -> State:
    """A random member of the pool."""
    return starts_of(pool, draw_number(key, pool))


def starts_of(pool: State, number: Int32[Array, "*B"]) -> State:
    """The members of these numbers, with the numbers for job lists."""
    return jax.tree.map(lambda leaf: leaf[number], _numbered(pool))


def with_jobs(played: Played, pool: State) -> Played:
    """An environment with its job list, which is read where it lies in the pool: it must not go through a loop."""
    jobs = state_of(played).jobs
    return _replace_jobs(played, jobs.columns(pool.jobs)) if isinstance(jobs, Listed) else played


def is_foreign(played: State | Playing, pool: State) -> Bool[Array, ""]:
    """Whether an environment began in another pool, so that the list of its number here is not its own."""
    jobs = state_of(played).jobs
    return ~jobs.is_of(pool.jobs) if isinstance(jobs, Listed) else jnp.bool_(False)


def keep_jobs(after: Played, before: State | Playing) -> Played:
    """An environment after a step, with what it had of its job list before `with_jobs`."""
    return _replace_jobs(after, state_of(before).jobs)


def copy_jobs(state: State, pool: State) -> State:
    """A state with its job list, as a copy: for what takes arrays only. Both may have axes of environments."""
    jobs = state.jobs
    if not isinstance(jobs, Listed):
        return state
    return state.replace(jobs=jax.tree.map(lambda leaf: leaf[jobs.number], pool.jobs))


def _replace_jobs(played: Played, jobs: JobTable | Listed) -> Played:
    if isinstance(played, Playing):
        return played.replace(state=played.state.replace(jobs=jobs))
    return played.replace(jobs=jobs)


def _numbered(pool: State) -> State:
    """The pool with numbers for job lists."""
    numbers = jnp.arange(pool.clock.shape[0])
    return pool.replace(jobs=Listed(number=numbers, mark=marks_of(pool.jobs, numbers)))


def _fresh(pool: State, played: State | Playing) -> State:
    """What of the pool goes into an environment like `played`, whose jobs are a list of its own or a number."""
    return small_parts(_numbered(pool) if isinstance(state_of(played).jobs, Listed) else pool)


def start_if(key: PRNGKeyArray, played: State | Playing, done: Bool[Array, ""], pool: State) -> State | Playing:
    """`played`, or where it is `done` the member of the pool that `draw_start` draws."""
    number, fresh = draw_number(key, pool), _fresh(pool, played)
    if isinstance(played, Playing):
        old = played.replace(state=small_parts(played.state))
        after = put_if(done, number, jax.vmap(at_boundary)(fresh), old)
        return after.replace(state=with_large_parts(after.state, played.state.running))
    return with_large_parts(put_if(done, number, fresh, small_parts(played)), played.running)


def put_if(done: Bool[Array, "*B"], number: Int32[Array, "*B"], pool: PyTree, old: PyTree) -> PyTree:
    """`old`, or where it is `done` that member of the pool.

    On a CPU, and there under any `vmap` of environments with one pool, members are put in one after the other, so that
    no other environment is touched.

    Args: leaves of `pool` have an axis over its members, those of `old` the axes of `done`.
    """
    if not on_cpu():
        return _put_one(done, number, pool, old)
    put = jax.custom_batching.custom_vmap(_put_some if done.ndim else _put_one)

    @put.def_vmap
    def side_by_side(size: int, batched: list, done: Array, number: Array, pool: PyTree, old: PyTree) -> tuple:
        if any(jax.tree.leaves(batched[2])):
            axes = jax.tree.map(lambda some: 0 if some else None, batched)
            after = jax.vmap(_put_one, in_axes=tuple(axes))(done, number, pool, old)
        else:
            spread = lambda leaf, some: leaf if some else jnp.broadcast_to(leaf, (size, *leaf.shape))
            done, number, old = jax.tree.map(spread, (done, number, old), (batched[0], batched[1], batched[3]))
            after = put_if(done, number, pool, old)
        return after, jax.tree.map(lambda _: True, after)

    return put(done, number, pool, old)


def _put_one(done: Array, number: Array, pool: PyTree, old: PyTree) -> PyTree:
    if done.ndim:
        return jax.vmap(_put_one, in_axes=(0, 0, None, 0))(done, number, pool, old)
    return lax.cond(done, lambda: jax.tree.map(lambda leaf: leaf[number], pool), lambda: old)


def _put_some(done: Array, number: Array, pool: PyTree, old: PyTree) -> PyTree:
    # -1: has its member. If nothing carried changed, XLA would read a lone environment's member before every such loop.
    def body(carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        after, left = carry
        one = jnp.unravel_index(jnp.argmax(left), left.shape)
        put = jax.tree.map(lambda here, members: here.at[one].set(members[left[one]]), after, pool)
        return put, left.at[one].set(-1)

    return lax.while_loop(lambda carry: (carry[1] >= 0).any(), body, (old, jnp.where(done, number, -1)))[0]


def restart(key: PRNGKeyArray, states: State, done: Bool[Array, "B"], pool: State) -> State:
    """Environments that are `done` restart from random members of `pool`; both have a leading axis. For CPUs."""
    members = jax.random.randint(key, done.shape, 0, pool.clock.shape[0])
    return with_large_parts(put_if(done, members, _fresh(pool, states), small_parts(states)), states.running)


def restart_playing(key: PRNGKeyArray, playing: Playing, done: Bool[Array, "B"], pool: State) -> Playing:
    """As `restart`, all at once: for accelerators."""
    members = jax.random.randint(key, done.shape, 0, pool.clock.shape[0])
    fresh = jax.vmap(at_boundary)(_fresh(pool, playing))

    def put(old: Array, new: Array) -> Array:
        return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new[members], old)

    kept = playing.state.running
    started = jax.tree.map(put, playing.replace(state=small_parts(playing.state)), fresh)
    return started.replace(state=with_large_parts(started.state, kept))


def small_parts(state: State) -> State:
    """The state without the placements in its running slots."""
    return state.replace(running=state.running.replace(occupants=None))


def with_large_parts(state: State, placed: Running) -> State:
    """`small_parts` of a state again with placements: those of `placed`."""
    return state.replace(running=state.running.replace(occupants=placed.occupants))
