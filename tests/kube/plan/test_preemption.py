"""Gangs of lower priority are evicted whole, if that helps and nothing forbids it."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.plan.preemption import RemainingBudgets, VacatedCapacity, choose_victims
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.gangs import Gang, form_gangs
from jaxsched.kube.read.groups import read_pod_group
from jaxsched.kube.read.snapshot import Budget, Snapshot, read_budget
from tests.kube.snapshots import SETTINGS, check, gang, nodes, snapshot
from tests.support.kube.objects import make_pod


@pytest.fixture(scope="module")
def planner() -> Planner:
    settings = dataclasses.replace(SETTINGS, preemption=True)
    return Planner(GuardedPolicy("pack:area+backfill+forward", settings), settings)


def running(name: str, priority: int, *hosts: str, gpus: int = 8, age_s: float = 600.0, **more) -> list[dict]:
    """A gang with a pod on each of the nodes."""
    pods = gang(name, len(hosts), gpus, spec={"priority": priority}, age_s=age_s, **more)
    for pod, host in zip(pods, hosts, strict=True):
        pod["spec"]["nodeName"], pod["status"]["phase"] = host, "Running"
    return pods


def high(count: int, gpus: int = 8, priority: int = 10, **more) -> list[dict]:
    return gang("high", count, gpus, spec={"priority": priority} | more.pop("spec", {}), **more)


def budget(allowed: int, gang: str = "", generation: int = 1, name: str = "b") -> dict:
    match = {"matchLabels": {"scheduling.x-k8s.io/pod-group": gang}} if gang else {}
    meta = {"name": name, "namespace": "default", "generation": generation}
    return {
        "metadata": meta,
        "spec": {"selector": match},
        "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
    }


def plan(planner: Planner, machines: int, pods: list[dict], *budgets: dict, **more) -> Plan:
    shot = snapshot(nodes(machines), pods, budgets=tuple(map(read_budget, budgets)), **more)
    made = planner.plan(shot)
    check(shot, made)
    return made


def victims(made: Plan) -> list[str]:
    found = made.preemption.victims if made.preemption is not None else ()
    return sorted(victim.key.rpartition("/")[2] for victim in found)


FULL = [*running("low", 1, "n0", "n1"), *running("mid", 5, "n2", "n3")]


def test_the_lowest_gang_that_suffices_is_evicted_whole(planner: Planner) -> None:
    made = plan(planner, 4, [*FULL, *high(2)])
    assert victims(made) == ["low"] and not made.placements
    (reason,) = made.reasons.values()
    assert reason.reason == "MakingRoom" and "scheduling.x-k8s.io/low" in reason.message
    assert made.preemption is not None and len(made.preemption.pods) == 2
    assert victims(plan(planner, 4, [*FULL, *high(1, 1)])) == ["low"]  # whole, although one GPU is asked for
    assert victims(plan(planner, 4, [*FULL, *high(4)])) == ["low", "mid"]


def test_off_by_default() -> None:
    made = Planner(GuardedPolicy("pack:area+backfill+forward", SETTINGS), SETTINGS).plan(
        snapshot(nodes(4), [*FULL, *high(2)])
    )
    assert made.preemption is None and next(iter(made.reasons.values())).reason == "Insufficient"


def test_nobody_is_evicted_for_an_equal_priority_or_by_who_never_preempts(planner: Planner) -> None:
    assert victims(plan(planner, 4, [*FULL, *high(2, priority=1)])) == []
    assert victims(plan(planner, 4, [*FULL, *high(2, priority=5)])) == ["low"]
    assert victims(plan(planner, 4, [*FULL, *high(2, spec={"preemptionPolicy": "Never"})])) == []
    assert victims(plan(planner, 4, [*FULL, *high(2, spec={"preemptionPolicy": "PreemptLowerPriority"})])) == ["low"]


def test_what_a_pod_group_says_counts(planner: Planner) -> None:
    for policy, found in (("Never", []), ("PreemptLowerPriority", ["low"])):
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "preemptionPolicy": policy, "priority": 10}
        meta = {"name": "g", "namespace": "default"}
        raw = {"apiVersion": "scheduling.k8s.io/v1beta1", "metadata": meta, "spec": spec}
        pods = [make_pod(f"g-{i}", 8, uid=f"g-{i}", spec={"schedulingGroup": {"podGroupName": "g"}}) for i in range(2)]
        assert victims(plan(planner, 4, [*FULL, *pods], groups=(read_pod_group(raw),))) == found
    kept = {"apiVersion": "scheduling.volcano.sh/v1beta1", "metadata": {"name": "v", "namespace": "default"}}
    raw = kept | {"spec": {"minMember": 2, "preemptable": False}}
    own = running("v", 0, "n0", "n1", annotations={"scheduling.k8s.io/group-name": "v"})
    for pod in own:
        del pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
    assert victims(plan(planner, 4, [*own, *FULL[2:], *high(2)], groups=(read_pod_group(raw),))) == ["mid"]


def test_nobody_is_evicted_where_that_does_not_help(planner: Planner) -> None:
    assert victims(plan(planner, 4, [*FULL, *high(5)])) == []
    others = running("other", 0, "n0", "n1", scheduler="default-scheduler")
    assert victims(plan(planner, 4, [*others, *FULL[2:], *high(3)])) == []  # those of other schedulers are not ours
    launcher = make_pod("l", None, "high", 3, uid="l", spec={"priority": 10}, requests={"cpu": "65"})
    pods = high(2)
    for pod in pods:
        pod["metadata"]["annotations"]["jaxsched.io/gang-size"] = "3"
    assert victims(plan(planner, 4, [*FULL, *pods, launcher])) == []  # its launcher fits nowhere
    assert victims(plan(planner, 4, [*FULL[:2], *high(2)])) == []  # it fits as it is
    wanted = high(1, spec={"nodeSelector": {"kind": "none"}})
    assert victims(plan(planner, 4, [*FULL, *wanted])) == []


def test_budgets_forbid_half_a_gang(planner: Planner) -> None:
    pods = [*FULL, *high(2)]
    assert victims(plan(planner, 4, pods, budget(0, "low"))) == ["mid"]
    assert victims(plan(planner, 4, pods, budget(1, "low"))) == ["mid"]  # one of two could be evicted
    assert victims(plan(planner, 4, pods, budget(2, "low"))) == ["low"]
    assert victims(plan(planner, 4, pods, budget(2, "low", generation=2))) == ["mid"]  # its status is out of date
    assert victims(plan(planner, 4, pods, budget(9, "low"), budget(9, "low", name="c"))) == ["mid"]
    assert victims(plan(planner, 4, pods, budget(0))) == []  # an empty selector is about all pods
    assert victims(plan(planner, 4, [*FULL, *high(4)], budget(3))) == []  # two gangs share three


def test_a_budget_spent_in_vain_goes_to_those_that_it_forbade(planner: Planner) -> None:
    """One of the two may end. The lowest shares its node with a pod that stays, so that its end makes no room."""
    pods = [
        *running("vain", 0, "n0", gpus=4),
        *running("low", 1, "n1"),
        *running("other", 9, "n0", gpus=4, scheduler="x"),
    ]
    for pod in pods[:2]:
        pod["metadata"]["labels"]["team"] = "a"
    shared = budget(1)
    shared["spec"]["selector"] = {"matchLabels": {"team": "a"}}
    assert victims(plan(planner, 2, [*pods, *high(1)], shared)) == ["low"]


def test_whenever_budgets_allow_enough_victims_some_are_found(planner: Planner) -> None:
    """Against every set of lower gangs in small random clusters with two budgets."""
    random, found = np.random.default_rng(2), 0
    for _ in range(300):
        pods = drawn(random, teams=2)
        budgets = [budget(int(random.integers(0, 5)), name=f"b{team}") for team in "01"]
        for team, one in zip("01", budgets, strict=True):
            one["spec"]["selector"] = {"matchLabels": {"team": team}}
        allowed = tuple(map(read_budget, budgets))
        shot = snapshot(nodes(6), pods)
        capacity = FreeCapacity(planner.fleet(shot.nodes), (), shot.pods, planner.settings)
        gangs = form_gangs(shot.pods, (), frozenset(), SETTINGS, shot.now_s)
        (wanted,), lower = (
            (one for one in gangs if one.pending),
            [one for one in gangs if one.bound and one.priority < 2],
        )
        room = VacatedCapacity(capacity, wanted, shot.pods, ())
        if room.fits():
            continue
        chosen = choose_victims(room, gangs, allowed)
        sets = (some for size in range(1, len(lower) + 1) for some in itertools.combinations(lower, size))
        assert enough(room, chosen, allowed) if chosen else not any(enough(room, some, allowed) for some in sets)
        found += bool(chosen)
    assert found > 50


def enough(room: VacatedCapacity, gangs: tuple[Gang, ...], budgets: tuple[Budget, ...]) -> bool:
    """Budgets allow it, and then there is room."""
    remaining = RemainingBudgets(budgets)
    return all(remaining.spend(one.bound) for one in gangs) and room.without(gangs).fits()


def test_the_youngest_goes_first_and_a_gang_that_ends_already_before_it(planner: Planner) -> None:
    pods = [*running("old", 1, "n0", "n1", age_s=900.0), *running("new", 1, "n2", "n3", age_s=100.0)]
    assert victims(plan(planner, 4, [*pods, *high(2)])) == ["new"]
    pods[0]["metadata"]["deletionTimestamp"] = "2027-01-15T07:00:00Z"
    assert victims(plan(planner, 4, [*pods, *high(2)])) == ["old"]


def test_nodes_that_become_free_are_kept(planner: Planner) -> None:
    """One victim has ended and one still ends: neither lower priorities nor equal ones may take the node."""
    (ending,) = running("low", 1, "n1")
    ending["metadata"]["deletionTimestamp"] = "2027-01-15T07:00:00Z"
    small = gang("small", 1, 8, spec={"priority": 2})
    made = plan(planner, 4, [ending, *FULL[2:], *high(2), *small])
    assert not made.placements and made.preemption is None
    assert {key.rpartition("/")[2]: why.reason for key, why in made.reasons.items()} == {
        "high": "MakingRoom",
        "small": "NodesKept",
    }
    alike = gang("alike", 1, 8, spec={"priority": 10}, age_s=900.0)
    key = "default/scheduling.x-k8s.io/high"
    made = plan(planner, 4, [ending, *FULL[2:], *high(2), *alike], making_room=frozenset({key}))
    assert not made.placements and made.reasons[key].reason == "MakingRoom" and made.preemption is None
    made = plan(planner, 4, [*FULL[2:], *high(2), *alike], making_room=frozenset({key}))
    assert [placed.gang.key for placed in made.placements] == [key]


def test_victims_are_whole_lower_needed_and_enough(planner: Planner) -> None:
    """Sixty random clusters: without the victims a plan starts the gang, without one victim fewer it does not."""
    plain, random, found = Planner(planner.policy, SETTINGS), np.random.default_rng(1), 0
    for _ in range(60):
        shot = snapshot(nodes(6), drawn(random))
        made = planner.plan(shot)
        if made.preemption is None:
            continue
        found += 1
        assert all(victim.priority < 2 and not victim.pending for victim in made.preemption.victims)
        alive = {one.key: one for one in form_gangs(shot.pods, (), frozenset(), SETTINGS, shot.now_s) if one.bound}
        assert all(alive[victim.key].bound == victim.bound for victim in made.preemption.victims)
        assert starts(plain, shot, made.preemption.victims)
        for spared in made.preemption.victims:
            assert not starts(plain, shot, [one for one in made.preemption.victims if one is not spared])
    assert found > 10


def drawn(random: np.random.Generator, teams: int = 1) -> list[dict]:
    """Pods of up to seven gangs that run on six nodes, and of one with a priority of 2 that waits."""
    pods: list[dict] = []
    free = {f"n{i}": 8 for i in range(6)}
    for number in range(int(random.integers(2, 8))):
        gpus = int(random.choice([2, 4, 8]))
        able = [name for name, left in free.items() if left >= gpus]
        hosts = [str(name) for name in random.permutation(able)[: int(random.integers(1, 4))]]
        for name in hosts:
            free[name] -= gpus
        if hosts:
            age_s, team = float(random.integers(100, 900)), {"team": str(random.integers(teams))}
            pods += running(f"r{number}", int(random.integers(0, 3)), *hosts, gpus=gpus, age_s=age_s, labels=team)
    return [*pods, *high(int(random.integers(1, 4)), int(random.choice([4, 8])), priority=2)]


def starts(planner: Planner, shot: Snapshot, without) -> bool:
    gone = {pod.uid for victim in without for pod in victim.bound}
    then = dataclasses.replace(shot, pods=tuple(pod for pod in shot.pods if pod.uid not in gone))
    return any(placed.gang.key.endswith("/high") for placed in planner.plan(then).placements)
