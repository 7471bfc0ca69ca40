"""Which gangs to evict so that one with a higher priority starts: whole gangs, as few and as low as one pass finds."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jaxsched.kube.capacity.free_capacity import FreeCapacity, Placement
from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.read.gangs import Gang, gang_key
from jaxsched.kube.read.objects import DONE_PHASES, Pod
from jaxsched.kube.read.snapshot import Budget

MOST_ORDERS = 8  # in which victims are tried, where budgets forbid some


class RemainingBudgets:
    """What budgets have left while victims are chosen."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._left = {(one.namespace, one.name): one.allowed for one in budgets}
        self._budgets = tuple(budgets)

    def spend(self, pods: Iterable[Pod]) -> bool:
        """Evict all of the pods, or none where a budget forbids one: nothing is begun that cannot be ended.

        A pod with several budgets cannot be evicted: the API server refuses it.
        """
        spent: dict[tuple[str, str], int] = {}
        for pod in pods:
            about = [(one.namespace, one.name) for one in self._budgets if one.concerns(pod)]
            if len(about) > 1:
                return False
            for key in about:
                spent[key] = spent.get(key, 0) + 1
        if any(count > self._left[key] for key, count in spent.items()):
            return False
        for key, count in spent.items():
            self._left[key] -= count
        return True


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


class VacatedCapacity:
    """What there would be without pods that end, and then without victims. Built anew for every gang."""

    def __init__(
        self, capacity: FreeCapacity, gang: Gang, pods: Sequence[Pod], placements: Sequence[Placement]
    ) -> None:
        self.capacity, self.gang = capacity, gang
        self._eligible = capacity.eligible(gang.workers[0])
        self._wide = capacity.largest_partition(gang) < len(gang.workers)
        self.ledger: Ledger = capacity.ledger_of(pods)
        for one in (one for placement in placements for one in placement.assignments):
            self.ledger.take(one.pod, self.ledger.row[one.node], one.groups)
        self.ending = ending_pods(pods)
        for pod in self.ending:
            self._release(pod)

    def without(self, gangs: Iterable[Gang]) -> "VacatedCapacity":
        """The room without these gangs, too."""
        other = copy.copy(self)
        other.ledger = self.ledger.copy()
        for gang in gangs:
            other.evict(gang)
        return other

    def fits(self) -> bool:
        """The gang's workers would fit; a gang that no partition holds may span them."""
        usable = self.capacity.usable_of(self.gang, self.ledger, self._eligible)
        workers, need = usable // max(self.gang.gpus_per_worker, 1), len(self.gang.workers)
        return self.capacity.by_partition(workers).max(initial=0) >= need or (self._wide and workers.sum() >= need)

    def evict(self, gang: Gang) -> None:
        """Without this gang, too."""
        for pod in gang.bound:
            self._release(pod)

    def holds(self, gang: Gang) -> bool:
        """The gang is on a node that the other one could use."""
        rows = (self.ledger.row.get(pod.node, -1) for pod in gang.bound)
        return any(row >= 0 and self._eligible[row] for row in rows)

    def _release(self, pod: Pod) -> None:
        if pod.uid in self.ledger.reserved:
            self.ledger.release(pod)


def choose_victims(room: VacatedCapacity, running: Iterable[Gang], budgets: Sequence[Budget]) -> tuple[Gang, ...]:
    """Choose gangs without which the room is enough; none if that cannot be, or budgets forbid all that is found.

    Gangs of which some pods end already come first, then the lowest priority, then those that began last. Then each is
    spared, the most valuable first, if the others are enough. If a budget was spent in vain on gangs that came first,
    it is tried again with those first that it forbade.
    """
    gang, broken = room.gang, {gang_key(pod) for pod in room.ending}
    worth: Callable[[Gang], tuple] = lambda one: (one.key not in broken, one.priority, -_began_s(one), one.key)
    lower = [one for one in running if one.bound and one.priority < gang.priority and one.preemptable]
    order = sorted((one for one in lower if room.holds(one) and RemainingBudgets(budgets).spend(one.bound)), key=worth)
    if not room.without(order).fits():  # whatever the budgets say of them together
        return ()
    for _ in range(MOST_ORDERS):
        chosen, forbidden = _evict_in_order(room.without(()), order, RemainingBudgets(budgets))
        if room.without(chosen).fits():
            return _without_needless(room, sorted(chosen, key=worth))
        order = forbidden + [one for one in order if one not in forbidden]
    return ()


def _evict_in_order(
    room: VacatedCapacity, order: Sequence[Gang], remaining: RemainingBudgets
) -> tuple[list[Gang], list[Gang]]:
    """Evict until the room is enough or all were tried. Returns those that are evicted, and that a budget forbade."""
    chosen: list[Gang] = []
    forbidden: list[Gang] = []
    for victim in order:
        if not remaining.spend(victim.bound):
            forbidden.append(victim)
            continue
        room.evict(victim)
        chosen.append(victim)
        if room.fits():
            break
    return chosen, forbidden


def _without_needless(room: VacatedCapacity, chosen: Sequence[Gang]) -> tuple[Gang, ...]:
    """Of these gangs the ones that must end, after sparing each, from the last on, that need not."""
    needed = tuple(chosen)
    for victim in reversed(chosen):
        others = tuple(one for one in needed if one is not victim)
        if room.without(others).fits():
            needed = others
    return needed


def _began_s(gang: Gang) -> float:
    return min(pod.started_s or pod.created_s for pod in gang.bound)
