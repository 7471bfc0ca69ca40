"""What annotations and labels of pods and nodes say, parsed here and nowhere else, within bounds.

Anyone who may create a pod writes them. Numbers are decimal ones in ASCII, without leading zeros, signs and spaces;
those of seconds may have a fraction and an exponent. Names are short words. Anything else is a problem that is told to
the pod's owner, never an exception.
"""

import dataclasses
import re
from collections.abc import Mapping

from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.workload.models import model_index

PREFIX = "jaxsched.io/"

# Annotations of pods that users set; ROLE "ps" marks a parameter server.
MODEL, DURATION, GANG_SIZE = f"{PREFIX}model", f"{PREFIX}duration-seconds", f"{PREFIX}gang-size"
ROLE = f"{PREFIX}role"

# The same of others: how many pods start together, the name of Volcano's PodGroup, which pods are parameter servers.
KUEUE_COUNT, MIN_AVAILABLE = "kueue.x-k8s.io/pod-group-total-count", "pod-group.scheduling.sigs.k8s.io/min-available"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
PS_LABELS = ("training.kubeflow.org/replica-type", "tf-replica-type")

# Annotations of pods that a Binding writes.
GROUP, DECISION, POLICY = f"{PREFIX}gpu-group", f"{PREFIX}decision-id", f"{PREFIX}policy"

# Labels of nodes.
GPU_GROUPS = f"{PREFIX}gpu-groups"  # GPUs per socket, e.g. 4-4
# What GPUs are called: by NVIDIA's GPU feature discovery, AMD's node labeller, GKE, Karpenter on EKS.
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)

# Node labels, inner tier to outer. Sources: Kueue's topology-aware scheduling, NVIDIA topograph (old and new names),
# the labels from which Volcano makes HyperNodes, NVIDIA's GPU feature discovery (which GPUs NVLink joins).
TOPOLOGY_PRESETS: dict[str, tuple[str, ...]] = {
    "kueue": ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"),
    "topograph": ("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"),
    "topograph-tier": ("fabric.topograph.run/tier-1", "fabric.topograph.run/tier-2"),
    "zone": ("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    "volcano": ("volcano.sh/hypernode", "volcano.sh/hypercluster"),
    "clique": ("nvidia.com/gpu.clique",),
}


SHORTEST_S, LONGEST_S = 1e-3, 1e8  # up to three years; others are taken for a mistake
LARGEST_GANG = 4096  # pods
_WHOLE = re.compile(r"[1-9][0-9]{0,5}")
_SECONDS = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,9})?(?:[eE][+-]?[0-9]{1,2})?")
_GROUPS = re.compile(r"[0-9]{1,3}(?:-[0-9]{1,3}){0,63}")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_SECONDS_WANTED = f"a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclasses.dataclass(frozen=True)
class Hints:
    """What a pod's annotations and labels say of its gang; None, 0 or empty where they say nothing that can be read."""

    model: int | None = None  # index into the catalogue
    duration_s: float | None = None
    gang_size: int = 0  # pods
    volcano_group: str = ""
    gpu_groups: tuple[int, ...] = ()  # where the GPUs of a bound pod are, by its Binding
    is_ps: bool = False


def read_hints(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[Hints, str]:
    """The hints of a pod, and the first thing that is wrong with them: a sentence, or ""."""
    problems: list[str] = []

    def said(where: Mapping[str, str], key: str, pattern: re.Pattern[str], wanted: str) -> str:
        text = where.get(key, "")
        if key in where and not pattern.fullmatch(text):
            problems.append(f"{key}: {shorten(text, 32)!r} should be {wanted}")
            return ""
        return text

    sizes = [
        _size(said(where, key, _WHOLE, f"a whole number from 1 to {LARGEST_GANG}"), key, problems)
        for where, key in (
            (annotations, GANG_SIZE),
            (annotations, KUEUE_COUNT),
            (annotations, LWS_SIZE),
            (labels, MIN_AVAILABLE),
        )
    ]
    model = None
    if MODEL in annotations:
        try:
            model = model_index(shorten(annotations[MODEL], 64))
        except UserError as error:
            problems.append(f"{MODEL}: {error}")
    hints = Hints(
        model=model,
        duration_s=_seconds(said(annotations, DURATION, _SECONDS, _SECONDS_WANTED), problems),
        gang_size=max(sizes),
        volcano_group=said(annotations, VOLCANO_GROUP, _NAME, "the name of a PodGroup"),
        gpu_groups=numbers(said(annotations, GROUP, _GROUPS, "numbers of GPU groups, for example 0-1")),
        is_ps=annotations.get(ROLE) == "ps" or any(labels.get(label, "").lower() == "ps" for label in PS_LABELS),
    )
    return hints, problems[0] if problems else ""


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a label such as `4-4`; none if it is anything else."""
    return tuple(map(int, text.split("-"))) if _GROUPS.fullmatch(text) else ()


def integer(text: str) -> int | None:
    """A 64-bit integer as Kubernetes' own filters read it; None for anything else."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and -(2**63) <= value < 2**63 else None


def _size(text: str, key: str, problems: list[str]) -> int:
    if text and int(text) > LARGEST_GANG:
        problems.append(f"{key}: {text} should be a whole number from 1 to {LARGEST_GANG}")
        return 0
    return int(text or 0)


def _seconds(text: str, problems: list[str]) -> float | None:
    if not text:
        return None
    if not SHORTEST_S <= float(text) <= LONGEST_S:
        problems.append(f"{DURATION}: {text} should be {_SECONDS_WANTED}")
        return None
    return float(text)
