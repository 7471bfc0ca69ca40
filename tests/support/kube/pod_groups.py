"""Upstream's PodGroups and their pods on a server under test."""

from jaxsched.kube.read.groups import SCHEDULED

API = "scheduling.k8s.io/v1alpha2"
GROUPS = f"/apis/{API}/namespaces/default/podgroups"


def pod_group(world, minimum: int = 0, **spec) -> str:
    """The name of a new one; without a minimum its policy is `basic`."""
    world.since(36, "PodGroups of scheduling.k8s.io")
    name = world.name("g")
    policy = {"gang": {"minCount": minimum}} if minimum else {"basic": {}}
    body = {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name}}
    world.make(GROUPS, body | {"spec": {"schedulingPolicy": policy} | spec})
    return name


def members(world, group: str, count: int, gpus: int, **spec) -> list[dict]:
    """Pods of it."""
    return [world.pod(gpus=gpus, spec={"schedulingGroup": {"podGroupName": group}} | spec) for _ in range(count)]


def told(world, group: str) -> tuple[str, str, str]:
    """Status, reason and message of its condition."""
    raw = world.api.request("GET", f"{GROUPS}/{group}").body
    conditions = (raw.get("status") or {}).get("conditions") or []
    found = next((one for one in conditions if one["type"] == SCHEDULED), {})
    return tuple(found.get(name, "") for name in ("status", "reason", "message"))
