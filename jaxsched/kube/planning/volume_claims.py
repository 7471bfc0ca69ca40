"""Volumes: only claims that are bound already; which nodes another may bind on is the volume binder's say."""

from collections.abc import Mapping
from typing import Any

from jaxsched.kube.planning.gangs import Gang
from jaxsched.kube.planning.objects import Refusal, mapping


def read_volume_claim(raw: Mapping[str, Any]) -> tuple[str, str]:
    """(namespace/name, what stands in the way of using it: "" for a claim that any node can mount)."""
    meta, status = mapping(raw, "metadata"), mapping(raw, "status")
    key = f"{meta.get('namespace', 'default')}/{meta.get('name', '')}"
    if status.get("phase") != "Bound":
        return key, "is not bound (WaitForFirstConsumer is not supported: use a class that binds at once)"
    if "volume.kubernetes.io/selected-node" in mapping(meta, "annotations"):
        return key, "is tied to one node (volume.kubernetes.io/selected-node), which is not supported"
    return key, ""


def unusable_volume(gang: Gang, claims: Mapping[str, str]) -> Refusal | None:
    """Why the gang cannot have its volumes; None if it can. `claims`: as of `read_volume_claim`."""
    for pod in gang.pending:
        for claim in pod.volume_claims:
            trouble = claims.get(f"{pod.namespace}/{claim}", "does not exist")
            if trouble:
                return Refusal("VolumeUnsupported", f"pod {pod.key}: persistent volume claim {claim} {trouble}")
    return None
