"""An environment whose actions are numbers: each scheduler picks a line of its menu, or waits.

The raw environment (`env.environment`) takes counts of tasks per GPU group. Here a scheduler is offered candidate
placements of the first jobs of its queue, forwards of its first blocked job, and to wait: the choice that the learned
policies of this project make. Episodes start and start again by themselves.

A step is a decision round. Vmapped on a GPU, all environments wait in each step for the one in which most jobs end.
With `in_turns` a step is a turn (`env.stages`): where an interval is still passing, schedulers can only wait.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.adapters.features import EDGE, NODE, OPTION, Feature, Seen, action_names, show_graph, show_menu
from jaxsched.border import checked
from jaxsched.cluster.hardware import total_gpus
from jaxsched.env.environment import SHOWN, ClusterEnv, Episodes, Info
from jaxsched.env.observation import Choice, Menu, Observation, observe
from jaxsched.env.pool import copy_jobs, draw_number, draw_start, is_foreign, put_if, start_if, with_jobs
from jaxsched.env.queues import Discipline
from jaxsched.env.spaces import Box, Discrete, Named
from jaxsched.env.stages import Playing, at_boundary, state_of, to_decide
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.policies.menu import Offered, build_menu, menu_policy, to_action
from jaxsched.policies.policy import Policy
from jaxsched.pytree import Pytree
from jaxsched.user_code import call, check_shape, name_of

ROWS, GRAPH = OBSERVATIONS = ("rows", "graph")
Rewarder = Callable[[State, State, EnvParams], Float32[Array, "P"]]  # of the states before and after a step


class Turn(Pytree):
    """An episode at a step, with what its schedulers were shown."""

    played: State | Playing  # in rounds, in turns
    observation: Observation
    menu: Menu

    @property
    def state(self) -> State:
        """The state of the episode, without its job list: see `MenuEnv.with_jobs`."""
        return state_of(self.played)

    def _repr_html_(self) -> str | None:
        """In a notebook: the state, drawn."""
        return self.state._repr_html_()


class MenuEpisodes(Episodes):
    """Episodes, with what schedulers are shown at their starts: so the end of a step is all that is worked out anew."""

    opened: tuple[Observation, Menu, Seen] | None = None  # at `starts`, on a leading axis; None: as one begins

    def replace(self, **changes: Any) -> "MenuEpisodes":
        """A copy with other values in the named fields. What was shown of other starts is forgotten."""
        return super().replace(**({"opened": None} | changes))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MenuEnv:
    """`reset` and `step` are pure, and jit and vmap; `params` are the default ones.

    `P` schedulers, `A` options of each: placements, one forward per scheduler, and last to wait. One step is one
    decision round of all schedulers, or with `in_turns` one turn, which on GPUs is faster where many play. Rewards come
    when an interval ends. When an episode ends the next one begins at once: the step's observation and state are then
    those of its start, reward and flags those of the end. Without `may_wait` the mask has waiting only if nothing else
    is legal. With `final`, `info["final"]` is what schedulers are shown at the step's own end.
    """

    config: EnvConfig
    params: Episodes
    queue: Discipline = SHOWN
    in_turns: bool = False
    may_wait: bool = True
    final: bool = False
    rewarder: Rewarder | None = None  # in place of the environment's own
    draw: Callable[[int], State] | None = None  # start states of other jobs, by a seed
    observation: str = ROWS  # one of `OBSERVATIONS`

    def __post_init__(self) -> None:
        if self.rewarder is not None:  # a mistake in it is told now, not in the first step
            starts, params = self.params.starts, self.params.env
            jax.eval_shape(jax.vmap(lambda start: self.reward_of(start, start, params)), starts)

    def __repr__(self) -> str:
        p, n, _ = self.params.env.cluster.shape
        gpus, (episodes, jobs) = total_gpus(self.params.env.cluster), self.params.starts.jobs.arrival.shape
        return (
            f"MenuEnv: {p} scheduler(s) of up to {n} servers, {gpus} GPUs in all; {self.num_actions} actions of each; "
            f"{episodes} episodes of {jobs} jobs, a step is a {'turn' if self.in_turns else 'round'}"
        )

    @property
    def inner(self) -> ClusterEnv:
        """The environment whose actions these numbers stand for."""
        return ClusterEnv(self.config, self.queue, self.in_turns)

    @property
    def num_actions(self) -> int:
        """Options of a scheduler, to wait included."""
        return self.action_space().n

    @property
    def action_names(self) -> list[str]:
        """What each option is."""
        schedulers = self.params.env.cluster.shape[0]
        return action_names(self.num_actions - schedulers - 1, schedulers)

    def fresh(self, seed: int) -> Episodes:
        """`params` with as many episodes of other jobs, drawn with `seed`: for the next updates, in the same program.

        Turns of other episodes do not go on with them, for job lists are in `params`: their next step truncates them,
        and begins others. `reset` does so at once.

        Raises:
            UserError: the jobs were given, or those of the seed need larger tables.
        """
        if self.draw is None:
            raise UserError("fresh: the jobs of this environment are given; it needs a workload by name, or a function")
        return self.open(MenuEpisodes(env=self.params.env, starts=self.draw(seed)))

    def open(self, params: Episodes) -> Episodes:
        """The same episodes with what is shown at their starts, where `final` needs it."""
        if not self.final:
            return params

        def show(start: State) -> tuple[Observation, Menu, Seen]:
            turn = self._shown(params, start)
            return turn.observation, turn.menu, self.seen(turn, params)

        return MenuEpisodes(env=params.env, starts=params.starts, opened=jax.jit(jax.vmap(show))(params.starts))

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
        start = draw_start(key, params.starts)
        turn = self._shown(params, at_boundary(start) if self.in_turns else start)
        return self.seen(turn, params), turn

    def reset_env(self, key: PRNGKeyArray, params: Episodes | None = None) -> tuple[Seen, Turn]:
        """`reset`, as gymnax calls it."""
        return self.reset(key, params)

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
            `info` also has the `intervals` and the seconds (`elapsed_s`) that passed in the step: what comes later is
            discounted by them.
        """
        params = self.params if params is None else params
        after, reward, terminated, truncated, info = self._play(turn, action, params)
        played = start_if(key, after, terminated | truncated, params.starts)
        if self.final:
            own = self._shown(params, after)
            info["final"] = self.seen(own, params)
            seen, turn = self._begin_if(key, terminated | truncated, own, info["final"], played, params)
        else:
            turn = self._shown(params, played)
            seen = self.seen(turn, params)
        return seen, turn, reward, terminated, truncated, info

    @checked
    def step_env(
        self, turn: Turn, action: Int32[Array, "P"], params: Episodes | None = None
    ) -> tuple[Seen, Turn, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        """`step` that begins no next episode, so it needs no key: of an end it shows what was reached there."""
        params = self.params if params is None else params
        after, reward, terminated, truncated, info = self._play(turn, action, params)
        turn = self._shown(params, after)
        return self.seen(turn, params), turn, reward, terminated, truncated, info

    @checked
    def restart_if(
        self, key: PRNGKeyArray, turn: Turn, ended: Bool[Array, ""], params: Episodes | None = None
    ) -> tuple[Seen, Turn]:
        """The turn, or the start of a random episode if the one before has ended."""
        params = self.params if params is None else params
        turn = self._shown(params, start_if(key, turn.played, ended, params.starts))
        return self.seen(turn, params), turn

    @checked
    def seen(self, turn: Turn, params: Episodes | None = None) -> Seen:
        """What the schedulers are shown in a turn."""
        params = self.params if params is None else params
        state = with_jobs(turn.state, params.starts)
        return self._show(Offered(params.env, state, turn.observation, turn.menu))

    @checked
    def with_jobs(self, turn: Turn, params: Episodes | None = None) -> State:
        """The state of an episode, or of many, with its job list, which turns have the number of."""
        return copy_jobs(turn.state, (self.params if params is None else params).starts)

    @checked
    def world_state(self, turn: Turn) -> Float32[Array, "PF"]:
        """All that all schedulers see, in a row: for critics that know more than actors."""
        return show_menu(turn.observation, turn.menu)["features"].reshape(-1)

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

        def choose(key: PRNGKeyArray, offered: Offered, weights: PyTree) -> Choice:
            who = f"policy {name!r}"
            option = call(who, act, key, self._show(offered), weights)
            check_shape(who, option, offered.menu.mask.shape[:1], "an option for each scheduler", whole=True)
            return _choice(offered.observation, offered.menu, option)

        return menu_policy(name, choose, weights, self.queue, int(np.max(self.params.env.max_forwards)))

    @checked
    def action_space(self, params: Episodes | None = None) -> Discrete:
        """One option for each scheduler. `sample(key, seen["mask"])` draws legal ones."""
        mask = self._example(params)["mask"]
        return Discrete(mask.shape[1], mask.shape[:1])

    @checked
    def observation_space(self, params: Episodes | None = None) -> Named:
        """`features` (float32[P, F]), `options` (float32[P, A, O]), both without limits, and `mask` (bool[P, A]).

        UserError for graphs, which are no arrays but several: see `features` for their columns.
        """
        if self.observation == GRAPH:
            raise UserError("observation_space: a graph is none; `env.features` has its columns, `reset` its shapes")
        seen = self._example(params)
        boxes = {name: Box(-float("inf"), float("inf"), seen[name].shape) for name in ("features", "options")}
        return Named(boxes | {"mask": Discrete(2, seen["mask"].shape, jnp.bool_)})

    @property
    def features(self) -> dict[str, tuple[Feature, ...]]:
        """The columns of `options`, and of a graph's `nodes` and `edges`: name, unit and range of each."""
        graph = {"nodes": NODE, "edges": EDGE} if self.observation == GRAPH else {}
        return graph | {"options": OPTION}

    def _show(self, offered: Offered) -> Seen:
        if self.observation == GRAPH:
            return show_graph(*offered, self.may_wait)
        return show_menu(offered.observation, offered.menu, self.may_wait)

    def _example(self, params: Episodes | None) -> Seen:
        return jax.eval_shape(lambda: self.reset(jax.random.key(0), params)[0])

    def _play(
        self, turn: Turn, action: Int32[Array, "P"], params: Episodes
    ) -> tuple[State | Playing, Float32[Array, "P"], Bool[Array, ""], Bool[Array, ""], Info]:
        if jnp.shape(action) != (agents := turn.menu.mask.shape[:1]):
            raise UserError(f"action: has shape {jnp.shape(action)}, should be {agents}: an option of each scheduler")
        choice = _choice(turn.observation, turn.menu, action)
        act = to_action(with_jobs(turn.state, params.starts), turn.observation, turn.menu, choice)
        played = _note_illegal(turn.played, (~choice.act & ~self._waits(turn, action)).sum(dtype=jnp.int32))
        after, reward, terminated, truncated, info = self.inner.step_env(played, act, params)
        intervals = jnp.maximum(info["boundary"] - turn.state.clock, 0)
        info |= {"intervals": intervals, "elapsed_s": intervals * params.env.interval_s}
        if self.rewarder is not None:
            before, then = copy_jobs(turn.state, params.starts), copy_jobs(state_of(after), params.starts)
            foreign = is_foreign(turn.played, params.starts)
            reward = jnp.where(foreign, 0.0, self.reward_of(before, then, params.env))
        return after, reward, terminated, truncated, info

    def _waits(self, turn: Turn, option: Int32[Array, "P"]) -> Bool[Array, "P"]:
        """Who picks to wait, and may."""
        acts = jnp.concatenate([turn.menu.mask, turn.observation.forward_mask], -1)
        return (option == acts.shape[-1]) & (self.may_wait | ~acts.any(-1))

    def reward_of(self, before: State, after: State, params: EnvParams) -> Float32[Array, "P"]:
        """What the user's function says of a step. UserError if it fails, or gives no reward for each scheduler."""
        assert self.rewarder is not None
        reward = call(who := f"reward {name_of(self.rewarder)}", self.rewarder, before, after, params)
        check_shape(who, reward, before.queue.shape[:1], "a reward for each scheduler")
        return reward

    def _shown(self, params: Episodes, played: State | Playing) -> Turn:
        state = with_jobs(to_decide(played), params.starts)
        observation = observe(self.queue, params.env, state)
        menu = build_menu(params.env, state, observation, queue=self.queue)
        return Turn(played=played, observation=observation, menu=menu)

    def _begin_if(
        self,
        key: PRNGKeyArray,
        ended: Bool[Array, ""],
        own: Turn,
        final: Seen,
        played: State | Playing,
        params: Episodes,
    ) -> tuple[Seen, Turn]:
        """What is `played` on, shown: the step's `own` end, or where the episode has ended the next one's start."""
        opened = params.opened if isinstance(params, MenuEpisodes) else None
        if opened is None:
            turn = self._shown(params, played)
            return self.seen(turn, params), turn
        here = (own.observation, own.menu, final)
        observation, menu, seen = put_if(ended, draw_number(key, params.starts), opened, here)
        return seen, Turn(played=played, observation=observation, menu=menu)


def _choice(observation: Observation, menu: Menu, option: Int32[Array, "P"]) -> Choice:
    """What the numbers of options say; one that is not legal says to wait, as the last one does."""
    acts = jnp.concatenate([menu.mask, observation.forward_mask], -1)
    within = jnp.clip(option, 0, acts.shape[-1] - 1)
    legal = (option == within) & jnp.take_along_axis(acts, within[:, None], -1)[:, 0]
    return Choice(act=legal, option=within)


def _note_illegal(played: State | Playing, more: Int32[Array, ""]) -> State | Playing:
    state = state_of(played)
    state = state.replace(illegal=state.illegal + more)
    return played.replace(state=state) if isinstance(played, Playing) else state


def check_rows(env: MenuEnv, who: str) -> None:
    """UserError if an environment shows graphs, which `who` does not take."""
    if env.observation != ROWS:
        raise UserError(f"{who}: takes an environment made with observation={ROWS!r}, this one has {env.observation!r}")
