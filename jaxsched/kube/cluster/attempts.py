"""What a plan was for each pod that waits, in the default scheduler's terms: results of attempts, and queues."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from jaxsched.kube.plan.planner import Plan
from jaxsched.kube.read.gangs import Gang, gang_key
from jaxsched.kube.read.objects import DONE_PHASES, Pod, Refusal

QUEUES = ("active", "backoff", "gated", "unschedulable")
NOT_WHOLE = ("GangIncomplete", "PodGroupMissing", "Gated")  # why a gang without bound pods is not tried


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
