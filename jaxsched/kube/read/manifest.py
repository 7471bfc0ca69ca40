"""A gang that is not submitted yet: the pods that a Job's or a Pod's manifest would make."""

import dataclasses
import datetime
import re
from collections.abc import Mapping
from typing import Any

from jaxsched.errors import UserError
from jaxsched.io.inputs import shortened
from jaxsched.kube.read.hints import GANG_SIZE, LARGEST_GANG
from jaxsched.kube.read.objects import Pod, mapping, read_pod
from jaxsched.kube.read.settings import PlanSettings

KINDS = ("Job", "Pod")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


def manifest_pods(manifest: Any, where: str, now_s: float, settings: PlanSettings, priority: int) -> tuple[Pod, ...]:
    """The pods as if they were submitted now, to our scheduler. UserError, beginning with `where`, on a mistake.

    Args: `priority`: theirs; the manifest names a class at most.
    """
    kind = manifest.get("kind") if isinstance(manifest, Mapping) else None
    if kind not in KINDS:
        raise UserError(f"{where}: kind {shorten(repr(kind), 40)} should be {' or '.join(KINDS)}")
    name = _name(mapping(manifest, "metadata").get("name"), "name", where)
    namespace = _name(mapping(manifest, "metadata").get("namespace", "default"), "namespace", where)
    count = _pods_of_job(mapping(manifest, "spec"), where) if kind == "Job" else 1
    template = mapping(mapping(manifest, "spec"), "template") if kind == "Job" else manifest
    if not mapping(template, "spec"):
        path = "spec.template.spec" if kind == "Job" else "spec"
        raise UserError(f"{where}: {path} is missing, should hold the containers of its pods")
    meta = mapping(template, "metadata")
    raw = {
        "spec": {**mapping(template, "spec"), "schedulerName": settings.scheduler_name, "priority": priority},
        "metadata": {
            "namespace": namespace,
            "labels": mapping(meta, "labels"),
            "annotations": {GANG_SIZE: str(count), **mapping(meta, "annotations")},
            "creationTimestamp": datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(),
        },
    }
    raw["spec"].pop("nodeName", None)
    if kind == "Job":
        raw["metadata"]["ownerReferences"] = [
            {"kind": "Job", "apiVersion": "batch/v1", "controller": True, "uid": f"{name} (not submitted)"}
        ]
    named = [name] if kind == "Pod" else [f"{name}-{number}" for number in range(count)]
    pods = (read_pod(raw | {"metadata": raw["metadata"] | {"name": one, "uid": f"manifest {one}"}}) for one in named)
    return tuple(dataclasses.replace(pod, created_s=now_s) for pod in pods)


def _name(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        text = shorten(repr(value), 40)
        raise UserError(f"{where}: metadata.{field}: {text} should be a name of small letters, digits, - and .")
    return value


def _pods_of_job(spec: Mapping[str, Any], where: str) -> int:
    """That run at once."""
    sizes = [spec[name] for name in ("parallelism", "completions") if spec.get(name) is not None]
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_GANG:
            text = shorten(repr(size), 40)
            raise UserError(f"{where}: {text} pods, should be a whole number from 1 to {LARGEST_GANG}")
    return min([spec.get("parallelism") or 1, *sizes])
