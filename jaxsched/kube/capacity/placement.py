"""What is decided about one gang: a node for each of its pods."""

import dataclasses
import hashlib
from collections.abc import Sequence

from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import Pod


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Where one pod goes."""

    pod: Pod
    node: str
    groups: tuple[int, ...]  # GPU groups on that node, advice


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one gang goes; `decision` identifies it in logs, events and annotations."""

    gang: Gang
    assignments: tuple[Assignment, ...]
    decision: str
    by: str  # the policy, the fallback, `rest` (of a gang that has started) or `span` (over several partitions)


def decision_id(assignments: Sequence[Assignment]) -> str:
    """12 hexadecimal digits that depend on the pods and where they go."""
    text = "\n".join(f"{one.pod.uid} {one.node} {one.groups}" for one in assignments)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
