"""Factors of pairs of models that share a GPU, and what is known of them (sections 5 and 9 of `docs/semantics.md`)."""

import numpy as np
from numpy.typing import NDArray

Factors = NDArray[np.float64]  # [models, models]: of a job's model (row) and a co-runner's


def mean_factor(factors: Factors | None, model: int, others: list[int]) -> float:
    """`f` of section 5: of a job beside co-runners of these models; 1 without factors."""
    if factors is None:
        return 1.0
    return sum(float(factors[model, other]) for other in others) / len(others)


class Pairs:
    """The true factors, and what has been seen of them."""

    def __init__(self, factor: Factors, known: bool = False):
        """Nothing seen."""
        self.factor, self.known = np.asarray(factor, np.float64), known
        self.seen_s = np.zeros_like(self.factor)
        self.sum = np.zeros_like(self.factor)  # of observations, each times its seconds

    def note(self, model: int, others: list[int], seconds: float) -> None:
        """A job has run beside these for so long."""
        f = mean_factor(self.factor, model, others)
        for other in others:
            self.seen_s[model, other] += seconds / len(others)
            self.sum[model, other] += seconds / len(others) * f

    def believed(self, observe: bool) -> Factors | None:
        """The factors that a policy goes by; None are all 1."""
        if self.known:
            return self.factor
        return self.means() if observe else None

    def means(self) -> Factors:
        """Of the observations, 1 where there are none."""
        return np.divide(self.sum, self.seen_s, out=np.ones_like(self.sum), where=self.seen_s > 0)
