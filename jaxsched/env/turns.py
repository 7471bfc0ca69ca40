"""Many environments in step with each other, each at its own point of its own boundary: for accelerators.

`env.environment.transition` runs a whole interval at once, completion by completion, and vmapped environments all wait
for the one with most completions. Here every turn is the same for all, and no loop waits for a single environment. An
environment at a boundary decides. One within an interval goes to its next completion. One to which more jobs have come
than a turn admits admits the next ones. What happens in each is what `transition` does (docs/semantics.md, section 6).
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray

from jaxsched.env.actions import admit_some, apply_actions
from jaxsched.env.clock import intervals_ahead, reloaded
from jaxsched.env.environment import small_parts, with_large_parts
from jaxsched.env.failures import change_servers
from jaxsched.env.interval import after_interval, interval_of, to_next_completion
from jaxsched.env.reward import RewardTerms, reward, zero_terms
from jaxsched.env.rollout import Decides, action_of
from jaxsched.env.state import WAIT, Action, Asked, EnvConfig, EnvParams, State
from jaxsched.pytree import Pytree


class Playing(Pytree):
    """An environment between turns."""

    state: State
    intervals: Int32[Array, ""]  # whole intervals that it is on its way through; 0 at a boundary
    elapsed_s: Float32[Array, ""]  # since the boundary
    terms: RewardTerms  # since the boundary
    admitting: Bool[Array, ""]  # jobs that have arrived are still to be queued

    @property
    def decides(self) -> Bool[Array, ""]:
        """Whether its schedulers decide in the next turn."""
        return (self.intervals == 0) & ~self.admitting

    @property
    def to_decide(self) -> State:
        """What its schedulers see; those that do not decide have waited, so that nothing is worked out for them."""
        return self.state.replace(waited=self.state.waited | ~self.decides)


def at_boundary(state: State) -> Playing:
    """The state of an environment at a boundary, as `initial_state` and `transition` leave it."""
    return Playing(
        state=state,
        intervals=jnp.int32(0),
        elapsed_s=jnp.float32(0.0),
        terms=zero_terms(jnp.zeros(state.queue.shape[0], jnp.float32)),
        admitting=jnp.array(False),
    )


def turn(
    config: EnvConfig, params: EnvParams, policy: Decides, playing: Playing, key: PRNGKeyArray
) -> tuple[Playing, Float32[Array, "P"]]:
    """The environment after one more turn, and the reward of the intervals that ended with it."""
    action = action_of(config, params, policy, playing.to_decide, key)
    return turn_with(config, params, playing, action, policy.asks_at)


def turn_with(
    config: EnvConfig, params: EnvParams, playing: Playing, action: Action, asks: Asked
) -> tuple[Playing, Float32[Array, "P"]]:
    """`turn` with what the schedulers do, which counts where they decide; `asks`: when they want to be asked."""
    decides = playing.decides
    state, placed = _act(params, playing.state, action, decides)

    over = decides & (state.round >= config.rounds)
    if config.early_stop:
        over |= decides & state.waited.all()
    intervals = jnp.where(over, intervals_ahead(config, params, state, asks), playing.intervals)

    # Time passes where the load knows of all jobs: in the turn after one that started some.
    passes = (intervals > 0) & ~placed.any()
    length_s = intervals.astype(jnp.float32) * params.interval_s
    to_s = jnp.where(passes, length_s, playing.elapsed_s)
    now, constants = interval_of(params, state, placed, to_s, playing.elapsed_s, playing.terms)
    end = to_next_completion(params, now, constants)
    end = end.replace(
        active=jnp.where(passes, end.active, now.active),
        remaining_s=jnp.where(passes, end.remaining_s, now.remaining_s),
        remaining_low_s=jnp.where(passes, end.remaining_low_s, now.remaining_low_s),
    )
    finished = now.active & ~end.active
    gpus = jnp.where(finished, constants.gpus_per_worker, 0)
    freed = (gpus[..., None, None] * state.running.workers).sum(1)

    ends = passes & (end.elapsed_s >= length_s)
    state = after_interval(params, state, end, freed, jnp.where(ends, intervals, 0))
    changed = placed | finished
    if params.failures is not None:
        state, gone = change_servers(params, state)
        changed |= gone
    state = reloaded(params, state, changed)
    state = state.replace(round=jnp.where(ends, 0, state.round), waited=state.waited & ~ends)
    state, admitting = admit_some(state, ends | playing.admitting)

    gain = jnp.where(ends, reward(params.reward, end.terms), 0.0)
    after = Playing(
        state=state,
        intervals=jnp.where(ends, 0, intervals),
        elapsed_s=jnp.where(ends, 0.0, end.elapsed_s),
        terms=jax.tree.map(lambda term: jnp.where(ends, 0.0, term), end.terms),
        admitting=admitting,
    )
    return after, gain


def _act(params: EnvParams, state: State, action: Action, decides: Bool[Array, ""]) -> tuple[State, Bool[Array, "P R"]]:
    """`apply_actions` where the schedulers decide; elsewhere they have not even waited."""
    action = action.replace(
        kind=jnp.where(decides, action.kind, WAIT), stop=None if action.stop is None else action.stop & decides
    )
    after, changed = apply_actions(params, state, action)
    return after.replace(
        waited=jnp.where(decides, after.waited, state.waited), round=jnp.where(decides, after.round, state.round)
    ), changed


def start_anew(key: PRNGKeyArray, playing: Playing, done: Bool[Array, "B"], pool: State) -> Playing:
    """As `env.environment.restart`, all at once: those that are `done` start anew from random members of `pool`."""
    members = jax.random.randint(key, done.shape, 0, pool.clock.shape[0])
    fresh = jax.vmap(at_boundary)(small_parts(pool))

    def put(old: Array, new: Array) -> Array:
        return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new[members], old)

    kept = playing.state.running
    started = jax.tree.map(put, playing.replace(state=small_parts(playing.state)), fresh)
    return started.replace(state=with_large_parts(started.state, kept))
