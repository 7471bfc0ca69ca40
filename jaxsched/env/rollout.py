"""The one loop of decision rounds: runs, validation, benchmarks and training differ in what they collect on the way."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, Key, PRNGKeyArray

from jaxsched.env.extensions.failures import hide_failures
from jaxsched.env.extensions.pairs import as_known
from jaxsched.env.knowledge import mask_unknown
from jaxsched.env.stages import Playing, to_decide, transition, turn_with
from jaxsched.env.state import Action, Asked, EnvConfig, EnvParams, State

S = TypeVar("S")  # a state, or states with a leading axis of environments
R = TypeVar("R")  # what a round leaves to be collected
T = TypeVar("T")  # a running total of that
Play = Callable[[S, PRNGKeyArray], tuple[S, R]]  # of states and a key: the states after a round, and what it leaves


class Decides(Protocol):
    """What plays: a policy."""

    @property
    def asks_at(self) -> Asked: ...

    def __call__(self, key: PRNGKeyArray, state: State, params: EnvParams) -> Action: ...


class Collector(NamedTuple, Generic[T, R]):
    """What is kept of the rounds: `add(total, round)` in turn, from `start` on."""

    start: T
    add: Callable[[T, R], T]


COLLECT_NOTHING: Collector[None, Any] = Collector(None, lambda total, seen: None)


def one_round(config: EnvConfig, params: EnvParams, policy: Decides, state: State, key: PRNGKeyArray) -> State:
    """The state of one environment after a decision round of all its schedulers."""
    action = action_of(config, params, policy, state, key)
    return transition(config, params, state, action, policy.asks_at)[0]


def one_turn(
    config: EnvConfig, params: EnvParams, policy: Decides, playing: Playing, key: PRNGKeyArray
) -> tuple[Playing, Float32[Array, "P"]]:
    """The environment after one more turn, and the reward of the intervals that ended with it."""
    action = action_of(config, params, policy, to_decide(playing), key)
    return turn_with(config, params, playing, action, policy.asks_at)


def action_of(config: EnvConfig, params: EnvParams, policy: Decides, state: State, key: PRNGKeyArray) -> Action:
    """What a policy does that sees only what it may know."""
    hidden, state = as_known(hide_failures(params), mask_unknown(config, params, state))
    return policy(key, state, hidden)


def play_rounds(
    play: Play[S, R], states: S, keys: Key[Array, "rounds"], collector: Collector[T, R] = COLLECT_NOTHING
) -> tuple[S, T, R]:
    """So many rounds as there are `keys`. Returns states, the collector's total, and every round's rest, stacked."""

    def turn(carry: tuple[S, T], key: Array) -> tuple[tuple[S, T], R]:
        states, total = carry
        states, seen = play(states, key)
        return (states, collector.add(total, seen)), seen

    (states, total), seen = lax.scan(turn, (states, collector.start), keys)
    return states, total, seen


def play_while(
    going: Callable[[S], Bool[Array, ""]],
    play: Play[S, R],
    states: S,
    key_of: Callable[[Int32[Array, ""]], PRNGKeyArray],
    most: int,
    collector: Collector[T, R] = COLLECT_NOTHING,
) -> tuple[S, T, Int32[Array, ""]]:
    """Rounds while `going(states)`, `most` at most; round `i` has the key `key_of(i)`.

    Returns states, the collector's total, and how many rounds were played.
    """

    def unfinished(carry: tuple[S, T, Array]) -> Array:
        states, _, count = carry
        return (count < most) & going(states)

    def turn(carry: tuple[S, T, Array]) -> tuple[S, T, Array]:
        states, total, count = carry
        states, seen = play(states, key_of(count))
        return states, collector.add(total, seen), count + 1

    return lax.while_loop(unfinished, turn, (states, collector.start, jnp.int32(0)))
