"""A plan that raises because of one gang: the gang is named, set aside, and the others are planned without it.

No object's content should make a plan raise; this is for the one that nobody thought of.
"""

import contextlib
from collections.abc import Iterator, Sequence

from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import Refusal


class GangFault(Exception):
    """Planning raised while it looked at these gangs, one or a whole class; what it raised is the cause."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__(", ".join(keys))
        self.keys = keys

    def refusal(self) -> Refusal:
        """What the gang is told."""
        return Refusal("PlanFailed", f"planning it raised {type(self.__cause__).__name__}; it is tried again later")


@contextlib.contextmanager
def blame(gangs: Sequence[Gang]) -> Iterator[None]:
    """Whatever is raised inside is the fault of these gangs."""
    try:
        yield
    except GangFault:
        raise
    except Exception as error:
        raise GangFault(tuple(gang.key for gang in gangs)) from error
