"""The protocol of a planning policy: what decides about a live cluster, round by round."""

import dataclasses
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int32

from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.encode import StateArrays


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


class DecisionRounds(Protocol):
    """Rounds of decisions about one state of the cluster; what a round has placed, the next one knows."""

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """Make one round of decisions.

        Args:
            free: GPUs that may be used, by the plan's own ledger.
            seed: Of what is random in this round.

        Raises:
            PolicyError: The decision cannot be trusted.
        """
        ...


class PlanningPolicy(Protocol):
    """Event loop, JAX program, or one of these with a fallback: all decide about the same arrays."""

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> DecisionRounds:
        """Read a state of the cluster.

        Args:
            fleet: The GPU nodes.
            arrays: Gangs that run and gangs that wait, as `build_arrays` makes them.
            merged: The GPU groups of a node count as one, in `arrays` too.

        Raises:
            PolicyError: The policy cannot be asked about it.
        """
        ...
