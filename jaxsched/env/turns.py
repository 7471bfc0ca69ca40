"""Many environments in step with each other, each at its own point of its own boundary: for accelerators.

`env.environment.transition` runs a whole interval at once, completion by completion, and vmapped environments all wait
for the one with most completions. Here every turn is the same for all, and no loop waits for a single environment. An
environment at a boundary decides. One within an interval goes to its next completion. One to which more jobs have come
than a turn admits admits the next ones. What happens in each is what `transition` does (docs/semantics.md, section 6).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.env.actions import admit_some
from jaxsched.env.clock import update_load
from jaxsched.env.interval import after_interval, interval_of, to_next_completion
from jaxsched.env.stages import Pace, Passed, Playing, step
from jaxsched.env.state import Action, Asked, EnvConfig, EnvParams


def turn_with(
    config: EnvConfig, params: EnvParams, playing: Playing, action: Action, asks: Asked
) -> tuple[Playing, Float32[Array, "P"]]:
    """The environment after one more turn, and the reward of the intervals that ended with it.

    Args: `action` counts where the schedulers decide. `asks`: when they want to be asked, see `intervals_ahead`.
    """
    return step(config, params, playing, action, asks, TURNS)


def _to_next_completion(
    params: EnvParams, playing: Playing, placed: Bool[Array, "P R"], over: Bool[Array, ""]
) -> Passed:
    """Time passes where the load knows of all jobs: in the turn after one that started some."""
    state, intervals = playing.state, playing.intervals
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
    return Passed(
        playing=playing.replace(state=state, elapsed_s=end.elapsed_s, terms=end.terms),
        changed=placed | finished,
        ends=ends,
    )


TURNS = Pace(pass_time=_to_next_completion, update_load=update_load, admit=admit_some, waits=True)
