"""A policy as a compiled JAX program of fixed array sizes: for checkpoints, and all that is no rule."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify
from jaxtyping import Bool, Int32, PRNGKeyArray

from jaxsched.cluster.padding import Shape
from jaxsched.env.actions import apply_actions
from jaxsched.env.clock import advance
from jaxsched.env.environment import SHOWN
from jaxsched.env.observation import observe
from jaxsched.env.state import PLACE, Action, EnvConfig, EnvParams, State, make_params
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.base import Decision, PolicyError
from jaxsched.kube.policy.encode import StateArrays, all_finite, blank_state, build_arrays, to_state
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy

Sizes = tuple[Shape, int]  # of the arrays, and the most GPUs of a worker


class JaxProgram:
    """Compiled when it is made, which takes from seconds to minutes."""

    def __init__(self, policy: Policy, settings: PlanSettings, fleet: Fleet) -> None:
        self.sizes = sizes_of(fleet, settings)
        config = EnvConfig(
            running_slots=settings.running_slots,
            queue_slots=settings.queue_slots,
            tenants=settings.tenants,
            largest_worker=self.sizes[1],
            largest_group=self.sizes[1],
            rounds=2**30,  # the clock never advances here
        )
        self._params = make_params(fleet.split, interval_s=settings.interval_s)
        self._blank = blank_state(config, self._params, settings)
        self._encode = jax.jit(lambda params, blank, arrays: to_state(params, blank, arrays))
        self._round = _round(policy)
        arrays, _ = build_arrays(fleet, settings, [[]] * fleet.shape.partitions, [], {}, False, 0.0)
        begun = self.begin(fleet, arrays, merged=False)
        jax.block_until_ready(self._round(jax.random.key(0), begun.params, begun.state, begun.state.free))

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> "JaxRounds":
        """As `PlanningPolicy.begin`."""
        params = self._params.replace(cluster=fleet.merged if merged else fleet.split)
        return JaxRounds(self._round, params, self._encode(params, self._blank, arrays))


class JaxRounds:
    """Rounds of one state, in the view (split or merged) that it was begun with."""

    def __init__(self, compiled_round: Callable, params: EnvParams, state: State) -> None:
        self._round, self.params, self.state = compiled_round, params, state

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`. PolicyError if the policy sees or gives something that is not a number."""
        before = self.state
        fault, (after, action, placed, row, sound) = self._round(jax.random.key(seed), self.params, before, free)
        if fault.get() or not bool(sound):
            raise PolicyError("nan")
        self.state = after
        moved = bool((~after.waited & ~before.waited).any())
        return Decision(np.asarray(placed), moved, np.asarray(row), np.asarray(action.workers), np.asarray(action.ps))


def sizes_of(fleet: Fleet, settings: PlanSettings) -> Sizes:
    """What a program is compiled for."""
    return fleet.shape, max([settings.largest_worker, *(sum(groups) for groups in fleet.groups)])


def _round(policy: Policy) -> Callable:
    """The compiled round of a policy: key, params, state, free -> NaN check, (state, action, placed, row, sound)."""

    def decide(
        key: PRNGKeyArray, params: EnvParams, state: State, free: Int32[Array, "P N K"]
    ) -> tuple[State, Action, Bool[Array, "P"], Int32[Array, "P"], Bool[Array, ""]]:
        state = state.replace(free=jnp.asarray(free))
        action = policy(key, state, params)
        after, started = apply_actions(params, state, action)
        after, _ = advance(params, after, started, jnp.int32(0))
        placed = (action.kind == PLACE) & ~state.waited & ~after.waited
        # Who has waited sees a forwarded gang at the next boundary; there is none here, so it looks again at once.
        received = (after.queue >= 0).sum(-1) > (state.queue >= 0).sum(-1)
        after = after.replace(waited=after.waited & ~received)
        partitions = jnp.arange(state.queue.shape[0])
        row = state.queue[partitions, jnp.clip(action.slot, 0, state.queue.shape[1] - 1)]
        return after, action, placed, row, all_finite(observe(SHOWN, params, state))

    return jax.jit(checkify.checkify(decide, errors=checkify.nan_checks))
