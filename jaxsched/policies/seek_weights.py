"""Numbers of the index by which schedulers compare partitions for a job (docs/semantics.md, section 7, "Seeking")."""

import dataclasses
import math

from jaxsched.errors import UserError
from jaxsched.semantics import SEEK_INPUTS

LARGEST = 1e4  # so that indices stay far within the grid on which they are compared


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


BY_HAND = SeekWeights((-1.0, -0.3, 0.2, 1.0))
