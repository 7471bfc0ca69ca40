"""Carries out preemptions by the Eviction API, which keeps PodDisruptionBudgets and pods' grace periods.

Every pod is asked about with a dry run first, so that nothing is begun that the server refuses. What is refused midway
all the same is tried again until all of its gang has ended.
"""

import logging
import time
from collections.abc import Callable

from jaxsched.kube.cluster.api import ApiClient, Response, Unreachable, pod_path
from jaxsched.kube.cluster.metrics import Metrics
from jaxsched.kube.cluster.report import Reporter
from jaxsched.kube.plan.preemption import Preemption
from jaxsched.kube.read.objects import Pod

log = logging.getLogger("jaxsched.kube")

WAIT_S = 10.0  # after a refusal, unless the server says how long
REMEMBERED_S = 600.0  # how long nodes that become free are kept for a gang


class Evictor:
    """Evicts whole gangs; remembers for which gangs room is being made."""

    def __init__(
        self,
        api: ApiClient,
        reporter: Reporter,
        metrics: Metrics,
        may_evict: Callable[[], bool] = lambda: True,
        dry_run: bool = False,
    ) -> None:
        self.api, self.reporter, self.metrics, self.may_evict, self.dry_run = api, reporter, metrics, may_evict, dry_run
        self._not_before = 0.0
        self._rest: tuple[Preemption, tuple[Pod, ...]] | None = None  # one that has begun, and pods that must end yet
        self._for: dict[str, float] = {}  # gang -> when its last victim was evicted (monotonic)

    def making_room(self) -> frozenset[str]:
        """Keys of gangs for which others were evicted of late."""
        now = time.monotonic()
        self._for = {key: at for key, at in self._for.items() if now - at < REMEMBERED_S}
        return frozenset(self._for)

    def unfinished(self) -> bool:
        """Some pods of a gang that has begun to end do not end yet."""
        return self._rest is not None

    def carry_out(self, preemption: Preemption | None) -> None:
        """Evict all victims, or none if the server refuses one; but first end what has begun."""
        if time.monotonic() < self._not_before or not self.may_evict():
            return
        if self._rest is not None:
            return self._end(*self._rest)
        if preemption is None:
            return
        self.metrics.preemption_attempts.inc()
        if all(self._evict(pod, preemption, dry_run=True) for pod in preemption.pods) and not self.dry_run:
            self._end(preemption, preemption.pods)

    def _end(self, preemption: Preemption, pods: tuple[Pod, ...]) -> None:
        """Evict these, in order, until one is refused."""
        for number, pod in enumerate(pods):
            if not self.may_evict() or not self._evict(pod, preemption, dry_run=False):
                self._rest = (preemption, pods[number:]) if pods[number:] != preemption.pods else None
                return
        self._rest = None
        self.metrics.preemption_victims.observe(len(preemption.pods))
        names = ", ".join(victim.key for victim in preemption.victims)
        log.info("gang %s: evicted %s, %d pods", preemption.gang.key, names, len(preemption.pods))

    def _evict(self, pod: Pod, preemption: Preemption, dry_run: bool) -> bool:
        """One pod; whether it ends, or has ended."""
        options: dict = {"preconditions": {"uid": pod.uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
        body["metadata"] = {"name": pod.name, "namespace": pod.namespace}
        try:
            response = self.api.request("POST", pod_path(pod.namespace, pod.name, "eviction"), body=body)
        except Unreachable as error:  # the next plan sees what became of it
            response = Response(503, {"message": str(error)})
        if response.ok and not dry_run:
            self._for[preemption.gang.key] = time.monotonic()
            why = f"for gang {preemption.gang.key}, priority {preemption.gang.priority}"
            self.reporter.report_event(pod, "Preempted", f"evicted {why}", "Warning")
        if response.ok or response.status in (404, 409):  # gone, or another pod has its name
            return True
        self._not_before = time.monotonic() + max(response.retry_after_s, WAIT_S)
        log.warning("gang %s: pod %s is not evicted: %s", preemption.gang.key, pod.key, response.message)
        return False
