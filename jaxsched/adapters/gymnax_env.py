"""The environment as gymnax 1.0 has it, for its wrappers and learners of one agent. Needs gymnax (extra `marl`)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from gymnax.environments.environment import Environment
from gymnax.environments.spaces import Box, Discrete
from jax import Array
from jaxtyping import Bool, Float32, PRNGKeyArray

from jaxsched.adapters.features import Seen
from jaxsched.adapters.menu_env import MenuEnv, Turn, check_rows
from jaxsched.adapters.wrappers import OneScheduler, row
from jaxsched.env.environment import Episodes, Info


class GymnaxEnv(Environment):
    """A `MenuEnv` of one scheduler: what is seen is its row of `features`, an action is a number.

    `action_mask` says what is legal; what is not counts as waiting. `info["final_observation"]` is what was seen at the
    step's own end. Unlike gymnax' own `step`, this one begins an episode from prepared start states.

    Raises:
        UserError: there are more schedulers.
    """

    def __init__(self, env: MenuEnv) -> None:
        check_rows(env, "gymnax")
        keeping = dataclasses.replace(env, final=True)
        self.env = OneScheduler(dataclasses.replace(keeping, params=keeping.open(env.params)))

    @property
    def name(self) -> str:
        """Of the environment."""
        return "jaxsched"

    @property
    def default_params(self) -> Any:
        """Its episodes."""
        return self.env.params

    @property
    def num_actions(self) -> int:
        """Options of the scheduler, to wait included."""
        return self.env.num_actions

    def reset(self, key: PRNGKeyArray, params: Episodes | None = None) -> tuple[Float32[Array, "F"], Turn]:
        """The start of a random episode."""
        seen, turn = self.env.reset(key, params)
        return seen["features"], turn

    def reset_env(self, key: PRNGKeyArray, params: Any) -> tuple[Float32[Array, "F"], Turn]:
        """`reset`."""
        return self.reset(key, params)

    def step(
        self, key: PRNGKeyArray, state: Any, action: int | float | Array, params: Any = None
    ) -> tuple[Float32[Array, "F"], Turn, Array, Array, Array, Info]:
        """A decision round; after the end of an episode the next one begins."""
        seen, turn, reward, terminated, truncated, info = self.env.step(key, state, jnp.asarray(action), params)
        ends = {"terminated": terminated, "truncated": truncated}
        info = info | ends | {"final_observation": info["final"]["features"]}
        del info["final"]
        return seen["features"], turn, reward, terminated, truncated, info

    def step_env(
        self, key: PRNGKeyArray, state: Any, action: int | float | Array, params: Any
    ) -> tuple[Float32[Array, "F"], Turn, Array, Array, Info]:
        """A decision round that begins no next episode: `(obs, state, reward, terminated, info)`, as gymnax has it."""
        action = jnp.reshape(jnp.asarray(action), (1,))
        seen, turn, reward, terminated, truncated, info = self.env.env.step_env(state, action, params)
        return row(seen)["features"], turn, reward[0], terminated, info | {"truncated": truncated}

    def action_mask(self, state: Turn) -> Bool[Array, "A"]:
        """Which actions are legal; to wait, the last one, always is one where nothing else is."""
        return self.seen(state)["mask"]

    def seen(self, state: Turn) -> Seen:
        """All that the scheduler is shown."""
        return self.env.seen(state)

    def action_space(self, params: Any = None) -> Discrete:
        """A number."""
        return Discrete(self.num_actions)

    def observation_space(self, params: Any = None) -> Box:
        """A row of numbers without limits."""
        shape = self.env.env.observation_space(params)["features"].shape[1:]
        return Box(-jnp.inf, jnp.inf, shape, jnp.float32)
