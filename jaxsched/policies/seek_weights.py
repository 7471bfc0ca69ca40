"""Numbers of the index by which schedulers compare partitions for a job (docs/semantics.md, section 7, "Seeking")."""

import dataclasses
import math

from jaxsched.errors import UserError
from jaxsched.semantics import SEEK_HIDDEN, SEEK_INPUTS

COUNT = SEEK_INPUTS + SEEK_HIDDEN * (SEEK_INPUTS + 2)
LARGEST = 1e4  # so that indices stay far within the grid on which they are compared
WAIT, FREE, HOME = 0, 2, 6  # of the inputs: the logarithm of the wait, free GPUs, the scheduler's own partition


@dataclasses.dataclass(frozen=True)
class SeekWeights:
    """The numbers, as the page has them: linear ones, then of each hidden unit its inputs', its bias, its output.

    UserError if they are too many or too few, or one is out of range.
    """

    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check count and range."""
        if len(self.numbers) != COUNT:
            raise UserError(f"seek: {len(self.numbers)} numbers, should be {COUNT}")
        if not all(math.isfinite(number) and abs(number) <= LARGEST for number in self.numbers):
            raise UserError(f"seek: should be numbers from -{LARGEST:g} to {LARGEST:g}")


def linear(of: dict[int, float]) -> SeekWeights:
    """Numbers by input; those of all others are 0, and so are the hidden units."""
    return SeekWeights(tuple(of.get(i, 0.0) for i in range(COUNT)))


BY_HAND = linear({WAIT: -1.0, FREE: -0.5, HOME: 0.1})
