"""The phase of Volcano's PodGroups: its controller makes the pods of a Job once the PodGroup is `Inqueue`.

Volcano's scheduler sets it, and does not look at Jobs that name another one, so this scheduler does it for its own.
"""

from collections import Counter
from collections.abc import Iterator

from jaxsched.kube.read.gangs import gang_key
from jaxsched.kube.read.pod_groups import VOLCANO, PodGroup
from jaxsched.kube.read.snapshot import Snapshot

PENDING, INQUEUE, RUNNING = "Pending", "Inqueue", "Running"


def volcano_phases(snapshot: Snapshot, scheduler: str) -> Iterator[tuple[PodGroup, str]]:
    """PodGroups of Jobs or pods that name this scheduler, and the phase that each should get in place of its own.

    A Job is let in at once: its pods then wait like those of any other gang. A phase that says more is left as it is.
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
