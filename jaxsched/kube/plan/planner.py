"""The pure core: `Planner.plan(snapshot) -> Plan`. No I/O, no clock, no state but the compiled policy.

Whole gangs only: every gang of a plan has a node for each of its pending pods, checked against the ledger of all
resources. Gangs are shown to the policy in classes: those of a class may use the same nodes to the same extent, so that
the policy, which knows GPUs but neither taints nor memory, is shown only what is legal.
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set

from jaxsched.cluster.build import Shape
from jaxsched.kube.capacity.filters import close_domains, count_nominations
from jaxsched.kube.capacity.fleet import Fleet, array_inputs, gpu_nodes, nodes_without_gpus, oversized_nodes, read_fleet
from jaxsched.kube.capacity.free_capacity import FreeCapacity, Placement
from jaxsched.kube.capacity.ledger import find_running_parts
from jaxsched.kube.plan.direct_placement import (
    explain_no_domain,
    fits_pod_by_pod,
    keep_nodes,
    list_domains,
    may_fit,
    place_each,
    place_each_in_domain,
    place_extra,
    place_rest,
    restrict_to_bound_pods,
    span,
    span_partitions,
)
from jaxsched.kube.plan.explain import Explanations, GangFault, blame
from jaxsched.kube.plan.preemption import Preemption, VacatedCapacity, choose_victims, ending_pods
from jaxsched.kube.plan.rounds import PolicyRounds, equivalence_classes
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.gangs import Gang, form_gangs
from jaxsched.kube.read.objects import Node, Refusal
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot, add_volume_affinity, find_unusable_volume

PATIENCE_S = 600.0  # a gang that waits longer than this is late: the fallback places it, GPUs are kept for it


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to bind, in this order, and why the other gangs are not there."""

    placements: tuple[Placement, ...]
    reasons: dict[str, Refusal]  # by gang key
    pending: dict[str, Gang]  # every gang that has unbound pods, by key
    policy_ready: bool  # False: the fallback decided, the policy is still compiled for these nodes
    policy_failures: tuple[str, ...]  # nan, timeout or error: the fallback took over
    faults: tuple[GangFault, ...]  # gangs that made planning raise, set aside
    decision_s: float  # in the policy, all rounds
    rounds: int
    nodes_without_gpus: int
    refused_nodes: dict[str, str]  # name -> what cannot be read
    preemption: Preemption | None = None  # to be carried out after the placements


class Planner:
    """Holds what survives from plan to plan: the compiled policy and the arrays of nodes that did not change."""

    def __init__(self, policy: GuardedPolicy, settings: PlanSettings, patience_s: float = PATIENCE_S) -> None:
        self.policy, self.settings, self.patience_s = policy, settings, patience_s
        self._inputs: tuple = ()
        self._fleet: Fleet | None = None
        self._shape: Shape | None = None

    def fleet(self, nodes: Sequence[Node]) -> Fleet:
        """The GPU nodes as arrays, in the shape of the last time if they still fit."""
        own = gpu_nodes(nodes, self.settings)
        inputs = tuple(sorted(array_inputs(node, self.settings) for node in own))
        if self._fleet is None or inputs != self._inputs:
            self._fleet, self._inputs = read_fleet(own, self.settings, self._shape), inputs
            self._shape = self._fleet.shape if own else self._shape
        current = {node.name: node for node in own}
        self._fleet = dataclasses.replace(self._fleet, nodes=tuple(current[node.name] for node in self._fleet.nodes))
        return self._fleet

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide which gangs start where; the same snapshot gives the same plan.

        Args:
            snapshot: All nodes and all pods, of all schedulers.

        Returns:
            Whole gangs with a node for each pod, and a reason for every other gang that waits. A gang that makes
            planning raise is set aside (`Plan.faults`).
        """
        fleet = self.fleet(snapshot.nodes)
        self.policy.prepare(fleet)
        aside: dict[str, GangFault] = {}
        alone: set[str] = set()
        while True:  # once more for each gang that raises: what it had reserved is forgotten
            try:
                return _PlanInProgress(self, snapshot, fleet, aside, alone, self.settings).run()
            except GangFault as fault:
                if len(fault.keys) > 1:
                    alone.update(fault.keys)
                else:
                    aside |= dict.fromkeys(fault.keys, fault)


class _PlanInProgress:
    """The state of one plan while it is made."""

    def __init__(
        self,
        planner: Planner,
        snapshot: Snapshot,
        fleet: Fleet,
        aside: Mapping[str, GangFault],
        alone: Set[str],
        settings: PlanSettings,
    ) -> None:
        self.settings, self.policy, self.patience_s = settings, planner.policy, planner.patience_s
        self.snapshot, self.aside, self.alone = snapshot, aside, alone
        pods = count_nominations(snapshot.pods, settings.scheduler_name)
        pods = close_domains(pods, snapshot.nodes, settings.scheduler_name)
        self.pods = add_volume_affinity(pods, snapshot.volume_claims, snapshot.volumes)
        plain = nodes_without_gpus(snapshot.nodes, settings)
        self.capacity = FreeCapacity(fleet, plain, self.pods, settings)
        running = find_running_parts(fleet, self.capacity.ledger, snapshot.pods, settings, snapshot.now_s)
        self.rounds = PolicyRounds(planner.policy, self.capacity, running, snapshot.now_s)
        self.placements: list[Placement] = []
        self.reasons: dict[str, Refusal] = {}
        self.settled: dict[str, Gang] = {}  # gangs in the topology domain that is theirs in this plan
        self.planner, self.fleet = planner, fleet
        self.running: list[Gang] = []
        self.preemption: Preemption | None = None
        self.promised: dict[str, Refusal] = {}  # gangs for which nodes become free

    def run(self) -> Plan:
        shot = self.snapshot
        gangs = form_gangs(self.pods, shot.groups, shot.served, self.settings, shot.now_s, shot.owners)
        self.running = [gang for gang in gangs if gang.bound]
        gangs = [gang for gang in gangs if gang.pending]
        ready = [gang for gang in gangs if self._may_start(gang)]
        for priority in sorted({gang.priority for gang in ready}, reverse=True):
            alike = [gang for gang in ready if gang.priority == priority]
            if self.rounds.exhausted:  # nothing may go before those that no decision was left for
                self.reasons |= {gang.key: self._next_plan() for gang in alike}
            else:
                self._place(alike)
        return self._plan(gangs)

    def _place(self, gangs: Sequence[Gang]) -> None:
        """Place gangs of one priority. What is kept for one of them is kept from those and from lower ones."""
        self._place_rests([gang for gang in gangs if gang.bound and gang.together])
        for gang in gangs:
            if not gang.bound and (gang.topology or not gang.uniform):
                with blame([gang]):
                    self._place_apart(gang)
        whole = [gang for gang in gangs if not gang.bound and gang.uniform and not gang.topology]
        promised = [gang for gang in whole if gang.key in self.snapshot.making_room]
        self._make_room(self._ask(promised), evict=False)
        self._place_pod_by_pod(self._unplaced(whole))
        whole = self._unplaced(whole)
        self.placements += span_partitions(self.capacity, whole, self._is_late)
        whole = self._ask(self._unplaced(whole))
        self._explain(whole)
        late = [gang for gang in whole if self._is_late(gang) and self.reasons[gang.key].reason == "PolicyWaits"]
        self._decide(late, fallback=True)
        if late:  # what these took is not there any more
            self._explain(self._unplaced(whole))
        self._make_room([gang for gang in self._unplaced(whole) if self.reasons[gang.key].reason == "Insufficient"])
        self._place_extras([gang for gang in gangs if gang.extra])

    def _place_pod_by_pod(self, gangs: Sequence[Gang]) -> None:
        """Place late gangs for which arrays have no room, where each pod finds some."""
        for gang in gangs:
            with blame([gang]):
                late = self._is_late(gang) and may_fit(self.capacity, gang)
                found = place_each(self.capacity, gang, keep=False) if late else None
            self.placements += [found] if isinstance(found, Placement) else []

    def _make_room(self, gangs: Sequence[Gang], evict: bool = True) -> None:
        """Keep nodes for gangs that fit once pods have ended; have others evicted for the first that does not."""
        for gang in gangs if self.settings.preemption else ():
            with blame([gang]):
                room = VacatedCapacity(self.capacity, gang, self.pods, self.placements)
                may = evict and self.preemption is None and gang.preempts
                fits = room.fits()
                may = may and not fits and not (may_fit(self.capacity, gang) and fits_pod_by_pod(self.capacity, gang))
                victims = choose_victims(room, self.running, self.snapshot.budgets) if may else ()
                if (victims or (room.ending and fits)) and (nodes := self._nodes_without(gang, victims)):
                    self._promise(gang, nodes, victims)

    def _nodes_without(self, gang: Gang, victims: Sequence[Gang]) -> set[str]:
        """Where a plan puts the gang once these and all pods that end are gone; empty if it does not."""
        gone = {pod.uid for pod in ending_pods(self.pods)} | {pod.uid for one in victims for pod in one.bound}
        pods = tuple(pod for pod in self.snapshot.pods if pod.uid not in gone)
        then = dataclasses.replace(self.snapshot, pods=pods)
        settings = dataclasses.replace(self.settings, preemption=False)
        plan = _PlanInProgress(self.planner, then, self.fleet, self.aside, self.alone, settings).run()
        placed = (placement for placement in plan.placements if placement.gang.key == gang.key)
        return {one.node for placement in placed for one in placement.assignments}

    def _promise(self, gang: Gang, nodes: set[str], victims: tuple[Gang, ...]) -> None:
        for name in sorted(nodes):
            self.capacity.keep(self.capacity.ledger.row[name], gang)
        text = "pods that end make room for it"
        if victims:
            self.preemption = Preemption(gang, victims)
            text = f"evicting {', '.join(victim.key for victim in victims)} makes room for it"
        self.reasons[gang.key] = self.promised[gang.key] = Refusal("MakingRoom", text)

    def _explain(self, gangs: Sequence[Gang]) -> None:
        """Say why gangs are not placed, as things are now."""
        explanations = Explanations(self.capacity, self.policy.main.name)
        for gang in gangs:
            with blame([gang]):
                reason = explanations.why_not(gang)
            unasked = self.rounds.exhausted and reason.reason == "PolicyWaits"
            self.reasons[gang.key] = self._next_plan() if unasked else self.promised.get(gang.key, reason)

    def _plan(self, gangs: Sequence[Gang]) -> Plan:
        nodes, placed = self.snapshot.nodes, {placement.gang.key for placement in self.placements}
        units = {node.name for node in self.capacity.fleet.nodes}
        refused = {node.name: node.refusal.message for node in nodes if node.refusal is not None}
        refused |= oversized_nodes(nodes, self.capacity.settings)
        known = units | refused.keys()
        return Plan(
            placements=tuple(self.placements),
            reasons={key: reason for key, reason in self.reasons.items() if key not in placed},
            pending={gang.key: gang for gang in gangs},
            policy_ready=self.policy.is_ready(self.capacity.fleet),
            policy_failures=tuple(self.rounds.policy_failures),
            faults=tuple(self.aside.values()),
            decision_s=self.rounds.decision_s,
            rounds=self.rounds.count,
            nodes_without_gpus=sum(node.name not in known for node in nodes),
            refused_nodes=refused,
            preemption=self.preemption,
        )

    def _may_start(self, gang: Gang) -> bool:
        fault = self.aside.get(gang.key)
        if fault is not None:
            self.reasons[gang.key] = fault.refusal()
            return False
        with blame([gang]):
            shot = self.snapshot
            volume = find_unusable_volume(gang, self.pods, shot.volume_claims, shot.volumes)
            reason = gang.refusal or gang.waiting or volume
            if reason is None and gang.bound and gang.topology:
                there = restrict_to_bound_pods(self.capacity, gang)
                reason = there if isinstance(there, Refusal) else None
                self.settled |= {gang.key: there} if isinstance(there, Gang) else {}
        if reason is not None:
            self.reasons[gang.key] = reason
        return reason is None

    def _place_apart(self, gang: Gang) -> None:
        """Place a gang that the policy cannot be shown beside others, or say why not."""
        late, policy = self._is_late(gang), self.policy.main.name
        if not gang.topology:
            found = place_each(self.capacity, gang, keep=late)
        elif not gang.uniform:
            self.settled[gang.key], found = place_each_in_domain(self.capacity, gang, keep=late)
        else:
            found = None
            for there in list_domains(self.capacity, gang):
                self.settled[gang.key] = there
                self._decide([there], fallback=False)
                if not self._unplaced([gang]):
                    return
                workers = self.capacity.workers(there)
                if self.capacity.by_partition(workers).max(initial=0) < len(there.workers):  # nowhere else to go
                    found = span(self.capacity, there, workers)
                elif late:
                    self._decide([there], fallback=True)
                if found is not None or not self._unplaced([gang]):
                    break
            else:
                there, reason = explain_no_domain(self.capacity, gang, policy)
                self.reasons[gang.key] = self._next_plan() if self.rounds.exhausted else reason
                if late and there is not None and reason.reason == "Insufficient":
                    keep_nodes(self.capacity, there, self.capacity.workers(there))
        if isinstance(found, Placement):
            self.placements.append(found)
        elif found is not None:
            self.reasons[gang.key] = found

    def _place_rests(self, gangs: Sequence[Gang]) -> None:
        """Place the rest of gangs that have started, or say why not."""
        for gang in gangs:
            with blame([gang]):
                found = place_rest(self.capacity, self.settled.get(gang.key, gang))
            if isinstance(found, Placement):
                self.placements.append(found)
            else:
                self.reasons[gang.key] = found

    def _place_extras(self, gangs: Sequence[Gang]) -> None:
        """Place pods beyond the minimum of gangs that have it."""
        placed = {placement.gang.key: at for at, placement in enumerate(self.placements)}
        for gang in gangs:
            at = placed.get(gang.key)
            if at is None and gang.together:
                continue
            with blame([gang]):
                there = self.settled.get(gang.key, gang)
                found = place_extra(self.capacity, there, None if at is None else self.placements[at])
            if isinstance(found, Refusal):
                self.reasons[gang.key] = found
            elif found is not None and at is not None:
                self.placements[at] = found
            elif found is not None:
                self.placements.append(found)

    def _ask(self, gangs: list[Gang]) -> list[Gang]:
        """Have the policy place gangs. Returns those that it did not."""
        blocked = self._decide(gangs, fallback=False)
        gangs = self._unplaced(gangs)
        if blocked:  # a gang that only looked as if it fitted gets a second, exact look
            self._decide(gangs, fallback=False)
        return self._unplaced(gangs)

    def _decide(self, gangs: Sequence[Gang], fallback: bool) -> set[str]:
        """Rounds of decisions for each class. Returns gangs that were placed but do not fit exactly."""
        blocked: set[str] = set()
        for alike in equivalence_classes(self.capacity, gangs, self.alone):
            with blame(alike.gangs):
                placed, failed = self.rounds.place(alike, self.placements, fallback)
            self.placements += placed
            blocked |= failed
        return blocked

    def _next_plan(self) -> Refusal:
        return Refusal("PlanFull", f"this plan has made its {self.settings.max_decisions} decisions; the next goes on")

    def _unplaced(self, gangs: Sequence[Gang]) -> list[Gang]:
        placed = {placement.gang.key for placement in self.placements}
        return [gang for gang in gangs if gang.key not in placed]

    def _is_late(self, gang: Gang) -> bool:
        return self.snapshot.now_s - gang.submit_s > self.patience_s
