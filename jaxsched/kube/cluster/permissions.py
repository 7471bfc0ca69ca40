"""What the process may and must do: asked before it starts, so that a missing verb is one line, no half-bound gang."""

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import ApiClient, Unreachable
from jaxsched.kube.read.owners import OWNER_KINDS
from jaxsched.kube.read.pod_groups import COSCHEDULING, UPSTREAM, VOLCANO

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
POD_GROUPS = {  # the versions that are read, the best first
    UPSTREAM: ("v1beta1", "v1alpha3", "v1alpha2"),
    COSCHEDULING: ("v1alpha1",),
    VOLCANO: ("v1beta1",),
}
WRITES = (
    ("create", "", "pods/binding"),
    ("patch", "", "pods/status"),
    ("patch", UPSTREAM, "podgroups/status"),
    ("patch", VOLCANO, "podgroups"),
    ("create", "", "events"),
)
REVIEWS = (
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
)
PREEMPTION = (
    ("list", "policy", "poddisruptionbudgets"),
    ("watch", "policy", "poddisruptionbudgets"),
    ("create", "", "pods/eviction"),
)
LEASE = tuple((verb, "coordination.k8s.io", "leases") for verb in ("get", "create", "update"))


def file_granting(group: str, resource: str) -> str:
    """The file that grants it."""
    if group == "coordination.k8s.io":
        return "deploy/ha/lease-rbac.yaml"
    return f"deploy/{'preemption' if group == 'policy' or resource == 'pods/eviction' else 'base'}/rbac.yaml"


def required_permissions(
    writes: bool, lease: bool, reviews: bool = False, evicts: bool = False
) -> tuple[tuple[str, str, str], ...]:
    """What a process needs; one that only looks does without `writes`, one without replicas without `lease`.

    `reviews`: it asks who may read its metrics. `evicts`: it evicts pods.
    """
    optional = [*((group, "podgroups") for group in POD_GROUPS), *((one.group, one.resource) for one in OWNER_KINDS)]
    reads = READS + tuple((verb, group, resource) for group, resource in optional for verb in ("list", "watch"))
    own = (WRITES if writes else ()) + (LEASE if lease else ())
    return reads + own + (REVIEWS if reviews else ()) + (PREEMPTION if evicts else ())


def check_permissions(
    api: ApiClient, needed: tuple[tuple[str, str, str], ...], lease_namespace: str = "", lease: str = ""
) -> None:
    """UserError that names every missing verb. Asked with SelfSubjectAccessReview, which everyone may do."""
    missing, files = [], []
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
            files.append(file_granting(group, resource))
    if missing:
        grants = " and ".join(dict.fromkeys(files)) + (" grant" if len(set(files)) > 1 else " grants")
        raise UserError(f"RBAC: not permitted to {', '.join(missing)}; {grants} what is needed")
