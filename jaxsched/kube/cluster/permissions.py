"""What the process may and must do: asked before it starts, so that a missing verb is one line, no half-bound gang."""

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import ApiClient, Unreachable

# (verb, group, resource/subresource); deploy/base/rbac.yaml grants exactly these, a test compares the two
READS = (
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
    ("list", "", "pods"),
    ("watch", "", "pods"),
    ("get", "", "pods"),
    ("list", "", "persistentvolumeclaims"),
    ("watch", "", "persistentvolumeclaims"),
    ("list", "", "persistentvolumes"),
    ("watch", "", "persistentvolumes"),
)
POD_GROUPS = (
    ("scheduling.k8s.io", "v1alpha2", "podgroups"),
    ("scheduling.x-k8s.io", "v1alpha1", "podgroups"),
    ("scheduling.volcano.sh", "v1beta1", "podgroups"),
)
WRITES = (("create", "", "pods/binding"), ("patch", "", "pods/status"), ("create", "", "events"))
LEASE = tuple((verb, "coordination.k8s.io", "leases") for verb in ("get", "create", "update"))


def needed(writes: bool, lease: bool) -> tuple[tuple[str, str, str], ...]:
    """What a process needs; one that only looks does without `writes`, one without replicas without `lease`."""
    groups = tuple((verb, group, name) for group, _, name in POD_GROUPS for verb in ("list", "watch"))
    return READS + groups + (WRITES if writes else ()) + (LEASE if lease else ())


def check_permissions(
    api: ApiClient, needed: tuple[tuple[str, str, str], ...], lease_namespace: str = "", lease: str = ""
) -> None:
    """UserError that names every missing verb. Asked with SelfSubjectAccessReview, which everyone may do."""
    missing = []
    for verb, group, resource in needed:
        name, _, part = resource.partition("/")
        wanted = {"verb": verb, "group": group, "resource": name, "subresource": part}
        if resource == "leases":
            wanted |= {"namespace": lease_namespace} | ({"name": lease} if verb != "create" else {})
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        try:
            response = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        except Unreachable as error:
            raise UserError(f"the API server {api.host} does not answer: {error}") from None
        if response.status == 401:
            raise UserError(f"the API server {api.host} does not know these credentials (401)")
        if not response.ok:
            raise UserError(f"the API server {api.host} cannot say what is permitted: {response.message}")
        if not (response.body.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {resource}" + (f" ({group})" if group else ""))
    if missing:
        raise UserError(f"RBAC: not permitted to {', '.join(missing)}; deploy/base/rbac.yaml grants what is needed")
