"""The environment as Gymnasium has it, for learners that are not written in JAX. Needs the extra `gym`.

All schedulers are one agent: an action names one option for each of them, and what is seen has a row for each.
The reward is the mean of theirs. `GymVectorEnv` plays many at once in one compiled program; learners in JAX are faster
with `make` itself.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jax import Array

from jaxsched.adapters.menu_env import MenuEnv, check_rows
from jaxsched.errors import UserError


def _spaces(env: MenuEnv) -> tuple[spaces.Dict, spaces.MultiDiscrete]:
    check_rows(env, "Gymnasium")
    actions, seen = env.action_space(), env.observation_space()
    shown = {
        "features": spaces.Box(-np.inf, np.inf, seen["features"].shape, np.float32),
        "options": spaces.Box(-np.inf, np.inf, seen["options"].shape, np.float32),
        "mask": spaces.MultiBinary(seen["mask"].shape),
    }
    return spaces.Dict(shown), spaces.MultiDiscrete(np.full(actions.shape, actions.n))


def _shown(seen: dict[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(part, np.int8 if name == "mask" else np.float32) for name, part in seen.items()}


class GymEnv(gymnasium.Env):
    """One environment. Of an end `step` shows what was reached there; `reset`, and nothing else, begins an episode."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, env: MenuEnv) -> None:
        self.observation_space, self.action_space = _spaces(env)
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step_env)
        self._key, self._turn = jax.random.key(0), None
        self._mask = np.zeros(env.observation_space()["mask"].shape, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """The start of a random episode; the same one for the same `seed`."""
        super().reset(seed=seed)
        if seed is not None:
            self._key = jax.random.key(seed)
        self._key, key = jax.random.split(self._key)
        seen, self._turn = self._reset(key)
        return self._note_mask(_shown(seen)), {}

    def step(self, action: np.ndarray):
        """One decision round of all schedulers. `ResetNeeded` before `reset`, and after the end of an episode."""
        if self._turn is None:
            raise ResetNeeded("step: no episode has begun, or it has ended; call reset first")
        seen, turn, reward, terminated, truncated, info = self._step(self._turn, jnp.asarray(action))
        self._turn = None if terminated or truncated else turn
        told = {name: np.asarray(value).item() for name, value in info.items()}
        return self._note_mask(_shown(seen)), float(reward.mean()), bool(terminated), bool(truncated), told

    def action_masks(self) -> np.ndarray:
        """Which options are legal now, bool[P * A], one scheduler after the other: for `MaskablePPO` of sb3-contrib."""
        return self._mask.reshape(-1)

    def _note_mask(self, shown: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._mask = shown["mask"].astype(bool)
        return shown


class GymVectorEnv(VectorEnv):
    """`num_envs` environments in one program. Where an episode ends, another one begins in the same step.

    What was reached at the end, and what was told there, are then in `info`, as Gymnasium has them: `final_obs`, an
    observation of each environment that has ended and None of the others, and `final_info`.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, env: MenuEnv, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reset, self._step, self._restart = (
            jax.jit(jax.vmap(f)) for f in (env.reset, env.step_env, env.restart_if)
        )
        self._keys, self._turns = jax.random.split(jax.random.key(0), num_envs), None

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None):
        """The starts of random episodes; the same one for the same seed.

        Args: `seed`: a list, one for each environment; or that of the first one, the others count up from it.
        """
        if isinstance(seed, Sequence) and len(seed) != self.num_envs:
            raise UserError(f"reset: {len(seed)} seeds, should be one for each of {self.num_envs} environments")
        if seed is not None:
            seeds = seed if isinstance(seed, Sequence) else range(int(seed), int(seed) + self.num_envs)
            given = np.array([one is not None for one in seeds])
            keys = jax.vmap(jax.random.key)(np.array([one or 0 for one in seeds]))
            self._keys = jnp.where(given, keys, self._keys)
        seen, self._turns = self._reset(self._next_keys(np.ones(self.num_envs, bool)))
        return _shown(seen), {}

    def step(self, actions: np.ndarray):
        """One decision round in each environment."""
        if self._turns is None:
            raise ResetNeeded("step: no episode has begun; call reset first")
        seen, self._turns, reward, terminated, truncated, info = self._step(self._turns, jnp.asarray(actions))
        shown, told = _shown(seen), {name: np.asarray(value) for name, value in info.items()}
        terminated, truncated = np.asarray(terminated), np.asarray(truncated)
        if (ended := terminated | truncated).any():
            told |= self._of_ends(shown, told, ended)
            seen, self._turns = self._restart(self._next_keys(ended), self._turns, ended)
            shown = _shown(seen)
        return shown, np.asarray(reward.mean(-1)), terminated, truncated, told

    def _of_ends(self, shown: dict[str, np.ndarray], told: dict[str, Any], ended: np.ndarray) -> dict[str, Any]:
        """`final_obs` and `final_info`, with Gymnasium's masks of who has them."""
        found: dict[str, Any] = {}
        for place in np.flatnonzero(ended):
            seen = {name: part[place] for name, part in shown.items()}
            info = {name: value[place] for name, value in told.items()}
            found = self._add_info(found, {"final_obs": seen, "final_info": info}, int(place))
        return found

    def _next_keys(self, ended: np.ndarray) -> Array:
        """One for each environment that has ended, which depends on its own seed alone."""
        pairs = jax.vmap(jax.random.split)(self._keys)
        self._keys = jnp.where(ended, pairs[:, 0], self._keys)
        return pairs[:, 1]
