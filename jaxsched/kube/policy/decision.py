"""What a policy answers: one round of decisions, or that it cannot be trusted with it."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int32


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
