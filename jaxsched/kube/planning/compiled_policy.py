"""The compiled policy: fixed array sizes, jitted once, with a hand-written policy behind it when it fails.

A policy fails when it takes too long, raises, or is shown or produces something that is not a number.
"""

import concurrent.futures
import dataclasses
import time
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
from jaxsched.kube.planning.encode import StateArrays, all_finite, blank_state, build_arrays, to_state
from jaxsched.kube.planning.fleet import Fleet
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.policies.base import Policy
from jaxsched.policies.registry import parse

FALLBACK = "pack:fifo+backfill+forward"
TIMEOUT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Decision:
    """One round of all schedulers, on the host."""

    placed: Bool[np.ndarray, "P"]  # the placement was legal
    moved: bool  # some gang was placed or forwarded: another round may follow
    row: Int32[np.ndarray, "P"]  # the job table's row that was placed
    workers: Int32[np.ndarray, "P N K"]
    ps: Int32[np.ndarray, "P N K"]


class PolicyError(Exception):
    """The policy cannot be trusted with this decision; the message is a metric's label: nan, timeout or error."""


class CompiledPolicy:
    """`begin` encodes a moment, `decide` makes one round of decisions. Compiled for one set of sizes at a time."""

    def __init__(self, policy: str | Policy, settings: PlanSettings, timeout_s: float = TIMEOUT_S) -> None:
        self.settings = settings
        self.main, self.fallback = parse(policy), parse(FALLBACK)
        self.timeout_s = timeout_s
        self.compilations = 0
        self.compile_s = 0.0
        self._compiled_for: tuple[Shape, int] | None = None
        self._thread = _thread()

    def prepare(self, fleet: Fleet) -> None:
        """Compile for the fleet's sizes unless that is done; takes seconds. Runs both policies once."""
        largest = max([self.settings.largest_worker, *(sum(groups) for groups in fleet.groups)])
        if self._compiled_for == (fleet.shape, largest):
            return
        start = time.monotonic()
        config = EnvConfig(
            running_slots=self.settings.running_slots,
            queue_slots=self.settings.queue_slots,
            tenants=self.settings.tenants,
            largest_worker=largest,
            rounds=2**30,  # the clock never advances here
        )
        self._params = make_params(fleet.split, interval_s=self.settings.interval_s)
        self._blank = blank_state(config, self._params, self.settings)
        self._encode = jax.jit(lambda params, blank, arrays: to_state(params, blank, arrays))
        self._rules = {True: _round(self.fallback), False: _round(self.main)}
        arrays, _ = build_arrays(fleet, self.settings, [[]] * fleet.shape.partitions, [], {}, False, 0.0)
        state = self.begin(fleet, arrays, merged=False)
        for rule in self._rules.values():
            jax.block_until_ready(rule(jax.random.key(0), self._params, state, state.free))
        self._compiled_for = fleet.shape, largest
        self.compilations += 1
        self.compile_s = time.monotonic() - start

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> State:
        """The state before the first round; remembers the view (split or merged) for the rounds that follow."""
        self._params = self._params.replace(cluster=fleet.merged if merged else fleet.split)
        return self._encode(self._params, self._blank, arrays)

    def decide(
        self, state: State, free: Int32[np.ndarray, "P N K"], number: int, fallback: bool
    ) -> tuple[State, Decision]:
        """One round with `free` GPUs. PolicyError if the policy (not the fallback) cannot be trusted."""
        key = jax.random.key(number)
        if fallback:
            return self._run(True, key, state, free)
        future = self._thread.submit(self._run, False, key, state, free)
        try:
            return future.result(self.timeout_s)
        except concurrent.futures.TimeoutError:
            self._thread.shutdown(wait=False)
            self._thread = _thread()  # the old one is stuck; its result no longer matters
            raise PolicyError("timeout") from None
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError("error") from error

    def _run(
        self, fallback: bool, key: PRNGKeyArray, state: State, free: Int32[np.ndarray, "P N K"]
    ) -> tuple[State, Decision]:
        fault, (after, action, placed, row, sound) = self._rules[fallback](key, self._params, state, free)
        if not fallback and (fault.get() or not bool(sound)):
            raise PolicyError("nan")
        moved = bool((~after.waited & ~state.waited).any())
        return after, Decision(
            np.asarray(placed), moved, np.asarray(row), np.asarray(action.workers), np.asarray(action.ps)
        )


def _thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="policy")


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
