"""What other schedulers' pods have a claim to is left to them."""

import pytest

from jaxsched.kube.plan.planner import Plan, Planner
from tests.kube.snapshots import check, gang, nodes, snapshot
from tests.support.kube.objects import make_pod

RACK = "cloud.provider.com/topology-rack"
QUIET = {"app": "trainer"}


def guard(node: str, key: str = RACK, namespace: str = "default", selector: dict | None = None, **term) -> dict:
    """A running pod that wants no trainers in its domain."""
    selector = {"matchLabels": QUIET} if selector is None else selector
    term = {"topologyKey": key, "labelSelector": selector} | term
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    name = f"guard-{node}"
    return make_pod(name, None, node=node, uid=name, scheduler="other", namespace=namespace, spec=spec)


def plan(planner: Planner, pods: list[dict]) -> Plan:
    shot = snapshot(nodes(4), pods)  # racks r0: n0 n1, r1: n2 n3
    made = planner.plan(shot)
    check(shot, made)
    return made


def used(made: Plan) -> set[str]:
    return {one.node for placement in made.placements for one in placement.assignments}


def test_a_running_pods_anti_affinity_closes_its_domain(planner: Planner) -> None:
    trainers = gang("g", 2, 8, labels=QUIET)
    assert used(plan(planner, [guard("n0"), *trainers])) == {"n2", "n3"}
    why = plan(planner, [guard("n0"), guard("n2"), *trainers]).reasons
    assert [(one.reason, "4 anti-affinity of running pods" in one.message) for one in why.values()] == [
        ("NoNodeAllowed", True)
    ]
    why = plan(planner, [guard("n0"), *gang("g", 3, 8, labels=QUIET)]).reasons
    assert [one.reason for one in why.values()] == ["TooFewNodesAllowed"]
    assert len(used(plan(planner, gang("g", 4, 8, labels=QUIET)))) == 4


@pytest.mark.parametrize(
    ("one", "closed"),
    [
        (guard("n0", selector={}), True),  # every pod
        (guard("n0", selector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["trainer"]}]}), True),
        (guard("n0", selector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), False),
        (guard("n0", selector={"matchLabels": {"app": "web"}}), False),
        (guard("n0", labelSelector=None), False),  # none at all matches nothing
        (guard("n0", key="no.such/label"), False),
        (guard("n0", namespace="else"), False),
        (guard("n0", namespace="else", namespaces=["default"]), True),
        (guard("n0", namespaces=["else"]), False),
        (guard("n0", namespace="else", namespaceSelector={}), True),
        (guard("n0", namespace="else", namespaceSelector={"matchLabels": {"team": "a"}}), True),  # not known: stay away
        (guard("gone"), False),
    ],
)
def test_which_pods_a_term_is_about(planner: Planner, one: dict, closed: bool) -> None:
    made = plan(planner, [one, *gang("g", 2, 8, labels=QUIET), *gang("h", 2, 8, labels=QUIET)])
    assert len(made.placements) == (1 if closed else 2)


def test_a_done_pod_closes_nothing(planner: Planner) -> None:
    done = guard("n0") | {"status": {"phase": "Succeeded"}}
    assert len(used(plan(planner, [done, *gang("g", 4, 8, labels=QUIET)]))) == 4


def test_a_launcher_is_kept_out_where_its_workers_are_not(planner: Planner) -> None:
    launcher = make_pod("launcher", None, "g", 2, uid="l", labels=QUIET)
    made = plan(planner, [guard("n0", key=RACK), guard("n2", key="no"), *gang("g", 2, 8)[:1], launcher])
    where = {one.pod.name: one.node for one in made.placements[0].assignments}
    assert where["launcher"] in ("n2", "n3")


def nominated(node: str, **more) -> dict:
    raw = make_pod("preemptor", 8, uid="preemptor", **({"scheduler": "other"} | more))
    raw["status"]["nominatedNodeName"] = node
    return raw


def test_room_that_is_made_for_another_pod_is_left_to_it(planner: Planner) -> None:
    four = gang("g", 4, 8)
    assert [one.reason for one in plan(planner, [nominated("n1"), *four]).reasons.values()] == ["Insufficient"]
    assert used(plan(planner, [nominated("n1"), *gang("g", 3, 8)])) == {"n0", "n2", "n3"}
    assert used(plan(planner, [nominated("gone"), *four])) == {"n0", "n1", "n2", "n3"}


def test_a_nomination_of_our_own_pod_is_only_a_hint(planner: Planner) -> None:
    made = plan(planner, [nominated("n1", scheduler="jaxsched"), *gang("g", 3, 8)])
    assert len(made.placements) == 2
