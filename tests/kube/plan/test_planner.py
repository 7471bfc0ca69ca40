"""Properties of `plan`: whole gangs only, never over capacity, never where a pod may not go."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.plan.planner import Plan, Planner
from jaxsched.kube.policy import GuardedPolicy, PolicyError
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.objects import read_node, read_pod
from tests.kube.snapshots import SETTINGS, check, gang, nodes, snapshot
from tests.support.kube.objects import GPU, make_node, make_pod


def test_a_gang_that_fits_only_across_sockets_starts() -> None:
    """Nodes of 6 GPUs in groups of 3 hold three pods of 2. Before: they never started."""
    planner = Planner(GuardedPolicy("pack", SETTINGS), SETTINGS)
    machines = [make_node("n0", 6), make_node("n1", 8)]
    shot = snapshot(machines, gang("g", 7, 2))
    plan = planner.plan(shot)
    check(shot, plan)
    assert len(plan.placements) == 1
    assert len(planner.plan(snapshot(machines, gang("g", 8, 2))).placements) == 0


LATE = {"age_s": 5000.0}


def test_who_has_room_across_sockets_or_with_unequal_cpus_starts_once_late() -> None:
    """Before: they waited for ever."""
    planner = Planner(GuardedPolicy("pack", SETTINGS), SETTINGS)
    others = [*gang("a", 1, 3, node="n0"), *gang("b", 1, 3, node="n0")]
    cpus = [make_pod(f"g-{cpu}", 1, "g", 2, uid=f"g-{cpu}", requests={"cpu": cpu}, **LATE) for cpu in ("60", "2")]
    for pods in ([*others, *gang("c", 1, 2, **LATE)], cpus):
        shot = snapshot([make_node("n0", 8)], pods)
        plan = planner.plan(shot)
        check(shot, plan)
        assert len(plan.placements) == 1
    wide = [make_pod(f"g-{cpu}", 1, "g", 2, uid=f"g-{cpu}", requests={"cpu": cpu}, **LATE) for cpu in ("60", "5")]
    assert not planner.plan(snapshot([make_node("n0", 8)], wide)).placements


def test_nobody_is_evicted_for_who_has_room_across_sockets() -> None:
    chosen = dataclasses.replace(SETTINGS, preemption=True)
    planner = Planner(GuardedPolicy("pack", chosen), chosen)
    others = [*gang("a", 1, 3, node="n0"), *gang("b", 1, 3, node="n0")]
    for gpus, evicted in ((2, 0), (3, 1)):
        shot = snapshot([make_node("n0", 8)], [*others, *gang("c", 1, gpus, spec={"priority": 10})])
        preemption = planner.plan(shot).preemption
        assert len(preemption.victims if preemption else ()) == evicted


def started(policy: str, count: int, *pods: list[dict]) -> str:
    """The gangs, named by a letter each, that `policy` starts on empty nodes of 8 GPUs."""
    planner = Planner(GuardedPolicy(policy, SETTINGS), SETTINGS)
    shot = snapshot(nodes(count), [pod for some in pods for pod in some])
    plan = planner.plan(shot)
    check(shot, plan)
    return "".join(sorted(placement.gang.key[-1] for placement in plan.placements))


def lasting(seconds: float) -> dict:
    return {"annotations": {"jaxsched.io/duration-seconds": str(seconds)}}


def test_orders_hold_between_pods_of_whole_nodes_and_smaller_ones() -> None:
    """Before: gangs of whole nodes went all before or all after the others, whoever had the oldest."""
    for small, large in ((4, 8), (8, 4)):
        first, between, last = (
            gang(name, 1, gpus, age_s=age) for name, gpus, age in (("a", large, 30), ("b", small, 20), ("c", large, 10))
        )
        assert started("pack:fifo+backfill", 1, first, between, last) == ("a" if large == 8 else "ac")
        assert started("pack:fifo", 1, first, between, last) == "a"
    short, long = gang("s", 1, 1, age_s=10, **lasting(60)), gang("l", 1, 8, age_s=20, **lasting(6000))
    assert started("pack:sjf+backfill", 1, long, short) == "s"
    assert started("pack:fifo+backfill", 1, long, short) == "l"


def test_the_order_holds_where_cpus_differ_and_nobody_needs_a_whole_node() -> None:
    """What the node holds as a whole differs between the second and the others, what its sockets hold does not."""
    planner = Planner(GuardedPolicy("pack:fifo", SETTINGS), SETTINGS)
    asked = [("r", 2, "1", 90), ("b", 1, "1", 50), ("a", 3, "40", 40), ("c", 4, "1", 30)]
    busy, *pods = [
        make_pod(f"{name}-0", gpus, name, 1, uid=name, requests={"cpu": cpu}, age_s=age)
        for name, gpus, cpu, age in asked
    ]
    shot = snapshot(nodes(1), [busy | {"spec": busy["spec"] | {"nodeName": "n0"}}, *pods])
    assert [placement.gang.key[-1] for placement in planner.plan(shot).placements][:2] == ["b", "a"]


def test_what_is_reserved_for_a_gang_of_whole_nodes_is_kept_from_smaller_ones() -> None:
    busy = [pod | {"spec": pod["spec"] | {"nodeName": "n0"}} for pod in gang("r", 1, 4, age_s=10, **lasting(600))]
    large = gang("a", 1, 8, age_s=30, **lasting(600))
    for seconds, there in ((60, "b"), (6000, "")):
        small = gang("b", 1, 2, age_s=20, **lasting(seconds))
        assert started("pack:fifo+backfill+reserve", 1, busy, large, small) == there


def test_a_node_with_more_gpus_than_are_planned_is_told() -> None:
    """Before: it counted as one without GPUs."""
    planner = Planner(GuardedPolicy("pack", SETTINGS), SETTINGS)
    plan = planner.plan(snapshot([make_node("n0", 160), make_node("n1", 8)], gang("g", 1, 2)))
    assert plan.refused_nodes == {"n0": "has 160 GPUs, at most 127 are planned"} and plan.nodes_without_gpus == 0


some_pods = st.lists(
    st.tuples(
        st.integers(1, 5),  # pods
        st.sampled_from([1, 2, 3, 4, 5, 8]),  # GPUs of each
        st.sampled_from(["2", "1500m", "30", "1e1"]),  # CPU
        st.sampled_from(["", "a", "b"]),  # node selector
        st.booleans(),  # tolerates the taint
        st.integers(0, 3),  # of it: bound already
        st.sampled_from(["jaxsched", "jaxsched", "jaxsched", "default-scheduler"]),
        st.sampled_from([0, 0, 10]),  # priority
        st.sampled_from([10, 10, 5000]),  # age, s: the last is late
    ),
    max_size=9,
)
some_nodes = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 3, 4, 8, 8, 8]),
        st.sampled_from(["a", "b"]),
        st.booleans(),  # cordoned
        st.booleans(),  # tainted
        st.sampled_from(["64", "10", "8e3m"]),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some_nodes, some_pods, st.randoms(use_true_random=False))
def test_plans_are_whole_and_legal(planner: Planner, machines: list, work: list, random) -> None:
    raw_nodes = [
        make_node(f"n{i}", gpus, rack=f"r{i // 2}", labels={"kind": kind},
                  spec={"unschedulable": cordoned and i % 3 == 0},
                  taints=[{"key": "t", "effect": "NoSchedule"}] if tainted and i % 2 else [], allocatable={"cpu": cpu})
        for i, (gpus, kind, cordoned, tainted, cpu) in enumerate(machines)
    ]  # fmt: skip
    raw_pods = []
    for number, (size, gpus, cpu, kind, tolerates, bound, scheduler, priority, age_s) in enumerate(work):
        spec: dict = {"priority": priority} | ({"nodeSelector": {"kind": kind}} if kind else {})
        spec |= {"tolerations": [{"operator": "Exists"}]} if tolerates else {}
        pods = gang(f"g{number}", size, gpus, requests={"cpu": cpu}, spec=spec, scheduler=scheduler, age_s=age_s)
        for pod in pods[: bound if raw_nodes else 0]:
            pod["spec"]["nodeName"] = random.choice(raw_nodes)["metadata"]["name"]
        raw_pods += pods
    shot = snapshot(raw_nodes, raw_pods)
    plan = planner.plan(shot)
    check(shot, plan)
    again = planner.plan(shot)
    assert [p.decision for p in again.placements] == [p.decision for p in plan.placements]
    without_low = dataclasses.replace(shot, pods=tuple(pod for pod in shot.pods if pod.node or pod.priority))
    assert high(planner.plan(without_low)) == high(plan)


def high(plan: Plan) -> dict[str, object]:
    """Where gangs with a priority go: nothing that waits or starts with a lower one may change it."""
    return {placed.gang.key: placed.decision for placed in plan.placements if placed.gang.priority}


def test_everything_that_fits_is_placed(planner: Planner) -> None:
    shot = snapshot(nodes(8), [pod for i in range(8) for pod in gang(f"g{i}", 2, 4)])
    plan = planner.plan(shot)
    check(shot, plan)
    assert len(plan.placements) == 8


def test_pods_larger_than_a_socket_take_whole_nodes(planner: Planner) -> None:
    shot = snapshot(nodes(4), gang("big", 2, 8))
    (placement,) = planner.plan(shot).placements
    assert len({one.node for one in placement.assignments}) == 2
    assert all(one.groups == (0, 1) for one in placement.assignments)


@pytest.mark.long
def test_nodes_of_other_sizes_do_not_take_whole_nodes_away(planner: Planner) -> None:
    """A node with 8 GPUs in one group is no reason to leave out those that have them in two."""
    shot = snapshot([*nodes(4), make_node("large", 16)], gang("big", 5, 8))
    plan = planner.plan(shot)
    check(shot, plan)
    assert len(plan.placements) == 1


@pytest.mark.long
def test_namespaces_of_gangs_placed_in_the_same_plan_are_known(planner: Planner) -> None:
    first = gang("a", 1, 1, namespace="one", spec={"priority": 5})
    plan = planner.plan(snapshot(nodes(4), [*first, *gang("b", 1, 2, namespace="two")]))
    assert len(plan.placements) == 2 and not plan.faults


def test_a_gang_that_makes_planning_raise_is_set_aside(planner: Planner, monkeypatch) -> None:
    usable = FreeCapacity.usable

    def raises(self: FreeCapacity, gang: Gang, *more) -> object:
        if gang.key.endswith("/bad"):
            raise ZeroDivisionError("one nobody thought of")
        return usable(self, gang, *more)

    monkeypatch.setattr(FreeCapacity, "usable", raises)
    pods = [pod for name in ("a", "bad", "c") for pod in gang(name, 1, 8)]
    plan = planner.plan(snapshot(nodes(2), pods))
    assert {placement.gang.key.rpartition("/")[2] for placement in plan.placements} == {"a", "c"}
    assert [fault.keys[0].rpartition("/")[2] for fault in plan.faults] == ["bad"]
    (reason,) = plan.reasons.values()
    assert reason.reason == "PlanFailed" and "ZeroDivisionError" in reason.message


def test_of_a_class_only_the_gang_that_raises_is_set_aside(planner: Planner, monkeypatch) -> None:
    place = FreeCapacity.place

    def raises(self: FreeCapacity, gang: Gang, *more) -> object:
        if gang.key.endswith("/bad"):
            raise KeyError("one nobody thought of")
        return place(self, gang, *more)

    monkeypatch.setattr(FreeCapacity, "place", raises)
    plan = planner.plan(snapshot(nodes(8), [pod for name in ("a", "bad", "c") for pod in gang(name, 2, 2)]))
    assert {placement.gang.key.rpartition("/")[2] for placement in plan.placements} == {"a", "c"}
    assert next(iter(plan.reasons.values())).reason == "PlanFailed"


def test_a_gang_larger_than_a_partition_spans_them(planner: Planner) -> None:
    shot = snapshot(nodes(8), gang("huge", 8, 8))
    (placement,) = planner.plan(shot).placements
    assert placement.by == "span" and len({one.node for one in placement.assignments}) == 8


@pytest.mark.parametrize("full", [range(4), range(4, 8)])
def test_a_gang_whose_partition_is_full_is_forwarded_in_the_same_plan(planner: Planner, full: range) -> None:
    busy = [make_pod(f"b{i}", 8, scheduler="other", node=f"n{i}", uid=f"b{i}") for i in full]
    for name in "abcdef":  # their home partitions differ
        (placement,) = planner.plan(snapshot(nodes(8), [*busy, *gang(name, 2, 4)])).placements
        assert placement.by == planner.policy.main.name


def test_other_schedulers_pods_are_counted(planner: Planner) -> None:
    foreign = [make_pod(f"f{i}", 5, scheduler="default-scheduler", node=f"n{i}", uid=f"f{i}") for i in range(8)]
    plan = planner.plan(snapshot(nodes(8), foreign + gang("g", 1, 4)))
    assert not plan.placements
    assert "8 without room" in next(iter(plan.reasons.values())).message


def test_memory_counts_too(planner: Planner) -> None:
    shot = snapshot(nodes(2), gang("g", 4, 1, requests={"memory": "200Gi"}))
    (placement,) = planner.plan(shot).placements
    assert Counter(one.node for one in placement.assignments) == {"n0": 2, "n1": 2}
    assert not planner.plan(snapshot(nodes(2), gang("g", 5, 1, requests={"memory": "200Gi"}))).placements


def test_the_rest_of_a_gang_comes_first_of_its_priority_and_keeps_a_node(planner: Planner) -> None:
    rest = gang("half", 2, 8)
    rest[0]["spec"]["nodeName"] = "n0"
    busy = make_pod("busy", 1, node="n1", uid="busy")
    plan = planner.plan(snapshot(nodes(2), [*rest, busy, *gang("small", 1, 1, age_s=999)]))
    assert not plan.placements  # n1 is kept for the rest, n0 is full
    assert next(r for k, r in plan.reasons.items() if "half" in k).reason == "GangIncomplete"
    plan = planner.plan(snapshot(nodes(2), [*rest, *gang("small", 1, 1, age_s=999)]))
    assert [placement.by for placement in plan.placements] == ["rest"]


def test_nothing_is_kept_from_higher_priorities(planner: Planner) -> None:
    busy = [make_pod(f"b{i}", 1, node=f"n{i}", uid=f"b{i}") for i in range(2)]
    rest = gang("rest", 2, 8)
    rest[0]["spec"]["nodeName"] = "n2"
    for low in (gang("late", 2, 8, age_s=planner.patience_s + 1), rest):
        (placement,) = planner.plan(
            snapshot(nodes(3), [*busy, *low, *gang("high", 2, 4, age_s=1, spec={"priority": 5})])
        ).placements
        assert "high" in placement.gang.key


def test_a_late_gang_is_not_starved(planner: Planner) -> None:
    busy = [make_pod(f"b{i}", 1, node=f"n{i}", uid=f"b{i}") for i in range(2)]
    old = gang("old", 2, 8, age_s=planner.patience_s + 1)
    plan = planner.plan(snapshot(nodes(2), [*busy, *old, *gang("new", 1, 1, age_s=1)]))
    assert not plan.placements  # both nodes are kept for the gang that is late
    assert planner.plan(snapshot(nodes(2), [*busy, *gang("old", 2, 8), *gang("new", 1, 1, age_s=1)])).placements


def test_nothing_is_kept_for_a_late_gang_that_others_pods_stand_in_the_way_of(planner: Planner) -> None:
    busy = [make_pod(f"b{i}", 1, scheduler="other", node=f"n{i}", uid=f"b{i}") for i in range(2)]
    old = gang("old", 2, 8, age_s=planner.patience_s + 1)
    (placement,) = planner.plan(snapshot(nodes(2), [*busy, *old, *gang("new", 1, 1, age_s=1)])).placements
    assert "new" in placement.gang.key


def test_helpers_go_along_and_ps_count_as_such(planner: Planner) -> None:
    pods = gang("g", 2, 4)
    pods.append(make_pod("launcher", None, "g", 2, uid="launcher"))
    pods.append(make_pod("ps", None, "g", 2, uid="ps", annotations={"jaxsched.io/role": "ps"}))
    (placement,) = planner.plan(snapshot(nodes(4), pods)).placements
    assert len(placement.assignments) == 4 and len(placement.gang.ps) == len(placement.gang.helpers) == 1


def test_no_nodes_and_no_pods(planner: Planner) -> None:
    assert not planner.plan(snapshot([])).placements
    assert not planner.plan(snapshot([], gang("g", 1, 1))).placements
    plan = planner.plan(snapshot([make_node("cpu", None), *nodes(1)], gang("g", 1, 1)))
    assert plan.nodes_without_gpus == 1 and len(plan.placements) == 1


def test_nodes_that_join_do_not_compile_anew_until_there_is_no_room(planner: Planner) -> None:
    planner.plan(snapshot(nodes(8)))
    count = planner.policy.compilations
    for size in (3, 9, 12):
        plan = planner.plan(snapshot(nodes(size), gang("g", size, 8)))
        assert len(plan.placements) == 1
    assert planner.policy.compilations == count


def test_higher_priority_goes_first(planner: Planner) -> None:
    low = gang("low", 1, 8, age_s=100)
    high = gang("high", 1, 8, age_s=1, spec={"priority": 5})
    (placement,) = planner.plan(snapshot(nodes(1), [*low, *high])).placements
    assert "high" in placement.gang.key


def test_more_gangs_than_queues_hold_go_before_lower_priorities(planner: Planner) -> None:
    """Two queues of 8 places, 40 gangs: the 24 others must not be overtaken by what may wait."""
    high = [pod for i in range(40) for pod in gang(f"h{i}", 1, 1, age_s=1, spec={"priority": 5})]
    low = [pod for i in range(40) for pod in gang(f"l{i}", 1, 1, age_s=100)]
    placed = [placement.gang.priority for placement in planner.plan(snapshot(nodes(8), high + low)).placements]
    assert placed == [5] * 40 + [0] * 24


def test_nothing_goes_before_gangs_for_which_no_decision_was_left(planner: Planner, monkeypatch) -> None:
    monkeypatch.setattr(planner, "settings", dataclasses.replace(SETTINGS, max_decisions=1))
    high = [pod for i in range(4) for pod in gang(f"h{i}", 1, 1, age_s=1, spec={"priority": 5})]
    rest = gang("rest", 2, 1)
    rest[0]["spec"]["nodeName"] = "n0"
    plan = planner.plan(snapshot(nodes(8), [*high, *gang("huge", 8, 6), *rest]))
    assert {placement.gang.priority for placement in plan.placements} == {5} and len(plan.placements) < 4
    assert {reason.reason for reason in plan.reasons.values()} == {"PlanFull"}


class Broken:
    """A planning policy that cannot be trusted."""

    def __init__(self, cause: str) -> None:
        self.cause = cause

    def covers(self, fleet: object) -> bool:
        return True

    def begin(self, *_: object) -> "Broken":
        return self

    def decide(self, free: object, seed: int) -> None:
        raise PolicyError(self.cause) if self.cause != "error" else RuntimeError("bad")


@pytest.mark.parametrize("cause", ["nan", "error"])
def test_a_failing_policy_is_replaced_by_the_fallback(
    planner: Planner, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner.policy, "_rule", Broken(cause))
    shot = snapshot(nodes(4), gang("g", 2, 4))
    plan = planner.plan(shot)
    check(shot, plan)
    assert plan.policy_failures == (cause,) and plan.placements[0].by == "pack:fifo+backfill+forward"


def test_a_slow_policy_is_replaced_too(planner: Planner) -> None:
    policy = planner.policy
    policy.timeout_s, old = 0.0, policy.timeout_s
    try:
        plan = planner.plan(snapshot(nodes(4), gang("g", 2, 4)))
    finally:
        policy.timeout_s = old
    assert plan.policy_failures == ("timeout",) and len(plan.placements) == 1


@pytest.mark.long
def test_nan_in_the_policy_is_noticed() -> None:
    """Through the compiled program: weights that turn into NaN at work, not a raised error."""
    import jax.numpy as jnp

    from jaxsched.policies.policy import Policy
    from jaxsched.policies.registry import parse

    def act(key, state, params, weights):
        action = parse("pack")(key, state, params)
        broken = jnp.log(-1.0 - state.total.sum() ** 2)
        return action.replace(kind=jnp.where(broken > 0, action.kind, 0))

    plan = Planner(GuardedPolicy(Policy("broken", act), SETTINGS), SETTINGS).plan(snapshot(nodes(2), gang("g", 1, 1)))
    assert plan.policy_failures == ("nan",) and len(plan.placements) == 1


def test_the_ledger_sees_running_gangs_in_their_groups(planner: Planner) -> None:
    bound = gang("g", 2, 4, node="n0")
    bound[0]["metadata"]["annotations"]["jaxsched.io/gpu-group"] = "1"
    from jaxsched.kube.capacity.ledger import Ledger

    fleet = planner.fleet([read_node(one) for one in nodes(2)])
    ledger = Ledger(fleet, [read_pod(one) for one in bound], GPU)
    row = ledger.row["n0"]
    assert ledger.reserved[bound[0]["metadata"]["uid"]][1].tolist() == [0, 4]
    assert np.array_equal(ledger.group_free[row], [0, 0])
    ledger.release(read_pod(bound[0]))
    assert np.array_equal(ledger.group_free[row], [0, 4])
