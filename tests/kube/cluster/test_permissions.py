"""What the scheduler is permitted to do: what is shipped is enough and no more, and what is missing is named."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import PREEMPTION, ApiClient, check_permissions, file_granting, required_permissions
from jaxsched.kube.cluster.app import Options, Scheduler
from jaxsched.kube.cluster.monitoring import Metrics
from tests.support.kube.calls import eventually
from tests.support.kube.objects import make_pod
from tests.support.kube.turns import bound, gang, turn

DEPLOY = Path(__file__).parents[3] / "deploy"


class As(ApiClient):
    """The same server as somebody else."""

    def __init__(self, other: ApiClient, user: str) -> None:
        self.__dict__.update(other.__dict__)
        self._user = user

    def _headers(self) -> dict[str, str]:
        return super()._headers() | {"Impersonate-User": self._user}


USER = "system:serviceaccount:jaxsched:jaxsched"
NEEDED = required_permissions(writes=True, lease=True, reviews=True)


def shipped() -> list[dict]:
    files = (DEPLOY / "base" / "rbac.yaml", DEPLOY / "ha" / "lease-rbac.yaml")
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def grant(world, less: tuple[str, str, str] | None = None) -> None:
    """Create the shipped RBAC, less one permission, and wait until the server goes by it, which takes it a moment."""
    for one in copy.deepcopy(shipped()):
        rules = one.get("rules") or []
        for rule in list(rules):
            if (
                less is not None
                and less[1] in rule["apiGroups"]
                and less[2] in rule["resources"]
                and less[0] in rule["verbs"]
            ):
                rules.remove(rule)
                for resource in rule["resources"]:
                    verbs = [v for v in rule["verbs"] if (v, resource) != (less[0], less[2])]
                    if verbs:
                        rules.append({**rule, "resources": [resource], "verbs": verbs})
        path = f"/apis/{one['apiVersion']}" if "/" in one["apiVersion"] else None
        if path is None:
            continue  # the service account: an impersonated user needs none
        cluster = one["kind"].startswith("Cluster")
        if not cluster:
            one["metadata"]["namespace"] = "default"
        world.make(f"{path}{'' if cluster else '/namespaces/default'}/{one['kind'].lower()}s", one)
    left = tuple(one for one in NEEDED if one != less)
    eventually(lambda: permitted(As(world.api, USER), left))


def permitted(api: ApiClient, needed: tuple[tuple[str, str, str], ...]) -> bool:
    try:
        check_permissions(api, needed, "default", "jaxsched")
    except UserError:
        return False
    return True


def test_the_shipped_rbac_is_exactly_what_is_needed() -> None:
    granted = {
        (verb, group, resource)
        for one in shipped()
        for rule in one.get("rules") or []
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == set(NEEDED)


def test_the_role_for_preemption_is_exactly_what_that_needs() -> None:
    roles = list(yaml.safe_load_all((DEPLOY / "preemption" / "rbac.yaml").read_text()))
    granted = set()
    for rule in roles[0]["rules"]:
        granted |= {(verb, rule["apiGroups"][0], resource) for verb in rule["verbs"] for resource in rule["resources"]}
    more = set(required_permissions(writes=True, lease=True, reviews=True, evicts=True)) - set(NEEDED)
    assert granted == more and roles[1]["roleRef"]["name"] == roles[0]["metadata"]["name"]


@pytest.mark.long
def test_the_shipped_rbac_is_enough(world, start) -> None:
    grant(world)
    world.node()
    scheduler = start(As(world.proxy.api, USER), leader_election=True, metrics_auth=True)
    pods = gang(world, 2, 1)
    turn(scheduler, lambda: bound(world, pods) == 2)
    waiting = gang(world, 2, 1, count=1)
    turn(scheduler, lambda: any("1 of 2" in str(c) for c in world.get(waiting[0])["status"].get("conditions", [])))


@pytest.mark.parametrize(
    "less", NEEDED, ids=lambda less: f"{less[0]}-{less[2].replace('/', '-')}-{less[1].partition('.')[0]}"
)
def test_one_verb_fewer_is_named(world, planner, less: tuple[str, str, str]) -> None:
    grant(world, less)
    options = Options(namespace="default", leader_election=True, metrics_auth=True)
    scheduler = Scheduler(As(world.api, USER), planner, options, Metrics())
    with pytest.raises(UserError, match=f"not permitted to {less[0]} {less[2]}(,| \\({less[1]}\\))?;?"):
        scheduler.start()
    scheduler.close()


@pytest.mark.long
def test_a_permission_that_is_taken_away_later_is_named(world, start, monkeypatch) -> None:
    monkeypatch.setattr("jaxsched.kube.cluster.api.REFUSED_S", 2.0)
    world.node()
    scheduler = start()
    body = json.dumps({"kind": "Status", "code": 403, "message": 'cannot watch resource "pods"'}).encode()
    world.proxy.inject("GET", "/pods", status=403, body=body, times=99)
    scheduler.informers.relist("pods")
    world.make("/api/v1/namespaces/default/pods", make_pod(world.name(), scheduler="other"))
    with pytest.raises(UserError, match="watch resource"):
        turn(scheduler, lambda: False, 20)


def test_everything_is_permitted_to_the_administrator(world) -> None:
    check_permissions(world.api, (("create", "", "pods/binding"), ("list", "", "nodes")))


def test_the_file_that_grants_it_is_named() -> None:
    """Before: always that of the base."""
    for wanted in (*NEEDED, *PREEMPTION):
        roles = yaml.safe_load_all((DEPLOY.parent / file_granting(*wanted[1:])).read_text())
        rules = [rule for role in roles for rule in role.get("rules") or []]
        assert any(
            all(one in rule[part] for one, part in zip(wanted, ("verbs", "apiGroups", "resources"))) for rule in rules
        ), wanted


def test_the_files_that_grant_what_is_missing_are_named(world) -> None:
    wanted = (("list", "", "nodes"), ("create", "", "pods/eviction"), ("create", "coordination.k8s.io", "leases"))
    files = "deploy/base/rbac.yaml and deploy/preemption/rbac.yaml and deploy/ha/lease-rbac.yaml grant what is needed$"
    with pytest.raises(UserError, match=files):
        check_permissions(As(world.api, "system:serviceaccount:default:nobody"), wanted, "default", "jaxsched")


def test_an_unreachable_server_is_one_line(world) -> None:
    with pytest.raises(UserError, match="does not answer"):
        check_permissions(ApiClient("http://127.0.0.1:9"), (("list", "", "nodes"),))
