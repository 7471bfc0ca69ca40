"""The running scheduler: reflectors in, plans, Bindings out. Everything it knows it can read again from the API."""

import concurrent.futures
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube import binder as binding
from jaxsched.kube.api import NODES, PODS, Answer, Api, Unreachable, pod_path
from jaxsched.kube.binder import Binder, Outcome
from jaxsched.kube.cache import Assumed
from jaxsched.kube.claims import read_claim
from jaxsched.kube.election import Election
from jaxsched.kube.gangs import gang_key, read_pod_group
from jaxsched.kube.metrics import Metrics
from jaxsched.kube.objects import Node, Pod, read_node, read_pod
from jaxsched.kube.permissions import LEASE, POD_GROUPS, READS, WRITES, check_permissions
from jaxsched.kube.placement import Assignment, Placement
from jaxsched.kube.plan import Plan, Planner
from jaxsched.kube.record import Recorder
from jaxsched.kube.reflector import IDLE_S, Reflector, Store
from jaxsched.kube.report import Reporter
from jaxsched.kube.shadow import Shadow
from jaxsched.kube.snapshot import Snapshot

log = logging.getLogger("jaxsched.kube")

LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
CLAIMS = "/api/v1/persistentvolumeclaims"
BACKOFF_S = (1.0, 10.0)
DENIED_S = 300.0
STUCK_S = 300.0  # without a turn of the loop for this long the process is not alive
REJECTED_S = 120.0  # a pod that ends this soon after our Binding is looked at: did the kubelet reject it?
STILL_WAITING = ("GangIncomplete", "PodGroupMissing", "Gated")  # reasons that time or other pods end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to run; the defaults of the command line."""

    mode: str = "bind"  # bind, dry-run or shadow
    leader_election: bool = False
    namespace: str = "jaxsched"  # of the Lease
    lease: str = "jaxsched"
    identity: str = "jaxsched"
    bind_threads: int = 16
    record: Path | None = None
    idle_s: float = IDLE_S
    resync_s: float = 10.0


class Scheduler:
    """One process. `start`, then `run` until `stop`; or `step` by hand in tests."""

    def __init__(self, api: Api, planner: Planner, options: Options, metrics: Metrics) -> None:
        self.api, self.planner, self.options, self.metrics = api, planner, options, metrics
        self.settings = planner.settings
        self.ready, self.stopped = threading.Event(), threading.Event()
        self.dirty = threading.Event()
        self.recorder = Recorder(options.record) if options.record is not None else None
        self.election: Election | None = None
        if options.leader_election and options.mode != "shadow":
            self.election = Election(api, options.namespace, options.lease, options.identity, on_change=self.dirty.set)
        self.binder = Binder(api, dry_run=options.mode == "dry-run", may_bind=self._may_bind)
        self.reporter = Reporter(api, self.settings.scheduler_name, on_denied=log.error)
        self.assumed, self.shadow = Assumed(), Shadow(planner)
        self.stores = {
            "nodes": self._store("nodes", read_node),
            "pods": self._store("pods", read_pod),
            "persistentvolumeclaims": self._store("persistentvolumeclaims", read_claim),
        }
        self.reflectors = {
            "nodes": self._reflect(NODES, "nodes"),
            "pods": self._reflect(PODS, "pods", LIVE_PODS),
            "persistentvolumeclaims": self._reflect(CLAIMS, "persistentvolumeclaims"),
        }
        for group, version, resource in POD_GROUPS:
            self.stores[group] = self._store("podgroups", read_pod_group)
            self.reflectors[group] = self._reflect(f"/apis/{group}/{version}/{resource}", group, optional=True)
        self._pool = concurrent.futures.ThreadPoolExecutor(options.bind_threads, thread_name_prefix="bind")
        self._backoff: dict[str, tuple[float, float]] = {}  # gang -> not before (monotonic), the last delay
        self._bound_at: dict[str, tuple[float, Assignment]] = {}
        self._led = self.election is None
        self._turn = time.monotonic()

    # Life

    def start(self) -> None:
        """Check permissions, read the cluster, compile the policy. UserError if the cluster cannot be used."""
        check_permissions(self.api, self._needed(), self.options.namespace, self.options.lease)
        for reflector in self.reflectors.values():
            reflector.start()
        while not all(reflector.listed.wait(0.1) for reflector in self.reflectors.values()):
            self._check_denied()
            self._turn = time.monotonic()
        self.reporter.start()
        self.planner.plan(dataclasses.replace(self.snapshot(), pods=()))  # compiles
        self.metrics.compilations.set(self.planner.brain.compilations)
        log.info("policy %s compiled in %.1f s", self.planner.brain.main.name, self.planner.brain.compile_s)
        self._turn = time.monotonic()
        self.ready.set()
        if self.election is not None:
            self.election.start()

    def run(self) -> None:
        """Turn until `stop` is called or the Lease is lost. UserError if a permission is taken away."""
        while not self.stopped.is_set():
            began = time.monotonic()
            pending = self.step()
            took = time.monotonic() - began
            self.stopped.wait(max(0.05, min(took, 2.0)))  # events that come together are planned together
            self.dirty.wait(1.0 if pending else self.options.resync_s)
            if self.election is not None and self.election.lost.is_set():
                log.error("the Lease is lost: exiting")
                break

    def stop(self) -> None:
        """End after the present turn; give up the Lease."""
        self.stopped.set()
        self.dirty.set()

    def close(self) -> None:
        """Stop threads and write what is buffered."""
        self._pool.shutdown(wait=True)
        if self.election is not None:
            self.election.stop()
        for reflector in self.reflectors.values():
            reflector.stop()
        self.reporter.stop()
        if self.recorder is not None:
            self.recorder.close()

    def trouble_live(self) -> str:
        """What /livez says: "" or why the process should be restarted."""
        stuck = time.monotonic() - self._turn
        return f"no turn for {stuck:.0f} s" if stuck > STUCK_S else ""

    def trouble_ready(self) -> str:
        """What /readyz says: ready once the cluster is read and the policy compiled."""
        return "" if self.ready.is_set() else "reading the cluster or compiling the policy"

    # One turn

    def step(self) -> bool:
        """Plan and bind once; whether some gang waits for time to pass or for more of its pods."""
        self.dirty.clear()
        self._turn = time.monotonic()
        self._check_denied()
        if not self._leading() or not all(reflector.live.is_set() for reflector in self.reflectors.values()):
            return True
        snapshot = self.snapshot()
        if self.options.mode == "shadow":
            for entry in self.shadow.step(snapshot):
                print(json.dumps(entry), flush=True)
            return False
        began = time.perf_counter()
        plan = self.planner.plan(snapshot)
        self.metrics.plan_s.observe(time.perf_counter() - began)
        if self.recorder is not None:
            self.recorder.plan(snapshot.now_s, plan)
        self._observe(plan)
        self._bind([one for one in plan.placements if self._still_valid(one)])
        waiting = any(reason.reason in STILL_WAITING for reason in plan.reasons.values())
        return waiting or bool(self._backoff)

    def snapshot(self) -> Snapshot:
        """The cluster as it will be when everything assumed has come true; gangs that back off are left out."""
        now = time.monotonic()
        self._backoff = {key: entry for key, entry in self._backoff.items() if entry[0] + BACKOFF_S[1] * 6 > now}
        resting = {key for key, (until, _) in self._backoff.items() if until > now}
        pods = self.assumed.apply(self.stores["pods"].items())
        if resting:
            pods = tuple(pod for pod in pods if pod.node or gang_key(pod) not in resting)
        served = [group for group, _, _ in POD_GROUPS if not self.reflectors[group].missing]
        return Snapshot(
            now_s=time.time(),
            nodes=self.stores["nodes"].items(),
            pods=pods,
            groups=tuple(group for name, _, _ in POD_GROUPS for group in self.stores[name].items()),
            served=frozenset(served),
            claims=dict(self.stores["persistentvolumeclaims"].items()),
        )

    def _leading(self) -> bool:
        if self.election is None:
            return True
        if self.election.denied:
            raise UserError(f"leader election: {self.election.denied}")
        leads = self.election.leading.is_set()
        self.metrics.leader.set(leads)
        if leads and not self._led:
            log.info("%s leads now", self.options.identity)
            for name in ("nodes", "pods"):
                self.reflectors[name].relist()  # what the leader before bound last may not be here yet
        self._led = leads
        return leads

    def _may_bind(self) -> bool:
        return self.election is None or self.election.fresh()

    def _still_valid(self, placement: Placement) -> bool:
        """Nothing that the placement rests on has changed since the snapshot."""
        usable = {node.name for node in self.stores["nodes"].items() if isinstance(node, Node) and node.usable}
        for one in placement.assignments:
            pod = self.stores["pods"].get(one.pod.uid)
            if one.node not in usable or pod is None or pod.node or pod.terminating:
                return False
        return True

    def _bind(self, placements: list[Placement]) -> None:
        """Bind gangs in order, pods in parallel, and wait for all of them."""
        for placement in placements:
            self.assumed.assume(placement)
        futures = [
            [self._pool.submit(self._bind_one, one, placement) for one in placement.assignments]
            for placement in placements
        ]
        for placement, own in zip(placements, futures, strict=True):
            outcomes = [future.result() for future in own]
            whole = all(outcome.result == binding.BOUND for outcome in outcomes)
            self.metrics.attempts.labels("scheduled" if whole else "error", placement.by).inc()
            if whole:
                self.metrics.gang_s.observe(max(time.time() - placement.gang.submit_s, 0.0))
                nodes = sorted({one.node for one in placement.assignments})
                log.info(
                    "gang %s: %d pods on %s by %s, decision %s%s",
                    placement.gang.key,
                    len(outcomes),
                    ",".join(nodes),
                    placement.by,
                    placement.decision,
                    " (dry run)" if self.options.mode == "dry-run" else "",
                )
                self._backoff.pop(placement.gang.key, None)
            else:
                self._settle(placement, outcomes)

    def _bind_one(self, one: Assignment, placement: Placement) -> Outcome:
        began = time.perf_counter()
        outcome = self.binder.bind(one, placement.decision, placement.by)
        self.metrics.bind_s.observe(time.perf_counter() - began)
        self.metrics.binds.labels(outcome.result).inc()
        if outcome.result == binding.BOUND:
            self._bound_at[one.pod.uid] = time.monotonic(), one
            if self.options.mode == "bind":
                where = f"bound to {one.node}, gang {placement.gang.key}, decision {placement.decision}"
                self.reporter.event(one.pod, "Scheduled", where)
        return outcome

    def _settle(self, placement: Placement, outcomes: list[Outcome]) -> None:
        """Some Bindings failed: forget those, look again, and let the gang rest for a while."""
        worst = {outcome.result for outcome in outcomes}
        for one, outcome in zip(placement.assignments, outcomes, strict=True):
            if outcome.result != binding.BOUND:
                self.assumed.forget(one.pod.uid)
                log.warning("pod %s: %s: %s", one.pod.key, outcome.result, outcome.message)
            if outcome.result == binding.DENIED:
                self.reporter.event(one.pod, "FailedBinding", outcome.message, "Warning")
        if binding.UNKNOWN in worst or binding.ELSEWHERE in worst:
            self.reflectors["pods"].relist()
        _, last = self._backoff.get(placement.gang.key, (0.0, 0.0))
        delay = DENIED_S if binding.DENIED in worst else min(max(last * 2, BACKOFF_S[0]), BACKOFF_S[1])
        self._backoff[placement.gang.key] = time.monotonic() + delay, delay

    def _observe(self, plan: Plan) -> None:
        """Metrics, conditions and events of a plan."""
        counts: dict[str, int] = {}
        for key, reason in plan.reasons.items():
            counts[reason.reason] = counts.get(reason.reason, 0) + 1
            if self.options.mode == "bind":
                for pod in plan.pending[key].pending:
                    self.reporter.waits(pod, reason.reason, reason.message)
        self.metrics.pending.clear()
        for name, count in counts.items():
            self.metrics.pending.labels(name).set(count)
        self.metrics.partial.set(sum(bool(gang.bound) for gang in plan.pending.values()))
        self.metrics.refused_nodes.set(len(plan.refused_nodes))
        self.metrics.compilations.set(self.planner.brain.compilations)
        for cause in plan.policy_failures:
            log.error("the policy failed (%s): %s takes over", cause, self.planner.brain.spare.name)
            self.metrics.fallbacks.labels(cause).inc()
        if plan.placements:
            self.metrics.decision_s.observe(plan.decision_s / len(plan.placements))

    # Wiring

    def _needed(self) -> tuple[tuple[str, str, str], ...]:
        groups = tuple((verb, group, name) for group, _, name in POD_GROUPS for verb in ("list", "watch"))
        writes = () if self.options.mode == "shadow" else WRITES
        return READS + groups + writes + (LEASE if self.election is not None else ())

    def _store(self, kind: str, read: Any) -> Store:
        def on_event(what: str, raw: Mapping[str, Any]) -> None:
            if self.recorder is not None:
                self.recorder.change(kind, what, raw)
            if kind == "pods" and what == "DELETED":
                self._ended(str((raw.get("metadata") or {}).get("uid", "")))

        return Store(read, self.dirty.set, on_event)

    def _reflect(
        self, path: str, name: str, query: Mapping[str, str] | None = None, optional: bool = False
    ) -> Reflector:
        def count(cause: str) -> None:
            self.metrics.restarts.labels(name, cause).inc()

        return Reflector(self.api, path, self.stores[name], query, optional, count, self.options.idle_s)

    def _check_denied(self) -> None:
        for reflector in self.reflectors.values():
            if reflector.denied:
                raise UserError(f"RBAC: {reflector.denied}; deploy/base/rbac.yaml grants what is needed")

    def _ended(self, uid: str) -> None:
        """A pod is gone from the list; if we bound it a moment ago, ask whether its kubelet rejected it."""
        now = time.monotonic()
        for old in [key for key, (at, _) in list(self._bound_at.items()) if now - at > REJECTED_S]:
            self._bound_at.pop(old, None)
        entry = self._bound_at.pop(uid, None)
        if entry is not None and not self.stopped.is_set():
            self._pool.submit(self._was_rejected, entry[1].pod)

    def _was_rejected(self, pod: Pod) -> None:
        try:
            answer: Answer = self.api.request("GET", pod_path(pod.namespace, pod.name))
        except Unreachable:
            return
        status = answer.body.get("status") or {}
        same = (answer.body.get("metadata") or {}).get("uid") == pod.uid
        if same and status.get("phase") == "Failed" and str(status.get("reason", "")).startswith("OutOf"):
            log.error("pod %s: its kubelet rejected it: %s", pod.key, status.get("message", ""))
            self.metrics.rejected.inc()
            self.reflectors["pods"].relist()
            self.reflectors["nodes"].relist()
