"""The policy that decides, and the hand-written one that stands in while it is compiled and where it fails.

Rules are played by the compiled event loop, in Python: ready at once. All else is a JAX program, compiled beside the
planning. A policy fails when it takes too long, raises, or is shown or produces something that is not a number.
"""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32

from jaxsched.errors import UserError
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.decision import Decision, PolicyError
from jaxsched.kube.policy.encode import StateArrays
from jaxsched.kube.policy.jax_program import JaxProgram, Sizes, sizes_of
from jaxsched.kube.policy.rule_policy import RulePolicy
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse

log = logging.getLogger("jaxsched.kube")

FALLBACK = "pack:fifo+backfill+forward"
TIMEOUT_S = 30.0


class CompiledPolicy:
    """`begin` encodes a moment, `decide` makes one round of decisions.

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
        self._stand_in, self._rule = RulePolicy(self.fallback, settings), RulePolicy(self.main, settings)
        self._is_rule: bool | None = None  # not known before the first fleet
        self._program: JaxProgram | None = None
        self._compiling: tuple[Sizes, threading.Thread] | None = None  # for which sizes
        self._thread = _thread()

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

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool, fallback: bool) -> Any:
        """What `decide` takes. PolicyError if the policy (not the fallback) raises."""
        if fallback:
            return self._stand_in.begin(fleet, arrays, merged)
        return self._trusted(lambda: self._policy().begin(fleet, arrays, merged), arrays)

    def decide(self, moment: Any, free: Int32[np.ndarray, "P N K"], number: int, fallback: bool) -> Decision:
        """One round with `free` GPUs. PolicyError if the policy (not the fallback) cannot be trusted."""
        if fallback:
            return self._stand_in.decide(moment, free)
        return self._trusted(lambda: self._run(moment, free, number))

    def _policy(self) -> RulePolicy | JaxProgram:
        if self._is_rule:
            return self._rule
        assert self._program is not None
        return self._program

    def _run(self, moment: Any, free: Int32[np.ndarray, "P N K"], number: int) -> Decision:
        policy = self._policy()
        return policy.decide(moment, free) if isinstance(policy, RulePolicy) else policy.decide(moment, free, number)

    def _trusted(self, call: Callable[[], Any], arrays: StateArrays | None = None) -> Any:
        """The result of a call of the policy, within the time-out."""
        if arrays is not None and not _finite(arrays):
            raise PolicyError("nan")
        future = self._thread.submit(call)
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


def _thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="policy")


def _finite(arrays: StateArrays) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if np.issubdtype(leaf.dtype, np.floating)]
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves)
