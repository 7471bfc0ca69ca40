"""Which gangs to evict so that one with a higher priority starts: whole gangs, as few and as low as one pass finds."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jaxsched.kube.planning.budgets import Budget, Spending
from jaxsched.kube.planning.free_capacity import FreeCapacity
from jaxsched.kube.planning.gangs import Gang, gang_key
from jaxsched.kube.planning.ledger import Ledger
from jaxsched.kube.planning.objects import DONE_PHASES, Pod
from jaxsched.kube.planning.placement import Placement


@dataclasses.dataclass(frozen=True)
class Preemption:
    """Gangs that are to be evicted whole, and for which."""

    gang: Gang
    victims: tuple[Gang, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All pods to evict, gang by gang."""
        return tuple(pod for victim in self.victims for pod in victim.bound)


def ending_pods(pods: Iterable[Pod]) -> list[Pod]:
    """Pods that hold their resources only until they have ended."""
    return [pod for pod in pods if pod.node and pod.terminating and pod.phase not in DONE_PHASES]


class Room:
    """What there would be without pods that end, and then without victims. Built anew for every gang."""

    def __init__(
        self, capacity: FreeCapacity, gang: Gang, pods: Sequence[Pod], placements: Sequence[Placement]
    ) -> None:
        self.capacity, self.gang = capacity, gang
        self._eligible = capacity.eligible(gang.workers[0])
        self._wide = capacity.largest_partition(gang) < len(gang.workers)
        self.ledger: Ledger = capacity.ledger_of(pods)
        for one in (one for placement in placements for one in placement.assignments):
            self.ledger.reserve(one.pod, self.ledger.row[one.node], one.groups)
        self.ending = ending_pods(pods)
        for pod in self.ending:
            self._release(pod)

    def fits(self) -> bool:
        """The gang's workers would fit; a gang that no partition holds may span them."""
        usable = self.capacity.usable_of(self.gang, self.ledger, self._eligible)
        workers, need = usable // max(self.gang.gpus_per_worker, 1), len(self.gang.workers)
        return self.capacity.by_partition(workers).max(initial=0) >= need or (self._wide and workers.sum() >= need)

    def evict(self, gang: Gang) -> None:
        """Without this gang, too."""
        for pod in gang.bound:
            self._release(pod)

    def spare(self, gang: Gang) -> None:
        """With it again."""
        for pod in gang.bound:
            if pod.node in self.ledger.row:
                self.ledger.reserve(pod, self.ledger.row[pod.node], pod.hints.gpu_groups)

    def holds(self, gang: Gang) -> bool:
        """The gang is on a node that the other one could use."""
        rows = (self.ledger.row.get(pod.node, -1) for pod in gang.bound)
        return any(row >= 0 and self._eligible[row] for row in rows)

    def _release(self, pod: Pod) -> None:
        if pod.uid in self.ledger.reserved:
            self.ledger.release(pod)


def choose_victims(room: Room, running: Iterable[Gang], budgets: Sequence[Budget]) -> tuple[Gang, ...]:
    """Gangs without which the room is enough; none if that cannot be, or a budget forbids it.

    Gangs of which some pods end already come first, then the lowest priority, then those that began last. Then each is
    spared, the most valuable first, if the others are enough.
    """
    gang, broken = room.gang, {gang_key(pod) for pod in room.ending}
    lower = [one for one in running if one.bound and one.priority < gang.priority and one.preemptable]
    worth: Callable[[Gang], tuple] = lambda one: (one.key not in broken, one.priority, -_began_s(one), one.key)
    spending, chosen = Spending(budgets), []
    for victim in sorted(lower, key=worth):
        if room.holds(victim) and spending.take(victim.bound):
            room.evict(victim)
            chosen.append(victim)
            if room.fits():
                break
    else:
        return ()
    for victim in reversed(chosen[:-1]):
        room.spare(victim)
        if room.fits():
            chosen.remove(victim)
        else:
            room.evict(victim)
    return tuple(chosen)


def _began_s(gang: Gang) -> float:
    return min(pod.started_s or pod.created_s for pod in gang.bound)
