"""What the status of upstream PodGroups should say: whether as many pods as must start together have nodes."""

from collections import Counter
from collections.abc import Iterator

from jaxsched.kube.plan.planner import Plan
from jaxsched.kube.read.gangs import gang_key
from jaxsched.kube.read.pod_groups import UPSTREAM, PodGroup
from jaxsched.kube.read.snapshot import Snapshot


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
