"""The stages of a step, in the one order in which they come (docs/semantics.md, section 6).

All schedulers act. When the rounds of a boundary are over, time passes. Then servers go out and come back, and what
has arrived is queued. How far a step goes is its `Pace`, and all that differs:

- In rounds (`transition`) a whole interval passes at once, completion by completion. Vmapped environments all wait for
  the one with most completions. So it is for CPUs, and for single environments.
- In turns (`turn_with`) every step is the same for all, and no loop waits for a single environment: for accelerators.
  An environment at a boundary decides. One within an interval goes to its next completion. One to which more jobs have
  come than a turn admits admits the next ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.occupants import in_groups
from jaxsched.env.actions import admit, admit_some, apply_actions
from jaxsched.env.clock import advance, intervals_ahead, update_load
from jaxsched.env.extensions.failures import change_servers
from jaxsched.env.interval import after_interval, interval_of, to_next_completion
from jaxsched.env.reward import RewardTerms, reward, zero_terms
from jaxsched.env.state import ALWAYS, WAIT, Action, Asked, EnvConfig, EnvParams, State
from jaxsched.pytree import Pytree


class Playing(Pytree):
    """An environment between steps."""

    state: State
    intervals: Int32[Array, ""]  # whole intervals that it is on its way through; 0 at a boundary
    elapsed_s: Float32[Array, ""]  # since the boundary
    terms: RewardTerms  # since the boundary
    admitting: Bool[Array, ""]  # jobs that have arrived are still to be queued

    @property
    def decides(self) -> Bool[Array, ""]:
        """Whether its schedulers decide in the next step."""
        return (self.intervals == 0) & ~self.admitting


def state_of(played: State | Playing) -> State:
    """The state of an environment that is played in rounds, or in turns."""
    return played.state if isinstance(played, Playing) else played


def to_decide(played: State | Playing) -> State:
    """What its schedulers see; those that do not decide have waited, so that nothing is worked out for them."""
    if isinstance(played, State):
        return played
    return played.state.replace(waited=played.state.waited | ~played.decides)


def at_boundary(state: State) -> Playing:
    """The state of an environment at a boundary, as `initial_state` and `transition` leave it."""
    return Playing(
        state=state,
        intervals=jnp.int32(0),
        elapsed_s=jnp.float32(0.0),
        terms=zero_terms(jnp.zeros(state.queue.shape[0], jnp.float32)),
        admitting=jnp.array(False),
    )


class Passed(NamedTuple):
    """What the time that passes in a step leaves."""

    playing: Playing
    changed: Bool[Array, "P R"]  # running slots whose jobs have come or gone, of which the load does not know yet
    ends: Bool[Array, ""]  # it ends at a boundary


class Pace(NamedTuple):
    """How far a step goes."""

    pass_time: Callable[[EnvParams, Playing, Bool[Array, "P R"], Bool[Array, ""]], Passed]
    """Of an environment, the jobs that have come or gone, and whether the rounds of its boundary are over."""
    update_load: Callable[[EnvParams, State, Bool[Array, "P R"]], State]
    admit: Callable[[State, Bool[Array, ""]], tuple[State, Bool[Array, ""] | bool]]
    """The state with arrivals queued, if there are to be any; and whether more are to come."""
    waits: bool  # time may pass over several steps, in which no scheduler decides


def step(
    config: EnvConfig, params: EnvParams, playing: Playing, action: Action, asked: Asked, pace: Pace
) -> tuple[Playing, Float32[Array, "P"]]:
    """The environment after one more step, and the reward of the intervals that ended with it.

    What the schedulers do counts where they decide. Args: `asked`: when they want to be, see `intervals_ahead`.
    """
    decides = playing.decides if pace.waits else jnp.array(True)
    state, changed = _act(params, playing.state, action, decides)
    over = state.round >= config.rounds
    if config.early_stop:
        over |= state.waited.all()
    over &= decides
    intervals = jnp.where(over, intervals_ahead(config, params, state, asked), playing.intervals)
    playing, changed, ends = pace.pass_time(params, playing.replace(state=state, intervals=intervals), changed, over)
    state, gone = change_servers(params, playing.state)
    state = pace.update_load(params, state, changed | gone)
    state = state.replace(round=jnp.where(ends, 0, state.round), waited=state.waited & ~ends)
    state, admitting = pace.admit(state, ends | playing.admitting)
    gain = jnp.where(ends, reward(params.reward, playing.terms), 0.0)
    after = Playing(
        state=state,
        intervals=jnp.where(ends, 0, playing.intervals),
        elapsed_s=jnp.where(ends, 0.0, playing.elapsed_s),
        terms=jax.tree.map(lambda term: jnp.where(ends, 0.0, term), playing.terms),
        admitting=jnp.asarray(admitting),
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


def _to_next_boundary(params: EnvParams, playing: Playing, placed: Bool[Array, "P R"], over: Bool[Array, ""]) -> Passed:
    state, terms = advance(params, playing.state, placed, playing.intervals)
    return Passed(playing.replace(state=state, terms=terms), jnp.zeros_like(placed), over)


def _reload_where_servers_fail(params: EnvParams, state: State, gone: Bool[Array, "P R"]) -> State:
    return update_load(params, state, gone) if state.faults.there else state  # time has passed up to now


def _to_next_completion(
    params: EnvParams, playing: Playing, placed: Bool[Array, "P R"], over: Bool[Array, ""]
) -> Passed:
    """Time passes where the load knows of all jobs: in the turn after one that started some."""
    state, intervals = playing.state, playing.intervals
    passes = (intervals > 0) & ~placed.any()
    length_s = intervals.astype(jnp.float32) * params.interval_s
    to_s = jnp.where(passes, length_s, playing.elapsed_s)
    now, constants = interval_of(params, state, placed, to_s, playing.elapsed_s, playing.terms)
    end, _ = to_next_completion(params, now, constants)
    end = end.replace(
        finish_offset_s=jnp.broadcast_to(end.elapsed_s, now.active.shape),
        active=jnp.where(passes, end.active, now.active),
        remaining_s=jnp.where(passes, end.remaining_s, now.remaining_s),
        remaining_low_s=jnp.where(passes, end.remaining_low_s, now.remaining_low_s),
    )
    finished = now.active & ~end.active
    gpus = jnp.where(finished, constants.gpus_per_worker, 0)
    freed = jax.vmap(in_groups)(state.running.occupants, gpus)
    ends = passes & (end.elapsed_s >= length_s)
    state = after_interval(params, state, end, freed, jnp.where(ends, intervals, 0))
    return Passed(
        playing=playing.replace(state=state, elapsed_s=end.elapsed_s, terms=end.terms),
        changed=placed | finished,
        ends=ends,
    )


ROUNDS = Pace(
    pass_time=_to_next_boundary,
    update_load=_reload_where_servers_fail,
    admit=lambda state, enabled: (admit(state, enabled), False),
    waits=False,
)
TURNS = Pace(pass_time=_to_next_completion, update_load=update_load, admit=admit_some, waits=True)


def transition(
    config: EnvConfig, params: EnvParams, state: State, action: Action, asked: Asked = ALWAYS
) -> tuple[State, Float32[Array, "P"]]:
    """One decision round and, after the last one of the boundary, the clock. Returns state and reward.

    With `config.skip_idle` the clock passes over boundaries at which nobody need be `asked`, see `intervals_ahead`.
    """
    after, gain = step(config, params, at_boundary(state), action, asked, ROUNDS)
    return after.state, gain


def turn_with(
    config: EnvConfig, params: EnvParams, playing: Playing, action: Action, asked: Asked
) -> tuple[Playing, Float32[Array, "P"]]:
    """The environment after one more turn, and the reward of the intervals that ended with it.

    Args: `action` counts where the schedulers decide. `asked`: when they want to be, see `intervals_ahead`.
    """
    return step(config, params, playing, action, asked, TURNS)
