"""Preferences choose among placements that are equal, and change nothing else."""

import copy
import dataclasses
from collections import Counter

import numpy as np

from jaxsched.kube.capacity.filters import Preferences
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.read.snapshot import Snapshot
from tests.kube.snapshots import check, gang, nodes, snapshot
from tests.support.kube.objects import GPU, make_pod

RACK, HOST = "cloud.provider.com/topology-rack", "host"
LABELLED = {"matchLabels": {"app": "web"}}


def machines(count: int = 8) -> list[dict]:
    """Racks of two, blocks and partitions of four."""
    made = nodes(count)
    for node in made:
        node["metadata"]["labels"][HOST] = node["metadata"]["name"]
    return made


def node_wish(*hosts: str) -> dict:
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": list(hosts)}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": term}]}
    return {"affinity": {"nodeAffinity": wish}}


def pod_wish(kind: str, key: str) -> dict:
    term = {"weight": 7, "podAffinityTerm": {"labelSelector": LABELLED, "topologyKey": key}}
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(key: str) -> dict:
    one = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": LABELLED}
    return {"topologySpreadConstraints": [one]}


def web(*names: str) -> list[dict]:
    """Pods without GPUs: the nodes they are on stay equal."""
    return [make_pod(f"w-{i}", None, uid=f"w-{i}", node=name, labels={"app": "web"}) for i, name in enumerate(names)]


def where(planner: Planner, raw_nodes: list[dict], pods: list[dict]) -> list[str]:
    shot = snapshot(raw_nodes, pods)
    plan = planner.plan(shot)
    check(shot, plan)
    return sorted(one.node for placement in plan.placements for one in placement.assignments)


def test_equal_nodes_and_racks_are_chosen_by_node_affinity(planner: Planner) -> None:
    """Two racks and two nodes in each are equal: any node of the gang's partition can be had."""
    assert where(planner, machines(), gang("a", 1, 8)) not in (["n2"], ["n3"], ["n6"], ["n7"])
    for number in range(4):
        hosts = f"n{number}", f"n{number + 4}"
        (node,) = where(planner, machines(), gang("a", 1, 8, spec=node_wish(*hosts)))
        assert node in hosts
    assert where(planner, machines(), gang("a", 2, 8, spec=node_wish("n2", "n3", "n6", "n7")))[0] in ("n2", "n6")


def test_a_policy_is_not_overruled(planner: Planner) -> None:
    """A node that has less room, or another load, is not equal."""
    busy = [make_pod(f"b{i}", 4, node=name, uid=f"b{i}") for i, name in enumerate(("n1", "n5"))]
    assert where(planner, machines(), [*busy, *gang("a", 1, 4)]) not in (["n1"], ["n5"])
    wish = node_wish("n1", "n5")
    assert where(planner, machines(), [*busy, *gang("a", 1, 4, spec=wish)]) not in (["n1"], ["n5"])
    busy += [make_pod(f"f{i}", 8, node=f"n{i}", uid=f"f{i}") for i in (2, 3, 6, 7)]
    other = [make_pod(f"o{i}", 4, node=name, uid=f"o{i}", annotations={"jaxsched.io/model": "vgg16"})
             for i, name in enumerate(("n0", "n4"))]  # fmt: skip
    taken = where(planner, machines(), [*busy, *other, *gang("a", 1, 4)])
    for hosts in (("n0", "n4"), ("n1", "n5")):
        assert where(planner, machines(), [*busy, *other, *gang("a", 1, 4, spec=node_wish(*hosts))]) == taken


def test_pods_that_run_attract_and_repel(planner: Planner) -> None:
    near = gang("a", 1, 8, spec=pod_wish("podAffinity", HOST))
    assert where(planner, machines(4), [*web("n1", "n3"), *near])[0] in ("n1", "n3")
    far = gang("a", 1, 8, spec=pod_wish("podAntiAffinity", RACK))
    assert where(planner, machines(4), [*web("n0", "n2"), *far])[0] in ("n0", "n1", "n2", "n3")
    assert where(planner, machines(), [*web("n0", "n4"), *far])[0] in ("n2", "n3", "n6", "n7")
    done = web("n0", "n4")
    for pod in done:
        pod["metadata"]["namespace"] = "elsewhere"  # a term is about its own namespace
    assert where(planner, machines(), [*done, *far]) == where(planner, machines(), gang("a", 1, 8))


def test_the_emptier_domain_is_chosen_by_spread(planner: Planner) -> None:
    crowd = web("n0", "n0", "n1", "n2", "n4", "n4", "n5", "n6")
    assert where(planner, machines(), [*crowd, *gang("a", 1, 8, spec=spread(HOST))])[0] in ("n3", "n7")
    assert where(planner, machines(), [*crowd, *gang("a", 1, 8, spec=spread(RACK))])[0] in ("n2", "n3", "n6", "n7")


def test_taints_that_only_advise_are_avoided(planner: Planner) -> None:
    raw = machines()
    for node in raw:
        if node["metadata"]["name"] not in ("n3", "n7"):
            node["spec"]["taints"] = [{"key": "old", "effect": "PreferNoSchedule"}]
    assert where(planner, raw, gang("a", 1, 8))[0] in ("n3", "n7")
    tolerant = gang("a", 1, 8, spec={"tolerations": [{"operator": "Exists"}]})
    assert where(planner, raw, tolerant)[0] not in ("n3", "n7")
    assert len(where(planner, raw, gang("a", 8, 8, age_s=5000.0))) == 8  # and used where nothing else is left


def test_pods_that_are_placed_one_by_one_see_each_other(planner: Planner) -> None:
    """Launchers that would rather not share a node, on nodes without GPUs."""
    plain = nodes(3, allocatable={GPU: "0"})
    for number, node in enumerate(plain):
        node["metadata"] |= {"name": f"c{number}", "uid": f"c{number}"}
        node["metadata"]["labels"] |= {HOST: f"c{number}"}
    full = machines(1)
    full[0]["status"]["allocatable"]["cpu"] = "2"
    own = gang("a", 1, 8)
    wish = pod_wish("podAntiAffinity", HOST)
    own += [make_pod(f"l-{i}", None, "a", 4, uid=f"l-{i}", labels={"app": "web"}, spec=wish) for i in range(3)]
    for pod in own:
        pod["metadata"]["annotations"]["jaxsched.io/gang-size"] = "4"
    assert where(planner, [*full, *plain], own) == ["c0", "c1", "c2", "n0"]


def canonical(shot: Snapshot, plan: Plan) -> list:
    """What the simulator sees of the cluster after a plan, without names: by partition and rack, what nodes run."""
    held: dict[str, Counter] = {node.name: Counter() for node in shot.nodes}
    for pod in shot.pods:
        if pod.node and pod.units(GPU):
            held[pod.node][pod.hints.model, pod.units(GPU)] += 1
    for placement in plan.placements:
        for one in placement.assignments:
            held[one.node]["new", one.groups, one.pod.units(GPU)] += 1
    racks: dict[tuple, list[str]] = {}
    for number, node in enumerate(sorted(shot.nodes, key=lambda node: int(node.name[1:]))):
        racks.setdefault((number // 4, node.labels[RACK]), []).append(str(sorted(map(str, held[node.name].items()))))
    return sorted((partition, sorted(kinds)) for (partition, _), kinds in racks.items())


def test_the_cluster_looks_the_same_to_the_simulator(planner: Planner) -> None:
    """With and without preferences, over 60 random clusters, of which some must differ in names of nodes."""
    random, moved = np.random.default_rng(0), 0
    for _ in range(60):
        raw = machines()
        busy = [make_pod(f"b{i}", int(random.choice([1, 4, 8])), node=f"n{i}", uid=f"b{i}")
                for i in random.choice(8, int(random.integers(0, 6)), replace=False)]  # fmt: skip
        hosts = [f"n{i}" for i in random.choice(8, 3, replace=False)]
        wish = [node_wish(*hosts), pod_wish("podAffinity", RACK), pod_wish("podAntiAffinity", HOST), spread(RACK)]
        size, gpus = int(random.integers(1, 5)), int(random.choice([1, 2, 4, 8]))
        plain = gang("a", size, gpus)
        keen = copy.deepcopy(plain)
        for pod in keen:
            pod["spec"] |= wish[int(random.integers(4))]
        others = [*busy, *web(*hosts)]
        without, wished = snapshot(raw, [*others, *plain]), snapshot(raw, [*others, *keen])
        before, after = planner.plan(without), planner.plan(wished)
        check(wished, after)
        assert canonical(without, before) == canonical(wished, after)
        nodes_of = [[one.node for placed in plan.placements for one in placed.assignments] for plan in (before, after)]
        if nodes_of[0] != nodes_of[1]:
            moved += 1
            (placed,) = after.placements
            workers = placed.gang.workers
            capacity = Preferences(wished.nodes, ledger_before(planner, wished))
            score = dict(zip((n.name for n in capacity.nodes), capacity.of_all(workers, np.ones(8, bool)), strict=True))
            assert sum(score[name] for name in nodes_of[1]) > sum(score[name] for name in nodes_of[0])
    assert moved


def ledger_before(planner: Planner, shot: Snapshot):
    from jaxsched.kube.capacity.ledger import Ledger

    fleet = dataclasses.replace(planner.fleet(shot.nodes), nodes=shot.nodes)
    return Ledger(fleet, shot.pods, GPU)
