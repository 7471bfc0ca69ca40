"""Of policies, in the oracle: how real numbers are compared, pressure, filling (section 7 of `docs/semantics.md`)."""

import math

from jaxsched.semantics import GRID, GRID_LIMIT, GRID_OFFSET
from tests.oracle.cluster import Job
from tests.oracle.state import State


def q(x: float) -> int:
    """A real number as the integer that policies compare."""
    return int(min(max(math.floor(GRID * x + GRID_OFFSET), 0), GRID_LIMIT))


# ------------------------------------------------------------------------------------------------------------ pressure


class Pressure:
    """Total use of a partition's resources by the running jobs."""

    def __init__(self, state: State, p: int):
        """Sum it up once for a decision."""
        self.hw, self.p, self.total = state.hw, p, state.total_use()

    def of(self, channel: str, index: int) -> float:
        """Total use of one resource of the partition."""
        return self.total.get((channel, self.p, index), 0.0)

    def group(self, a: int) -> float:
        """CPU and PCIe of the group plus QPI and NIC of its server."""
        s = a // self.hw.K
        return self.of("cpu", a) + self.of("pcie", a) + self.of("qpi", s) + self.of("nic", s)

    def server(self, s: int) -> float:
        """NIC plus QPI plus the sum of CPU and PCIe over the groups."""
        groups = sum(self.of("cpu", a) + self.of("pcie", a) for a in self.hw.groups_of(s))
        return self.of("nic", s) + self.of("qpi", s) + groups


# ------------------------------------------------------------------------------------------------------------- filling


def fill(groups, cap: list[int], need: int) -> dict[int, int]:
    """Take `min(cap_a, still needed)` workers from each group in the order given."""
    w: dict[int, int] = {}
    for a in groups:
        take = min(cap[a], need)
        if take > 0:
            w[a] = take
            need -= take
    if need:
        raise AssertionError("a feasible job was not placed")
    return w


def ps_of(job: Job, w: dict[int, int]) -> dict[int, int]:
    """PS follow the workers."""
    u, before = {}, 0
    for a in sorted(w):
        after = before + w[a]
        u[a] = after * job.U // job.W - before * job.U // job.W
        before = after
    return {a: x for a, x in u.items() if x > 0}
