"""Why a gang was not placed, in words: what would have to change for it to be placed.

Each reason was tried: with what it names out of the way, and nothing else, the gang's workers fit. No object's content
should make a plan raise. Where one does, its gang is named (`blame`), and the others are planned without it.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from jaxsched.kube.capacity.filters import UNUSABLE, rights_reason
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.ledger import Ledger
from jaxsched.kube.read.gangs import Gang, node_rights
from jaxsched.kube.read.objects import Pod, Refusal


class Explanations:
    """Reasons for gangs while nothing is reserved in between; `policy`: the name of the one that decided."""

    def __init__(self, capacity: FreeCapacity, policy: str) -> None:
        self.capacity, self.policy = capacity, policy
        self._of_alike: dict[tuple, Refusal] = {}

    def why_not(self, gang: Gang) -> Refusal:
        """Counts of nodes by reason, as the default scheduler words it."""
        pods = gang.together
        alike = (len(gang.workers), gang.gpus_per_worker, *sorted({(node_rights(pod), pod.requests) for pod in pods}))
        if alike not in self._of_alike:
            self._of_alike[alike] = self._why_not(gang)
        return self._of_alike[alike]

    def _why_not(self, gang: Gang) -> Refusal:
        capacity, need = self.capacity, len(gang.workers)
        if capacity.ledger.vector(gang.workers) is None:
            names = [name for name, _ in gang.workers[0].requests if name not in capacity.ledger.column]
            return Refusal("Insufficient", f"no node has {', '.join(names)}")
        workers = capacity.workers(gang)
        now = int(capacity.by_partition(workers).max(initial=0))
        if now >= need:
            return self._helper(gang, workers) or Refusal(
                "PolicyWaits", f"it would fit now, but policy {self.policy} waits or prefers others"
            )
        asked = _asked(gang)
        if workers.sum() >= need:
            text = f"{asked}, at most {now} fit one partition now; once it is late it goes to several"
            return Refusal("Insufficient", text)
        counts = f"of {len(capacity.fleet.nodes)} GPU nodes: {self._of_nodes(gang, workers)}"
        return self._out_of_the_way(gang, asked) or self._when_empty(
            gang, f"{asked}, {int(workers.sum())} fit now; {counts}"
        )

    def _out_of_the_way(self, gang: Gang, asked: str) -> Refusal | None:
        """What keeps room that is there now from the gang."""
        capacity, need = self.capacity, len(gang.workers)
        filtered, allowed = capacity.filtered_out(gang.workers[0]), capacity.allowed(gang.workers[0])
        if self._fit(gang, capacity.ledger, allowed) >= need:
            keepers = ", ".join(sorted({keeper.key for keeper in capacity.kept.values()}))
            return Refusal("NodesKept", f"{asked} would fit, but {len(capacity.kept)} nodes are kept for {keepers}")
        down = [row for row, reason in filtered.items() if reason in UNUSABLE and self._may_use(gang, row)]
        if self._fit(gang, capacity.ledger, allowed | np.isin(np.arange(len(allowed)), down)) >= need:
            counts = Counter(filtered[row] for row in down if row < len(capacity.fleet.nodes))
            return Refusal("NodesUnusable", f"{asked} would fit if it were not for {_words(counts)} nodes")
        return None

    def _may_use(self, gang: Gang, row: int) -> bool:
        return not rights_reason(gang.workers[0], self.capacity.nodes[row])

    def _when_empty(self, gang: Gang, now: str) -> Refusal:
        """Whether the gang fits once all pods have ended, on the nodes that it may use or on any."""
        capacity, need = self.capacity, len(gang.workers)
        allowed = capacity.allowed(gang.workers[0])
        empty = self._fit(gang, capacity.empty_ledger, allowed)
        if empty >= need:
            return Refusal("Insufficient", now)
        everywhere = self._fit(gang, capacity.empty_ledger, np.ones(len(allowed), bool))
        if everywhere < need:
            why = self._too_large(gang) or f"all GPU nodes together hold {everywhere} when empty"
            return Refusal("LargerThanCluster", f"{_asked(gang)}: {why}")
        text = f"{now}; those that it may use hold {empty} when empty, all hold {everywhere}"
        return Refusal("NoNodeAllowed" if not empty else "TooFewNodesAllowed", text)

    def _too_large(self, gang: Gang) -> str:
        """The resources of which no GPU node, when empty, has enough for a worker; "" if there is none."""
        ledger, gpu_nodes = self.capacity.ledger, len(self.capacity.fleet.nodes)
        need = ledger.vector(gang.workers)
        if not gpu_nodes or need is None:
            return ""
        most = ledger.total[:gpu_nodes].max(0)
        short = [name for name, column in ledger.column.items() if need[column] > most[column]]
        words = []
        for name in short:
            (asked, noun), (there, _) = (_amount(name, int(units[ledger.column[name]])) for units in (need, most))
            words.append(f"{asked} {noun} (the most is {there})")
        return f"no GPU node has {', '.join(words)}" if short else ""

    def _fit(self, gang: Gang, ledger: Ledger, nodes: Bool[np.ndarray, "A"]) -> int:
        return int((self.capacity.usable_of(gang, ledger, nodes) // max(gang.gpus_per_worker, 1)).sum())

    def _helper(self, gang: Gang, workers: Int[np.ndarray, "S K"]) -> Refusal | None:
        """A pod without GPUs that fits nowhere beside the workers, although those fit. `workers`: so many fit now."""
        capacity = self.capacity
        rows = np.repeat(np.arange(len(workers)), workers.sum(1))
        tried, problem = [], None
        for pod, row in zip(gang.workers, rows):
            capacity.ledger.take(pod, int(row))
            tried.append(pod)
        for pod in (*gang.helpers, *gang.ps):
            row = capacity.node_near(pod, ())
            if row < 0:
                problem = Refusal("Insufficient", f"its workers fit, but beside them {explain_no_node(capacity, pod)}")
                break
            capacity.ledger.take(pod, row)
            tried.append(pod)
        for pod in tried:
            capacity.ledger.release(pod)
        return problem

    def _of_nodes(self, gang: Gang, workers: Int[np.ndarray, "S K"]) -> str:
        """How many nodes each filter rejects, are kept, and are full. `workers`: so many fit now."""
        filtered, nodes = self.capacity.filtered_out(gang.workers[0]), range(len(workers))
        counts = Counter(filtered[row] for row in nodes if row in filtered)
        kept = sum(row in self.capacity.kept and row not in filtered for row in nodes)
        full = sum(not workers[row].any() for row in nodes if row not in filtered and row not in self.capacity.kept)
        counts |= Counter({"kept for others": kept, "without room for a pod of it": full})
        return _words(counts) or "too few with room"


def explain_no_node(capacity: FreeCapacity, pod: Pod) -> str:
    """A pod that no node takes, and how many nodes each filter rejects, are kept, and are full."""
    filtered = capacity.filtered_out(pod)
    counts = Counter(filtered.values())
    kept = sum(row not in filtered for row in capacity.kept)
    counts |= Counter({"kept for others": kept, "without room": len(capacity.nodes) - len(filtered) - kept})
    return f"pod {pod.key} fits none of {len(capacity.nodes)} nodes: {_words(counts)}"


def _asked(gang: Gang) -> str:
    """Such as `2 pods x 1 GPU`."""
    pods, gpus = len(gang.workers), gang.gpus_per_worker
    return f"{pods} pod{'s' * (pods != 1)} x {gpus} GPU{'s' * (gpus != 1)}"


def _amount(name: str, units: int) -> tuple[str, str]:
    """Units of the ledger as a number, and of what."""
    if name == "cpu":
        return f"{units / 1000:.12g}", "CPUs"
    if name == "memory" or "storage" in name or name.startswith("hugepages-"):
        return f"{units / 2**30:.12g}", f"Gi of {name}"
    return str(units), name


def _words(counts: Counter) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common() if count)


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
