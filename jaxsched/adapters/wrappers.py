"""Wrappers of `MenuEnv`, pure as it is: a log of returns and lengths, and a face without an axis for one scheduler."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray

from jaxsched.adapters.features import Seen
from jaxsched.adapters.menu_env import MenuEnv, Turn
from jaxsched.env.environment import Episodes, Info
from jaxsched.env.spaces import Discrete
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree

Stepped = tuple[Seen, Any, Array, Bool[Array, ""], Bool[Array, ""], Info]


class LogTurn(Pytree):
    """A turn, with what the episode has brought so far, and what the last whole one brought."""

    turn: Any  # of the environment that is wrapped
    returns: Float32[Array, "..."]  # as rewards are
    length: Int32[Array, ""]  # steps
    returned_returns: Float32[Array, "..."]
    returned_length: Int32[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class LogWrapper:
    """`info` also has `returned_episode_returns`, `returned_episode_lengths` and, where one ended, `returned_episode`.

    Names and meaning are those of gymnax. Returns have a number for each scheduler, and are not discounted.
    """

    env: Any  # `MenuEnv` or `OneScheduler`

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: PRNGKeyArray, params: Episodes | None = None) -> tuple[Seen, LogTurn]:
        """See `MenuEnv.reset`."""
        seen, turn = self.env.reset(key, params)
        zeros, none = jnp.zeros(self.env.action_space().shape, jnp.float32), jnp.int32(0)
        log = LogTurn(turn=turn, returns=zeros, length=none, returned_returns=zeros, returned_length=none)
        return seen, log

    def step(self, key: PRNGKeyArray, state: LogTurn, action: Array, params: Episodes | None = None) -> Stepped:
        """See `MenuEnv.step`."""
        seen, turn, reward, terminated, truncated, info = self.env.step(key, state.turn, action, params)
        ended = terminated | truncated
        returns, length = state.returns + reward, state.length + 1
        log = LogTurn(
            turn=turn,
            returns=jnp.where(ended, 0.0, returns),
            length=jnp.where(ended, 0, length),
            returned_returns=jnp.where(ended, returns, state.returned_returns),
            returned_length=jnp.where(ended, length, state.returned_length),
        )
        told = {
            "returned_episode_returns": log.returned_returns,
            "returned_episode_lengths": log.returned_length,
            "returned_episode": ended,
        }
        return seen, log, reward, terminated, truncated, info | told


@dataclasses.dataclass(frozen=True, eq=False)
class OneScheduler:
    """An environment of one scheduler, without the axis: actions and rewards are scalars, what is seen is one row.

    Raises:
        UserError: there are more schedulers.
    """

    env: MenuEnv

    def __post_init__(self) -> None:
        count = self.env.params.env.cluster.shape[0]
        if count != 1:
            raise UserError(f"OneScheduler: the environment has {count} schedulers, should have 1; make(schedulers=1)")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def action_space(self, params: Episodes | None = None) -> Discrete:
        """A number."""
        return Discrete(self.env.action_space(params).n)

    def reset(self, key: PRNGKeyArray, params: Episodes | None = None) -> tuple[Seen, Turn]:
        """See `MenuEnv.reset`."""
        seen, turn = self.env.reset(key, params)
        return row(seen), turn

    def step(self, key: PRNGKeyArray, state: Turn, action: Int32[Array, ""], params: Episodes | None = None) -> Stepped:
        """See `MenuEnv.step`."""
        seen, turn, reward, terminated, truncated, info = self.env.step(key, state, jnp.reshape(action, (1,)), params)
        if "final" in info:
            info["final"] = row(info["final"])
        return row(seen), turn, reward[0], terminated, truncated, info

    def seen(self, turn: Turn) -> Seen:
        """See `MenuEnv.seen`."""
        return row(self.env.seen(turn))


def row(seen: Seen) -> Seen:
    """Of the first scheduler."""
    return jax.tree.map(lambda leaf: leaf[0], seen)
