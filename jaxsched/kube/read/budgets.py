"""PodDisruptionBudgets: how many of which pods may be evicted now, by the status that a controller keeps."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jaxsched.kube.read.objects import Pod, mapping
from jaxsched.kube.read.selectors import selector_holds


@dataclasses.dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget; `allowed` is 0 while its status is older than the object, as for the API server."""

    namespace: str
    name: str
    selector: Mapping[str, Any] | None  # raw; None matches nothing, an empty one everything
    allowed: int

    def is_about(self, pod: Pod) -> bool:
        """The pod counts against it."""
        return (
            pod.namespace == self.namespace and self.selector is not None and selector_holds(self.selector, pod.labels)
        )


def read_budget(raw: Mapping[str, Any]) -> Budget:
    """A budget from its JSON; what cannot be read allows nothing."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    generation, seen, allowed = (
        meta.get("generation"),
        status.get("observedGeneration"),
        status.get("disruptionsAllowed"),
    )
    current = isinstance(seen, int) and isinstance(generation, int) and seen >= generation
    return Budget(
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        selector=mapping(spec, "selector") if isinstance(spec.get("selector"), Mapping) else None,
        allowed=max(allowed, 0) if current and isinstance(allowed, int) else 0,
    )


class Spending:
    """What budgets have left while victims are chosen."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._left = {(one.namespace, one.name): one.allowed for one in budgets}
        self._budgets = tuple(budgets)

    def take(self, pods: Iterable[Pod]) -> bool:
        """Evict all of the pods, or none where a budget forbids one: nothing is begun that cannot be ended.

        A pod with several budgets cannot be evicted: the API server refuses it.
        """
        spent: dict[tuple[str, str], int] = {}
        for pod in pods:
            about = [(one.namespace, one.name) for one in self._budgets if one.is_about(pod)]
            if len(about) > 1:
                return False
            for key in about:
                spent[key] = spent.get(key, 0) + 1
        if any(count > self._left[key] for key, count in spent.items()):
            return False
        for key, count in spent.items():
            self._left[key] -= count
        return True
