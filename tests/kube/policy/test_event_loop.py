"""Rules decide on a live cluster as they do in the simulator's environment, and need no JAX program for it."""

import dataclasses
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from jaxsched.env.state import wait_action
from jaxsched.errors import UserError
from jaxsched.kube.capacity.fleet import read_fleet
from jaxsched.kube.capacity.free_capacity import FreeCapacity
from jaxsched.kube.capacity.ledger import find_running_parts
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import EventLoopPolicy, GuardedPolicy, JaxProgram, build_arrays
from jaxsched.kube.read.gangs import form_gangs
from jaxsched.kube.read.objects import read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot
from jaxsched.kube.whatif.forecast import forecast_starts
from jaxsched.kube.whatif.rollouts import Question
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from tests.support.cases import TIMES, few
from tests.support.kube.objects import NOW, make_node, make_pod

SETTINGS = PlanSettings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0)


def nodes(count: int = 8) -> list[dict]:
    return [make_node(f"n{i}", rack=f"r{i // 2}", block=f"b{i // 4}") for i in range(count)]


def drawn_pods(draw: random.Random) -> tuple[list[dict], list[dict]]:
    """Pods that run, and pods that wait."""
    running, waiting = [], []
    models = ("resnet50", "vgg16", "bert-base")
    for number in range(draw.randint(0, 6)):
        notes = {"jaxsched.io/model": draw.choice(models), "jaxsched.io/duration-seconds": str(draw.randint(50, 5000))}
        size, gpus = draw.choice((1, 2, 3)), draw.choice((1, 2, 4))
        running += [
            make_pod(f"r{number}-{i}", gpus, f"r{number}", size, uid=f"r{number}-{i}", node=f"n{draw.randrange(8)}",
                     age_s=draw.randint(1, 3000), annotations=notes)
            for i in range(size)
        ]  # fmt: skip
    for number in range(draw.randint(1, 8)):
        notes = {"jaxsched.io/model": draw.choice(models), "jaxsched.io/duration-seconds": str(draw.randint(50, 5000))}
        size, gpus = draw.choice((1, 1, 2, 4, 6)), draw.choice((1, 2, 4))
        age = draw.randint(1, 900)
        waiting += [
            make_pod(f"g{number}-{i}", gpus, f"g{number}", size, uid=f"g{number}-{i}", age_s=age, annotations=notes)
            for i in range(size)
        ]
    return running, waiting


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    few(
        ["pack:area+backfill+reserve+forward", "pack:sjf+backfill+spread"],
        ["greedy-wait:p1", "pack:area+backfill+reserve+forward", "pack:sjf+backfill+spread"],
    ),
)
def test_a_rule_decides_round_by_round_as_its_jax_program(name: str) -> None:
    planner = Planner(GuardedPolicy("pack", SETTINGS), SETTINGS)
    fleet = planner.fleet([read_node(one) for one in nodes()])
    rule, program = EventLoopPolicy(parse(name), SETTINGS), JaxProgram(parse(name), SETTINGS, fleet)
    assert rule.covers(fleet)
    placed = rounds = 0
    for seed in range(30 * TIMES):
        draw = random.Random(seed)
        running, waiting = drawn_pods(draw)
        merged = draw.random() < 0.3
        pods = [read_pod(one) for one in running]
        capacity = FreeCapacity(fleet, (), pods, SETTINGS)
        parts = find_running_parts(fleet, capacity.ledger, pods, SETTINGS, NOW)
        gangs = form_gangs([read_pod(one) for one in waiting], (), frozenset(), SETTINGS, NOW)
        half = draw.randint(0, len(gangs))
        queues = [gangs[:half], gangs[half:]]
        arrays, _ = build_arrays(fleet, SETTINGS, queues, parts, {"default": 0}, merged, NOW)
        free = fleet.by_slot(np.maximum(capacity.ledger.group_free, 0))
        if merged:
            free = np.concatenate([free.sum(-1, keepdims=True), np.zeros_like(free[..., 1:])], -1).astype(np.int32)
        ours, theirs = rule.begin(fleet, arrays, merged), program.begin(fleet, arrays, merged)
        for number in range(20):
            one, other = ours.decide(free, number), theirs.decide(free, number)
            assert one.placed.tolist() == other.placed.tolist() and one.moved == other.moved, (seed, number)
            for p in np.flatnonzero(one.placed):
                assert one.row[p] == other.row[p], (seed, number)
                assert np.array_equal(one.workers[p], other.workers[p]), (seed, number)
                assert np.array_equal(one.ps[p], other.ps[p]), (seed, number)
                free[p] -= one.workers[p] * int(arrays.jobs.gpus_per_worker[one.row[p]])
            placed, rounds = placed + int(one.placed.sum()), rounds + 1
            if not one.moved:
                break
    assert placed > 40 and rounds > placed / 2


COLD = """
import resource, sys
import jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.plan.planner import Planner
from tests.kube.policy.test_event_loop import SETTINGS, Snapshot, gang_of, nodes, read_node, read_pod
pods = tuple(read_pod(one) for one in gang_of("g", 4, 2))
planner = Planner(GuardedPolicy("greedy-wait", SETTINGS, beside=True), SETTINGS)
plan = planner.plan(Snapshot(now_s=1.8e9, nodes=tuple(read_node(one) for one in nodes(200)), pods=pods))
used = resource.getrusage(resource.RUSAGE_SELF)
print(len(plan.placements), plan.placements[0].by, len([e for e in compiled if "backend_compile" in e]))
print(used.ru_utime + used.ru_stime)
"""


def gang_of(name: str, size: int, gpus: int) -> list[dict]:
    return [make_pod(f"{name}-{i}", gpus, name, size, uid=f"{name}-{i}") for i in range(size)]


@pytest.mark.slow
def test_a_rule_is_ready_within_ten_cpu_seconds_and_compiles_nothing(tmp_path) -> None:
    environment = {**os.environ, "JAXSCHED_CACHE": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", COLD], env=environment, check=True, capture_output=True, text=True)
    placed, cpu_s = out.stdout.splitlines()
    assert placed == "1 greedy-wait 0" and float(cpu_s) < 10.0


@pytest.mark.long
def test_what_is_no_rule_is_compiled_beside_and_the_fallback_decides_until_then() -> None:
    """And so it is again for a fleet of another shape, also where compiling fails."""
    gate, ready, broken = threading.Event(), threading.Event(), threading.Event()

    def act(key, state, params, weights):
        assert gate.wait(60) and not broken.is_set()  # while it is traced
        return parse("first-fit").function(key, state, params, weights)

    policy = GuardedPolicy(Policy("slow", act), SETTINGS, beside=True, on_ready=ready.set)
    planner = Planner(policy, SETTINGS)

    def decided_by(count: int = 8) -> str:
        pods = tuple(read_pod(one) for one in gang_of("g", 2, 2))
        shot = Snapshot(now_s=NOW, nodes=tuple(read_node(one) for one in nodes(count)), pods=pods)
        (placement,) = planner.plan(shot).placements
        return placement.by

    assert decided_by() == decided_by() == policy.fallback.name and policy.compilations == 0
    gate.set()
    assert ready.wait(120)
    assert decided_by() == "slow" and policy.compilations == 1
    gate.clear()
    ready.clear()
    assert decided_by(64) == policy.fallback.name
    broken.set()
    gate.set()
    assert ready.wait(60)
    assert decided_by(64) == policy.fallback.name and policy.compilations == 1


def test_other_racks_are_no_other_arrays() -> None:
    """Eight nodes in two racks, each in a rack of its own, all in one, and in other blocks."""
    small = dataclasses.replace(SETTINGS, headroom=1.0)
    for settings in (SETTINGS, small):
        shapes = set()
        planner = Planner(GuardedPolicy("pack", settings), settings)
        for per_rack, per_block in ((4, 8), (1, 8), (8, 8), (2, 4), (1, 1)):
            raw = [make_node(f"n{i}", rack=f"r{i // per_rack}", block=f"b{i // per_block}") for i in range(8)]
            shapes.add(planner.fleet([read_node(one) for one in raw]).shape)
        assert len(shapes) == 1


def never(key, state, params, weights):
    return wait_action(params.cluster)


def test_another_act_under_a_rules_name_is_not_played_as_the_rule() -> None:
    """Before: the event loop played `pack`, which the policy was made from."""
    policy = dataclasses.replace(parse("pack"), act=never)
    shot = Snapshot(NOW, tuple(map(read_node, nodes())), tuple(map(read_pod, gang_of("g", 4, 2))))
    fleet = read_fleet(shot.nodes, SETTINGS)
    assert EventLoopPolicy(parse("pack"), SETTINGS).covers(fleet)
    assert not EventLoopPolicy(policy, SETTINGS).covers(fleet)
    with pytest.raises(UserError, match="pack cannot be played here"):
        forecast_starts(shot, [policy], SETTINGS, Question())


@pytest.mark.long
def test_another_act_under_a_rules_name_is_what_decides() -> None:
    another = dataclasses.replace(parse("pack"), act=never)
    with pytest.raises(UserError, match="'pack': does something else than the policy of this name"):
        GuardedPolicy(another, SETTINGS)
    policy = GuardedPolicy(dataclasses.replace(another, name="never-places"), SETTINGS)
    shot = Snapshot(NOW, tuple(map(read_node, nodes())), tuple(map(read_pod, gang_of("g", 4, 2))))
    plan = Planner(policy, SETTINGS).plan(shot)
    assert policy.compilations == 1 and not plan.placements  # a JAX program, not the loop
    assert [reason.reason for reason in plan.reasons.values()] == ["PolicyWaits"]
