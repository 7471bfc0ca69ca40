"""The running scheduler: reflectors in, plans, Bindings out. Everything it knows it can read again from the API."""

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.capacity.fleet import find_missing, unknown_products
from jaxsched.kube.cluster.api import ApiClient, check_permissions, required_permissions
from jaxsched.kube.cluster.binder import Binder, Evictor, GangBinder
from jaxsched.kube.cluster.informers import IDLE_S, Informers
from jaxsched.kube.cluster.leader_election import LeaderElector
from jaxsched.kube.cluster.monitoring import Metrics
from jaxsched.kube.cluster.record import Recorder
from jaxsched.kube.cluster.report import Reporter
from jaxsched.kube.plan.outcome import Shadow, failed_attempts, group_states, pending_pods, volcano_phases
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.gangs import gang_key
from jaxsched.kube.read.objects import mapping
from jaxsched.kube.read.snapshot import Snapshot

log = logging.getLogger("jaxsched.kube")

STUCK_S = 300.0  # without a turn of the loop for this long the process is not alive
FAILED_S = 5.0  # of rest after a turn that failed
# reasons that time or other pods end
STILL_WAITING = ("GangIncomplete", "PodGroupMissing", "Gated", "PlanFull", "MakingRoom")


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
    metrics_auth: bool = False
    idle_s: float = IDLE_S
    resync_s: float = 10.0


class Scheduler:
    """One process. `start`, then `run` until `stop`; or `step` by hand in tests."""

    def __init__(self, api: ApiClient, planner: Planner, options: Options, metrics: Metrics) -> None:
        self.api, self.planner, self.options, self.metrics = api, planner, options, metrics
        self.settings = planner.settings
        self.ready, self.stopped = threading.Event(), threading.Event()
        self.dirty = threading.Event()
        self.recorder = Recorder(options.record, api.clock.now_s) if options.record is not None else None
        self.elector: LeaderElector | None = None
        if options.leader_election and options.mode != "shadow":
            self.elector = LeaderElector(
                api, options.namespace, options.lease, options.identity, on_change=self.dirty.set
            )
        preempts = self.settings.preemption and options.mode != "shadow"
        self.informers = Informers(api, self.dirty.set, self._on_event, self._on_restart, options.idle_s, preempts)
        self.reporter = Reporter(api, self.settings.scheduler_name, log.error, options.identity)
        dry_run = options.mode == "dry-run"
        binder = Binder(api, dry_run=dry_run, may_bind=self._may_bind)
        self.evictor = Evictor(api, self.reporter, metrics, self._may_bind, dry_run) if preempts else None
        self.gang_binder = GangBinder(api, binder, self.informers, self.reporter, metrics, options.bind_threads)
        self.shadow = Shadow(planner)
        self._led, self._compilations = self.elector is None, 0
        planner.policy.on_ready = self.dirty.set
        self._turn = time.monotonic()

    # Life

    def start(self) -> None:
        """Check permissions and read the cluster. UserError if the cluster cannot be used."""
        writes = self.options.mode != "shadow"
        leases, evicts = self.elector is not None, self.evictor is not None
        required = required_permissions(writes, leases, self.options.metrics_auth, evicts)
        check_permissions(self.api, required, self.options.namespace, self.options.lease)
        self.informers.start(on_wait=self._alive)
        if missing := find_missing(self.informers.stores["nodes"].items(), self.settings):
            log.warning("no node has %s: is it misspelt?", ", ".join(missing))
        if words := unknown_products(self.informers.stores["nodes"].items(), self.settings):
            log.warning(words)
        self.reporter.start()
        self.planner.plan(dataclasses.replace(self.snapshot(), pods=()))  # compiles, or begins to
        self._alive()
        self.ready.set()
        if self.elector is not None:
            self.elector.start()

    def run(self) -> None:
        """Turn until `stop` is called or the Lease is lost. UserError if a permission is taken away."""
        while not self.stopped.is_set():
            began = time.monotonic()
            pending = self._try_step()
            took = time.monotonic() - began
            self.stopped.wait(max(0.05, min(took, 2.0)))  # events that come together are planned together
            self.dirty.wait(1.0 if pending else self.options.resync_s)
            if self.elector is not None and self.elector.lost.is_set():
                log.error("the Lease is lost: exiting")
                break

    def stop(self) -> None:
        """End after the present turn; give up the Lease."""
        self.stopped.set()
        self.dirty.set()

    def close(self) -> None:
        """Stop threads and write what is buffered."""
        self.gang_binder.close()
        if self.elector is not None:
            self.elector.stop()
        self.informers.stop()
        self.reporter.stop()
        if self.recorder is not None:
            self.recorder.close()

    def livez(self) -> str:
        """What /livez says: "" or why the process should be restarted."""
        stuck = time.monotonic() - self._turn
        return f"no turn for {stuck:.0f} s" if stuck > STUCK_S else ""

    def readyz(self) -> str:
        """What /readyz says: ready once the cluster is read; the fallback decides while a policy is compiled."""
        return "" if self.ready.is_set() else "reading the cluster"

    # One turn

    def _try_step(self) -> bool:
        """`step`, through faults of our own: whatever the cluster holds, the loop goes on."""
        try:
            return self.step()
        except UserError:
            raise
        except Exception:
            log.exception("a turn failed")
            self.metrics.failed_turns.inc()
            self.stopped.wait(FAILED_S)
            return True

    def step(self) -> bool:
        """Plan and bind once; whether some gang waits for time to pass or for more of its pods."""
        self.dirty.clear()
        self._alive()
        self.informers.check_denied()
        if not self._leading() or not self.informers.is_live():
            return True
        snapshot = self.snapshot()
        if self.options.mode == "shadow":
            for entry in self.shadow.step(snapshot):
                print(json.dumps(entry), flush=True)
            return False
        began = time.perf_counter()
        plan = self.planner.plan(snapshot)
        plan_s = time.perf_counter() - began
        self.metrics.plan_s.observe(plan_s)
        if self.recorder is not None:
            self.recorder.plan(snapshot.now_s, plan)
        self._observe(snapshot, plan, plan_s)
        self.gang_binder.bind([one for one in plan.placements if self.informers.allows(one)], plan_s)
        if self.evictor is not None:
            self.evictor.carry_out(plan.preemption)
        waiting = self.evictor is not None and self.evictor.unfinished()
        waiting |= any(reason.reason in STILL_WAITING for reason in plan.reasons.values())
        return waiting or self.gang_binder.some_back_off()

    def snapshot(self) -> Snapshot:
        """The cluster as it will be when everything assumed has come true; gangs that back off are left out."""
        backing_off = self.gang_binder.backing_off()
        pods = self.gang_binder.assumed.apply(self.informers.pods())
        shot = self.informers.snapshot(tuple(pod for pod in pods if pod.node or gang_key(pod) not in backing_off))
        making_room = self.evictor.making_room() if self.evictor is not None else frozenset()
        return dataclasses.replace(shot, making_room=making_room)

    def _alive(self) -> None:
        self._turn = time.monotonic()

    def _leading(self) -> bool:
        if self.elector is None:
            return True
        if self.elector.denied:
            raise UserError(f"leader election: {self.elector.denied}")
        leads = self.elector.leading.is_set()
        self.metrics.leader.set(leads)
        if leads and not self._led:
            log.info("%s leads now", self.options.identity)
            self.informers.relist("nodes", "pods")  # what the leader before bound last may not be here yet
        self._led = leads
        return leads

    def _may_bind(self) -> bool:
        return self.elector is None or self.elector.holds_lease()

    def _observe(self, snapshot: Snapshot, plan: Plan, plan_s: float) -> None:
        """Metrics, conditions and events of a plan."""
        counts: dict[str, int] = {}
        for key, reason in plan.reasons.items():
            counts[reason.reason] = counts.get(reason.reason, 0) + 1
            if self.options.mode == "bind":
                for pod in plan.pending[key].pending:
                    self.reporter.report_unschedulable(pod, reason.reason, reason.message)
        if self.options.mode == "bind":
            for group, why in group_states(snapshot, plan, self.settings.scheduler_name):
                self.reporter.report_group(group, why)
            for group, phase in volcano_phases(snapshot, self.settings.scheduler_name):
                self.reporter.report_phase(group, phase)
        self.metrics.pending.clear()
        for name, count in counts.items():
            self.metrics.pending.labels(name).set(count)
        self._observe_attempts(plan, plan_s)
        self.metrics.partial.set(sum(bool(gang.bound and gang.together) for gang in plan.pending.values()))
        self.metrics.refused_nodes.set(len(plan.refused_nodes))
        self._observe_policy(plan)
        for fault in plan.faults:
            log.error("gang %s made planning raise; it is set aside", fault, exc_info=fault.__cause__)
            self.metrics.set_aside.inc()
            self.gang_binder.set_aside(fault.keys[0])
        for name, store in self.informers.stores.items():
            self.metrics.unreadable.labels(name).set(store.unreadable)

    def _observe_attempts(self, plan: Plan, plan_s: float) -> None:
        """What was tried and not placed, and what waits in which queue; what is placed, the binder counts."""
        policy, name = self.planner.policy, self.settings.scheduler_name
        by = (policy.main if plan.policy_ready else policy.fallback).name
        for gang, result in failed_attempts(plan):
            self.metrics.attempts.labels(result, by).inc()
            self.metrics.count_attempts(len(gang.pending), result, name, plan_s)
        backing_off = self.gang_binder.backing_off()
        for queue, count in pending_pods(self.informers.pods(), plan, backing_off, name).items():
            self.metrics.pending_pods.labels(queue).set(count)

    def _observe_policy(self, plan: Plan) -> None:
        """Whether the policy is compiled, how it failed, how long it took."""
        policy = self.planner.policy
        if policy.compilations != self._compilations:
            self._compilations = policy.compilations
            log.info("policy %s compiled in %.1f s; it decides from now on", policy.main.name, policy.compile_s)
        self.metrics.compilations.set(policy.compilations)
        self.metrics.policy_ready.set(plan.policy_ready)
        for cause in plan.policy_failures:
            log.error("the policy failed (%s): %s takes over", cause, policy.fallback.name)
            self.metrics.fallbacks.labels(cause).inc()
        if plan.placements:
            self.metrics.decision_s.observe(plan.decision_s / len(plan.placements))

    def _on_event(self, kind: str, what: str, raw: Mapping[str, Any]) -> None:
        if self.recorder is not None:
            self.recorder.change(kind, what, raw)
        if kind == "pods" and what == "DELETED" and not self.stopped.is_set():
            self.gang_binder.check_rejection(str(mapping(raw, "metadata").get("uid", "")))

    def _on_restart(self, resource: str, cause: str) -> None:
        self.metrics.restarts.labels(resource, cause).inc()
