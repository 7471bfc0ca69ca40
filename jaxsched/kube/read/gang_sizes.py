"""How many pods of a gang must be there and start together: what its PodGroup, annotation or controller says."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsched.kube.read.objects import Pod, Refusal
from jaxsched.kube.read.owners import Owner
from jaxsched.kube.read.pod_groups import UPSTREAM, PodGroup

BY_NAME = {"jobset": "JobSet.jobset.x-k8s.io", "lws": "LeaderWorkerSet.leaderworkerset.x-k8s.io"}  # second part of keys


@dataclasses.dataclass(frozen=True)
class GangSize:
    """The number of pods, 0 where nothing says it; `unknown` is what should say it and is not there.

    Further pods start with the others; of an `elastic` gang they start as they fit.
    """

    pods: int
    elastic: bool = False
    unknown: Refusal | None = None

    def missing(self, key: str, members: Sequence[Pod], settle_s: float, now_s: float) -> Refusal | None:
        """What a gang that has not started waits for; None when it is complete."""
        there = [pod for pod in members if not pod.gated]
        if len(there) < len(members) and not (self.elastic and self.pods <= len(there)):
            return Refusal("Gated", "some of its pods have scheduling gates")
        if self.unknown is not None:
            return self.unknown
        if len(members) < self.pods:
            return Refusal("GangIncomplete", f"{len(members)} of {self.pods} pods exist")
        newest = max(pod.created_s for pod in members)
        if not self.pods and key.split("/")[1] != "pod" and now_s - newest < settle_s:
            return Refusal("GangIncomplete", f"its size is not stated and its newest pod is under {settle_s:g} s old")
        return None


def stated_size(
    key: str, members: Sequence[Pod], group: PodGroup | None, owners: Mapping[Any, Owner], served: frozenset[str]
) -> GangSize:
    """What is known. `owners`: by uid, and by kind, namespace and name."""
    api = key.split("/")[1]
    if group is not None:
        return GangSize(group.minimum, elastic=not group.whole)
    hinted = max((pod.hints.gang_size for pod in members), default=0)
    if not hinted and (api == UPSTREAM or api in served):
        return GangSize(0, unknown=Refusal("PodGroupMissing", f"its PodGroup ({api}) does not exist"))
    owner, kind = _owner(key, members[0], owners)
    if owner is not None and owner.pods:  # of a large Job that is almost done fewer are left than the annotation says
        return GangSize(min(hinted, owner.pods) if hinted else owner.pods)
    if owner is None and not hinted and kind in served:
        return GangSize(0, unknown=Refusal("GangIncomplete", f"its {kind.partition('.')[0]} is not known yet"))
    return GangSize(hinted)


def _owner(key: str, pod: Pod, owners: Mapping[Any, Owner]) -> tuple[Owner | None, str]:
    """The controller that makes all pods of the gang, and of what kind it is; of gangs by a label none is known."""
    namespace, api, name, *_ = key.split("/")
    if api in BY_NAME:
        return owners.get((BY_NAME[api], namespace, name)), BY_NAME[api]
    if api == pod.owner[0]:
        return owners.get(pod.owner[1]), pod.owner_kind
    return None, ""
