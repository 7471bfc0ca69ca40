"""An environment whose actions are numbers: each scheduler picks a line of its menu, or waits.

The raw environment (`env.environment`) takes counts of tasks per GPU group. Here a scheduler is offered candidate
placements of the first jobs of its queue, forwards of its first blocked job, and to wait: the choice that the learned
policies of this project make. Episodes start and start again by themselves.

A step is a decision round. Vmapped on a GPU, all environments wait in each step for the one in which most jobs end.
With `in_turns` a step is a turn (`env.stages`): where an interval is still passing, schedulers can only wait.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.border import checked
from jaxsched.env.environment import SHOWN, ClusterEnv, Episodes, Info
from jaxsched.env.observation import Choice, Menu, Observation
from jaxsched.env.pool import start_if
from jaxsched.env.queues import Discipline
from jaxsched.env.spaces import Box, Discrete, Named
from jaxsched.env.stages import Playing, state_of, to_decide
from jaxsched.env.state import Action, EnvConfig, State
from jaxsched.policies.menu import build_menu, menu_policy, to_action
from jaxsched.policies.policy import Policy
from jaxsched.pytree import Pytree

# `features`: float32[P, F], `options`: float32[P, A, O] and `mask`: bool[P, A] of the options that are legal.
Seen = dict[str, Array]


class Turn(Pytree):
    """An episode at a step, with what its schedulers were shown."""

    played: State | Playing  # in rounds, in turns
    observation: Observation
    menu: Menu

    @property
    def state(self) -> State:
        """The state of the episode."""
        return state_of(self.played)

    def _repr_html_(self) -> str | None:
        """In a notebook: the state, drawn."""
        return self.state._repr_html_()


@dataclasses.dataclass(frozen=True, eq=False)
class MenuEnv:
    """`reset` and `step` are pure, and jit and vmap; `params` are the default ones.

    `P` schedulers, `A` options of each: placements, one forward per scheduler, and last to wait. One step is one
    decision round of all schedulers, or with `in_turns` one turn, which on GPUs is faster where many play. Rewards come
    when an interval ends. When an episode ends the next one begins at once: the step's observation and state are then
    those of its start, reward and flags those of the end. Without `may_wait` the mask has waiting only if nothing else
    is legal.
    """

    config: EnvConfig
    params: Episodes
    queue: Discipline = SHOWN
    in_turns: bool = False
    may_wait: bool = True

    @property
    def inner(self) -> ClusterEnv:
        """The environment whose actions these numbers stand for."""
        return ClusterEnv(self.config, self.queue, self.in_turns)

    @checked
    def reset(self, key: PRNGKeyArray, params: Episodes | None = None) -> tuple[Seen, Turn]:
        """The start of a random episode.

        Args:
            key: draws one of `params.starts`.
            params: the environment's numbers and start states; None: its own.

        Returns:
            What the schedulers see, as of `observation_space`, and the turn to step from.
        """
        params = self.params if params is None else params
        observation, played = self.inner.reset(key, params)
        turn = _shown(params, played, observation)
        return self.seen(turn), turn

    @checked
    def step(
        self, key: PRNGKeyArray, turn: Turn, action: Int32[Array, "P"], params: Episodes | None = None
    ) -> tuple[Seen, Turn, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        """One decision round of all schedulers, or one turn; the next episode begins where one has ended.

        Args:
            key: draws the next episode's start.
            turn: of `reset` or of the step before.
            action: int32[P], an option of each scheduler; one that is not legal counts as waiting.
            params: as of `reset`.

        Returns:
            `(seen, turn, reward, terminated, truncated, info)`, see `ClusterEnv.step`.
        """
        params = self.params if params is None else params
        act = _to_action(turn, action)
        observation, played, reward, terminated, truncated, info = self.inner.step(key, turn.played, act, params)
        turn = _shown(params, played, observation)
        return self.seen(turn), turn, reward, terminated, truncated, info

    @checked
    def step_env(
        self, turn: Turn, action: Int32[Array, "P"], params: Episodes | None = None
    ) -> tuple[Seen, Turn, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        """`step` that does not begin the next episode: of an end it shows what was reached there."""
        params = self.params if params is None else params
        played, reward, terminated, truncated, info = self.inner.step_env(turn.played, _to_action(turn, action), params)
        turn = _shown(params, played, self.inner.observe(played, params))
        return self.seen(turn), turn, reward, terminated, truncated, info

    @checked
    def restart_if(
        self, key: PRNGKeyArray, turn: Turn, ended: Bool[Array, ""], params: Episodes | None = None
    ) -> tuple[Seen, Turn]:
        """The turn, or the start of a random episode if the one before has ended."""
        params = self.params if params is None else params
        played = start_if(key, turn.played, ended, params.starts)
        turn = _shown(params, played, self.inner.observe(played, params))
        return self.seen(turn), turn

    @checked
    def seen(self, turn: Turn) -> Seen:
        """What the schedulers are shown in a turn."""
        return show_menu(turn.observation, turn.menu, self.may_wait)

    @checked
    def policy(self, name: str, act: Callable[[PRNGKeyArray, Seen, PyTree], Array], weights: PyTree = None) -> Policy:
        """What was learned here as a policy, for `compare`, for FILE.py:NAME on the command line, on any cluster.

        It forwards a job at most as often as here, and sees queues in the same order.

        Args:
            name: in tables.
            act: `act(key, seen, weights)` gives int32[P], an option for each scheduler. To play other clusters it must
                not depend on the length of `features`.
            weights: go to `act` as they are.

        Returns:
            A `Policy` like any other that is a JAX function.
        """

        def choose(key: PRNGKeyArray, observation: Observation, menu: Menu, weights: PyTree) -> Choice:
            return _choice(observation, menu, act(key, show_menu(observation, menu, self.may_wait), weights))

        return menu_policy(name, choose, weights, self.queue, int(np.max(self.params.env.max_forwards)))

    @checked
    def action_space(self, params: Episodes | None = None) -> Discrete:
        """One option for each scheduler. `sample(key, seen["mask"])` draws legal ones."""
        mask = self._example(params)["mask"]
        return Discrete(mask.shape[1], mask.shape[:1])

    @checked
    def observation_space(self, params: Episodes | None = None) -> Named:
        """`features` (float32[P, F]), `options` (float32[P, A, O]), both without limits, and `mask` (bool[P, A])."""
        seen = self._example(params)
        return Named(
            {
                "features": Box(-float("inf"), float("inf"), seen["features"].shape),
                "options": Box(-float("inf"), float("inf"), seen["options"].shape),
                "mask": Discrete(2, seen["mask"].shape, jnp.bool_),
            }
        )

    def _example(self, params: Episodes | None) -> Seen:
        return jax.eval_shape(lambda: self.reset(jax.random.key(0), params)[0])


def _shown(params: Episodes, played: State | Playing, observation: Observation) -> Turn:
    menu = build_menu(params.env, to_decide(played), observation)
    return Turn(played=played, observation=observation, menu=menu)


def _to_action(turn: Turn, action: Int32[Array, "P"]) -> Action:
    """What the schedulers do who choose these options."""
    return to_action(turn.state, turn.observation, turn.menu, _choice(turn.observation, turn.menu, action))


def _choice(observation: Observation, menu: Menu, option: Int32[Array, "P"]) -> Choice:
    """What the numbers of options say; one that is not legal says to wait, as the last one does."""
    acts = jnp.concatenate([menu.mask, observation.forward_mask], -1)
    within = jnp.clip(option, 0, acts.shape[-1] - 1)
    legal = (option == within) & jnp.take_along_axis(acts, within[:, None], -1)[:, 0]
    return Choice(act=legal, option=within)


def show_menu(observation: Observation, menu: Menu, may_wait: bool = True) -> Seen:
    """Of every scheduler all features in a row, its options, and which of them are legal.

    The length of a row of features depends on the cluster's size. That of an option does not. Who may not wait has that
    in the mask only if nothing else is legal.
    """
    acts = jnp.concatenate([menu.mask, observation.forward_mask], -1)
    mask = jnp.concatenate([acts, may_wait | ~acts.any(-1, keepdims=True)], -1)
    return {"features": _features(observation, menu), "options": _options(observation, menu, mask), "mask": mask}


def _features(obs: Observation, menu: Menu) -> Float32[Array, "P F"]:
    others = jnp.broadcast_to(obs.scheduler.mean(0), obs.scheduler.shape)
    parts = [
        obs.scheduler, others, obs.group * obs.group_mask[..., None], obs.server, obs.rack, obs.job,
        obs.job_mask.astype(jnp.float32), menu.features, menu.rank / 4.0, menu.order / 8.0,
    ]  # fmt: skip
    return jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], -1)


def _options(obs: Observation, menu: Menu, mask: Bool[Array, "P A"]) -> Float32[Array, "P A O"]:
    """What is known of each option, zeros where there is nothing to say or the option is not legal.

    In this order: whether it is a placement, a forward, to wait (3 columns); of a placement the menu's features (see
    `policies.menu`), the job's place in the window over 4, the placement's place in greedy-wait's order over 8, whether
    the job would be done before any that runs (3); the job (`env.observation.job_features`); the scheduler that would
    have the job (`env.observation.scheduler_features`).
    """
    p, k = menu.mask.shape
    own, numbers = obs.scheduler[:, None], jnp.stack([menu.rank / 4.0, menu.order / 8.0, menu.brief], -1)
    placed = jnp.concatenate([menu.features, numbers], -1)
    nowhere = jnp.zeros((p, 1, placed.shape[-1]))
    rows = [
        _rows(k, 0, placed, jnp.take_along_axis(obs.job, menu.rank[..., None], 1), own),
        _rows(p, 1, nowhere, obs.job[:, -1:], obs.scheduler[None]),
        _rows(1, 2, nowhere, jnp.zeros_like(obs.job[:, :1]), own),
    ]
    return jnp.where(mask[..., None], jnp.concatenate(rows, 1), 0.0)


def _rows(count: int, kind: int, *parts: Float32[Array, "..."]) -> Float32[Array, "P count O"]:
    """So many options of one kind, each with all parts."""
    p = parts[0].shape[0]
    return jnp.concatenate([jnp.broadcast_to(x, (p, count, x.shape[-1])) for x in (jnp.eye(3)[kind], *parts)], -1)
