"""The environment as JaxMARL has it: one agent per scheduler, by name. Needs the extra `marl`.

What learners of JaxMARL expect of an environment holds: `reset`, `step` and `get_avail_actions` jit and vmap, entries
of `info` have one number per agent, and an episode that ends begins anew in the same step.
"""

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.environments.spaces import Box, Discrete
from jaxtyping import PRNGKeyArray, Shaped

from jaxsched.adapters.menu_env import MenuEnv, Turn, check_rows

ByAgent = dict[str, Array]


class JaxMarlEnv(MultiAgentEnv):
    """A `MenuEnv`, as `jaxsched.make` gives it, with agents `agent_0`, `agent_1`, ...

    An agent's observation is its row of `features`: float32[F]. Its action is a line of its menu; one that
    `get_avail_actions` does not allow counts as waiting, so that learners without masks work as well.
    """

    def __init__(self, env: MenuEnv) -> None:
        check_rows(env, "JaxMARL")
        actions, seen = env.action_space(), env.observation_space()
        super().__init__(num_agents=actions.shape[0])
        self.inner = env
        shown = Box(-jnp.inf, jnp.inf, seen["features"].shape[1:])
        self.observation_spaces = dict.fromkeys(self.agents, shown)
        self.action_spaces = dict.fromkeys(self.agents, Discrete(actions.n))

    @property
    def name(self) -> str:
        """Of the environment."""
        return "jaxsched"

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """All schedulers are alike."""
        return {"schedulers": self.agents}

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: PRNGKeyArray) -> tuple[ByAgent, Turn]:
        """The start of a random episode."""
        seen, turn = self.inner.reset(key)
        return self._name_rows(seen["features"]), turn

    @functools.partial(jax.jit, static_argnums=0)
    def step(
        self, key: PRNGKeyArray, state: Turn, actions: Mapping[str, Array], reset_state: Turn | None = None
    ) -> tuple[ByAgent, Turn, ByAgent, ByAgent, ByAgent]:
        """`(obs, state, rewards, dones, infos)` of one decision round; after the end of an episode from `reset_state`.

        Without a `reset_state` a random episode begins.
        """
        chosen = jnp.stack([jnp.reshape(actions[agent], ()) for agent in self.agents])
        seen, turn, reward, terminated, truncated, info = self.inner.step(key, state, chosen)
        ended = terminated | truncated
        if reset_state is not None:
            turn = jax.tree.map(lambda start, after: jnp.where(ended, start, after), reset_state, turn)
            seen = self.inner.seen(turn)
        dones: ByAgent = {name: ended for name in [*self.agents, "__all__"]}
        final = info.pop("final", None)
        told = {name: jnp.full(self.num_agents, value) for name, value in info.items()}
        if final is not None:
            told["final_obs"] = final["features"]
        return self._name_rows(seen["features"]), turn, self._name_rows(reward), dones, told

    def get_obs(self, state: Turn) -> ByAgent:
        """What the agents see."""
        return self._name_rows(self.inner.seen(state)["features"])

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: Turn) -> ByAgent:
        """bool[A] for each agent: the legal lines of its menu; the last is to wait."""
        return self._name_rows(self.inner.seen(state)["mask"])

    def get_world_state(self, state: Turn) -> Array:
        """All that all agents see, in a row: for critics that know more than actors."""
        return self.inner.world_state(state)

    def world_state_size(self) -> int:
        """Numbers in it."""
        return math.prod(self.inner.observation_space()["features"].shape)

    def _name_rows(self, rows: Shaped[Array, "P ..."]) -> ByAgent:
        return dict(zip(self.agents, rows))
