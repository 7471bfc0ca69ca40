"""The policy that decides, and the hand-written one that stands in while it is compiled and where it fails.

Rules are played by the event loop, in Python: ready at once. All else is a JAX program, compiled beside the
planning. A policy fails when it takes too long, raises, or is shown or produces something that is not a number.
"""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Int32

from jaxsched.errors import UserError
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.base import Decision, DecisionRounds, PlanningPolicy, PolicyError
from jaxsched.kube.policy.encode import StateArrays
from jaxsched.kube.policy.event_loop import EventLoopPolicy
from jaxsched.kube.policy.jax_program import JaxProgram, Sizes, sizes_of
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse

log = logging.getLogger("jaxsched.kube")

FALLBACK = "pack:fifo+backfill+forward"
TIMEOUT_S = 30.0
T = TypeVar("T")


class GuardedPolicy:
    """A policy by its name or itself, and its fallback.

    Args:
        beside: compile in a thread, and let the fallback decide until then; else `prepare` waits.
        on_ready: called, in that thread, when something has been compiled.
    """

    def __init__(
        self,
        policy: str | Policy,
        settings: PlanSettings,
        timeout_s: float = TIMEOUT_S,
        *,
        beside: bool = False,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.timeout_s, self.beside, self.on_ready = settings, timeout_s, beside, on_ready
        self.main, self.fallback = parse(policy), parse(FALLBACK)
        if self.main.searches:
            raise UserError(f"policy {self.main.name!r}: searches in simulations only; take its rule, or a checkpoint")
        self.compilations, self.compile_s = 0, 0.0
        self._stand_in, self._rule = EventLoopPolicy(self.fallback, settings), EventLoopPolicy(self.main, settings)
        self._is_rule: bool | None = None  # not known before the first fleet
        self._program: JaxProgram | None = None
        self._compiling: tuple[Sizes, threading.Thread] | None = None  # for which sizes
        self._thread = _make_thread()

    def prepare(self, fleet: Fleet) -> None:
        """See that the policy is, or is being, compiled for the fleet's sizes."""
        if self._is_rule is None:
            self._is_rule = self._rule.covers(fleet)
        if self._is_rule or self.is_ready(fleet):
            return
        sizes = sizes_of(fleet, self.settings)
        if not self.beside:
            self._compile(fleet)
        elif self._compiling is None or (self._compiling[0] != sizes and not self.is_compiling()):
            self._compiling = sizes, threading.Thread(target=self._compile_beside, args=(fleet,), daemon=True)
            self._compiling[1].start()

    def is_compiling(self) -> bool:
        """Whether a thread of its own compiles now."""
        return self._compiling is not None and self._compiling[1].is_alive()

    def is_ready(self, fleet: Fleet) -> bool:
        """Whether the policy itself decides, not its stand-in."""
        program = self._program
        return bool(self._is_rule) or (program is not None and program.sizes == sizes_of(fleet, self.settings))

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool, fallback: bool = False) -> DecisionRounds:
        """As `PlanningPolicy.begin`; `fallback`: it decides, and is trusted."""
        if fallback:
            return self._stand_in.begin(fleet, arrays, merged)
        if not _is_finite(arrays):
            raise PolicyError("nan")
        policy: PlanningPolicy | None = self._rule if self._is_rule else self._program
        assert policy is not None
        return _GuardedRounds(self, self.guard(lambda: policy.begin(fleet, arrays, merged)))

    def guard(self, call: Callable[[], T]) -> T:
        """The result of a call of the policy. PolicyError if it takes longer than the time-out, or raises."""
        future = self._thread.submit(call)
        try:
            return future.result(self.timeout_s)
        except concurrent.futures.TimeoutError:
            self._thread.shutdown(wait=False)
            self._thread = _make_thread()  # the old one is stuck; its result no longer matters
            raise PolicyError("timeout") from None
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError("error") from error

    def _compile_beside(self, fleet: Fleet) -> None:
        try:
            self._compile(fleet)
        except Exception:  # the stand-in goes on; other sizes are tried again
            log.exception("compiling %s failed; %s decides", self.main.name, self.fallback.name)
        self.on_ready()

    def _compile(self, fleet: Fleet) -> None:
        start = time.monotonic()
        self._program = JaxProgram(self.main, self.settings, fleet)
        self.compile_s, self.compilations = time.monotonic() - start, self.compilations + 1


class _GuardedRounds:
    """Rounds of a policy that may raise or hang."""

    def __init__(self, policy: GuardedPolicy, rounds: DecisionRounds) -> None:
        self._policy, self._rounds = policy, rounds

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`."""
        return self._policy.guard(lambda: self._rounds.decide(free, seed))


def _make_thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="policy")


def _is_finite(arrays: StateArrays) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if np.issubdtype(leaf.dtype, np.floating)]
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves)
