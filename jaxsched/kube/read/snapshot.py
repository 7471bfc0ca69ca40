"""What the core plans from: the cluster's objects at one moment."""

import dataclasses
from collections.abc import Mapping

from jaxsched.kube.read.budgets import Budget
from jaxsched.kube.read.objects import Node, Pod
from jaxsched.kube.read.owners import Owner
from jaxsched.kube.read.pod_groups import PodGroup
from jaxsched.kube.read.volumes import Volume, VolumeClaim


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All nodes and all pods of all schedulers that are not done. Bound pods hold resources, whoever bound them."""

    now_s: float
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    groups: tuple[PodGroup, ...] = ()
    owners: tuple[Owner, ...] = ()
    served: frozenset[str] = frozenset()  # APIs of PodGroups and kinds of owners that the cluster has
    volume_claims: Mapping[str, VolumeClaim] = dataclasses.field(default_factory=dict)  # by namespace/name
    volumes: Mapping[str, Volume] = dataclasses.field(default_factory=dict)  # by name
    budgets: tuple[Budget, ...] = ()
    making_room: frozenset[str] = frozenset()  # keys of gangs for which others were evicted of late
