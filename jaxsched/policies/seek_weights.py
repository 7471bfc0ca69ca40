"""Numbers of the index by which schedulers compare partitions for a job (docs/semantics.md, section 7, "Seeking")."""

import dataclasses
import math

from jaxsched.errors import UserError
from jaxsched.semantics import SEEK_INPUTS

LARGEST = 1e4  # so that indices stay far within the grid on which they are compared
WAIT, FREE, QUEUED, HOME, DOUBT = 0, 1, 3, 4, 5  # of the inputs


@dataclasses.dataclass(frozen=True)
class SeekWeights:
    """The numbers, one per input as the page has them. UserError if they are too many or too few, or out of range."""

    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check count and range."""
        if len(self.numbers) != SEEK_INPUTS:
            raise UserError(f"seek: {len(self.numbers)} numbers, should be {SEEK_INPUTS}")
        if not all(math.isfinite(number) and abs(number) <= LARGEST for number in self.numbers):
            raise UserError(f"seek: should be numbers from -{LARGEST:g} to {LARGEST:g}")


def only(of: dict[int, float]) -> SeekWeights:
    """Numbers by input; those of all others are 0."""
    return SeekWeights(tuple(of.get(i, 0.0) for i in range(SEEK_INPUTS)))


BY_HAND = only({WAIT: -1.0, FREE: -0.5, QUEUED: -0.3, HOME: 0.2, DOUBT: 1.0})
