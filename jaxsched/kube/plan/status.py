"""What a plan says of PodGroups and pods, in the terms of upstream, Volcano and the default scheduler."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from jaxsched.kube.plan.planner import Plan
from jaxsched.kube.read.gangs import Gang, gang_key
from jaxsched.kube.read.objects import DONE_PHASES, Pod, Refusal
from jaxsched.kube.read.pod_groups import UPSTREAM, VOLCANO, PodGroup
from jaxsched.kube.read.snapshot import Snapshot

PENDING, INQUEUE, RUNNING = "Pending", "Inqueue", "Running"
QUEUES = ("active", "backoff", "gated", "unschedulable")
NOT_WHOLE = ("GangIncomplete", "PodGroupMissing", "Gated")  # why a gang without bound pods is not tried


def group_states(snapshot: Snapshot, plan: Plan, scheduler: str) -> Iterator[tuple[PodGroup, str]]:
    """Of every PodGroup with pods of this scheduler why it waits, or "" if its minimum has nodes.

    A PodGroup of which neither is true, whose pods are about to be bound or are done, is left out.
    """
    groups = [group for group in snapshot.groups if group.api == UPSTREAM]
    own = [pod for pod in snapshot.pods if pod.scheduler == scheduler] if groups else []
    bound = Counter(gang_key(pod) for pod in own if pod.node)
    waiting = {gang_key(pod) for pod in own if not pod.node}
    for group in groups:
        if bound[group.key] >= group.minimum:
            yield group, ""
        elif group.key in waiting and group.key in plan.reasons:
            reason = plan.reasons[group.key]
            yield group, f"{reason.reason}: {reason.message}"


def volcano_phases(snapshot: Snapshot, scheduler: str) -> Iterator[tuple[PodGroup, str]]:
    """Volcano's PodGroups of Jobs or pods that name this scheduler, and the phase that each should get.

    Its controller makes the pods of a Job once the PodGroup is `Inqueue`. Volcano's scheduler sets that, and does not
    look at Jobs that name another one. Here a Job is let in at once: its pods then wait like those of any other gang.
    A phase that says more is left as it is.
    """
    groups = [group for group in snapshot.groups if group.api == VOLCANO and group.phase in ("", PENDING, INQUEUE)]
    own = [pod for pod in snapshot.pods if pod.scheduler == scheduler] if groups else []
    jobs = {owner.uid for owner in snapshot.owners if owner.scheduler == scheduler}
    there, bound = {gang_key(pod) for pod in own}, Counter(gang_key(pod) for pod in own if pod.node)
    for group in groups:
        if group.key in there or group.owner_uid in jobs:
            phase = RUNNING if bound[group.key] >= group.minimum else INQUEUE
            if phase != group.phase:
                yield group, phase


def queue_of(gang: Gang, reason: Refusal) -> str:
    """The queue that pods of a gang which was not placed are in.

    Those that were not tried are gated (upstream's PreEnqueue keeps incomplete gangs there, too), or active if only
    this plan had no decision left for them.
    """
    if reason.reason == "PlanFull":
        return "active"
    return "gated" if reason.reason in NOT_WHOLE and not gang.bound else "unschedulable"


def failed_attempts(plan: Plan) -> Iterator[tuple[Gang, str]]:
    """Gangs that were tried and not placed, and the result: unschedulable, or error for a fault of ours."""
    for key, reason in plan.reasons.items():
        gang = plan.pending[key]
        if queue_of(gang, reason) == "unschedulable":
            yield gang, "error" if reason.reason == "PlanFailed" else "unschedulable"


def pending_pods(pods: Iterable[Pod], plan: Plan, backing_off: Set[str], scheduler: str) -> Counter[str]:
    """Unbound pods of our own by queue; those that the plan places are not pending any more."""
    queues = {key: queue_of(plan.pending[key], reason) for key, reason in plan.reasons.items()}
    counts: Counter[str] = Counter({queue: 0 for queue in QUEUES})
    for pod in pods:
        if pod.scheduler == scheduler and not pod.node and not pod.terminating and pod.phase not in DONE_PHASES:
            key = gang_key(pod)
            if pod.gated:
                counts["gated"] += 1
            elif key in backing_off:
                counts["backoff"] += 1
            elif key in queues:
                counts[queues[key]] += 1
    return counts
