"""Informers: a store and a reflector for each resource that plans rest on, and a snapshot of them all."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.capacity.free_capacity import Placement
from jaxsched.kube.cluster.api import NODES, PODS, ApiClient
from jaxsched.kube.cluster.outage import Outage
from jaxsched.kube.cluster.permissions import POD_GROUPS, check_permissions, file_granting, required_permissions
from jaxsched.kube.cluster.reflector import Reflector, Store
from jaxsched.kube.read.objects import Node, Pod, read_node, read_pod
from jaxsched.kube.read.owners import OWNER_KINDS, read_owner
from jaxsched.kube.read.pod_groups import read_pod_group
from jaxsched.kube.read.snapshot import Snapshot, read_budget
from jaxsched.kube.read.volumes import read_volume, read_volume_claim

LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
IDLE_S = 60.0  # a watch that says nothing for longer is opened anew
PATIENCE_S = 120.0


class Informers:
    """Reads from `start` until `stop`.

    `on_change()` and `on_event(kind, what, raw)` hear of every change, `on_restart(resource, cause)` of every watch
    that ends. `budgets`: PodDisruptionBudgets, too.
    """

    def __init__(
        self,
        api: ApiClient,
        on_change: Callable[[], None],
        on_event: Callable[[str, str, Mapping[str, Any]], None],
        on_restart: Callable[[str, str], None],
        idle_s: float,
        budgets: bool = False,
    ) -> None:
        self.clock, outage = api.clock, Outage(api.host)
        self.stores: dict[str, Store] = {}
        self.reflectors: dict[str, Reflector] = {}

        def reflect(name: str, kind: str, read: Callable, *paths: str, optional: bool = False) -> None:
            """`kind`: what a recording calls it, "" for what is not recorded."""
            heard = (lambda what, raw: on_event(kind, what, raw)) if kind else (lambda what, raw: None)
            store = Store(read, on_change, heard)
            query = LIVE_PODS if name == "pods" else {}
            self.stores[name] = store
            self.reflectors[name] = Reflector(
                api, paths, store, query, optional, lambda cause: on_restart(name, cause), idle_s, outage
            )

        reflect("nodes", "nodes", read_node, NODES)
        reflect("pods", "pods", read_pod, PODS)
        reflect("persistentvolumeclaims", "persistentvolumeclaims", read_volume_claim, CLAIMS)
        reflect("persistentvolumes", "persistentvolumes", read_volume, VOLUMES)
        if budgets:
            reflect("poddisruptionbudgets", "", read_budget, BUDGETS)
        for group, versions in POD_GROUPS.items():
            paths = (f"/apis/{group}/{version}/podgroups" for version in versions)
            reflect(group, "podgroups", read_pod_group, *paths, optional=True)
        for owner in OWNER_KINDS:
            paths = (f"/apis/{owner.group}/{version}/{owner.resource}" for version in owner.versions)
            reflect(owner.name, "", functools.partial(read_owner, kind=owner), *paths, optional=True)

    def start(self, on_wait: Callable[[], None]) -> None:
        """Return when all is read; `on_wait` is called meanwhile. UserError if something may not be read."""
        for reflector in self.reflectors.values():
            reflector.start()
        while not all(reflector.listed.wait(0.1) for reflector in self.reflectors.values()):
            self.check_denied()
            on_wait()

    def stop(self) -> None:
        """End all watches."""
        for reflector in self.reflectors.values():
            reflector.stop()

    def check_denied(self) -> None:
        """UserError if a permission is missing."""
        for reflector in self.reflectors.values():
            if reflector.denied:
                group = reflector.path.split("/")[2] if reflector.path.startswith("/apis/") else ""
                file = file_granting(group, reflector.path.rpartition("/")[2])
                raise UserError(f"RBAC: {reflector.denied}; {file} grants what is needed")

    def is_live(self) -> bool:
        """All that is here is current."""
        return all(reflector.live.is_set() for reflector in self.reflectors.values())

    def relist(self, *resources: str) -> None:
        """List these again before anything else is planned."""
        for name in resources:
            self.reflectors[name].relist()

    def pods(self) -> tuple[Pod, ...]:
        """All pods that are not done."""
        return self.stores["pods"].items()

    def snapshot(self, pods: tuple[Pod, ...]) -> Snapshot:
        """The cluster now, with `pods` for its pods."""
        optional = [*POD_GROUPS, *(owner.name for owner in OWNER_KINDS)]
        return Snapshot(
            now_s=self.clock.now_s(),
            nodes=self.stores["nodes"].items(),
            pods=pods,
            groups=tuple(group for name in POD_GROUPS for group in self.stores[name].items()),
            owners=tuple(one for kind in OWNER_KINDS for one in self.stores[kind.name].items()),
            served=frozenset(name for name in optional if not self.reflectors[name].missing),
            volume_claims=dict(self.stores["persistentvolumeclaims"].items()),
            volumes=dict(self.stores["persistentvolumes"].items()),
            budgets=self.stores["poddisruptionbudgets"].items() if "poddisruptionbudgets" in self.stores else (),
        )

    def allows(self, placement: Placement) -> bool:
        """Nothing that the placement rests on has changed since the snapshot."""
        usable = {node.name for node in self.stores["nodes"].items() if isinstance(node, Node) and node.usable}
        for one in placement.assignments:
            pod = self.stores["pods"].get(one.pod.uid)
            if one.node not in usable or pod is None or pod.node or pod.terminating:
                return False
        return True


def live_snapshot(api: ApiClient) -> Snapshot:
    """The cluster now. UserError if something may not be read, or is not within `PATIENCE_S`."""
    check_permissions(api, required_permissions(writes=False, lease=False), "", "")
    informers = Informers(api, lambda: None, lambda kind, what, raw: None, lambda name, cause: None, IDLE_S)
    until_s = time.monotonic() + PATIENCE_S

    def wait() -> None:
        if time.monotonic() > until_s:
            raise UserError(f"the cluster could not be read within {PATIENCE_S:.0f} s")

    try:
        informers.start(wait)
        return informers.snapshot(informers.pods())
    finally:
        informers.stop()
