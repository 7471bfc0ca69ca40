"""When pending gangs start: hand-made clusters whose answers are known."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from jax.scipy.special import ndtr

from jaxsched.errors import UserError
from jaxsched.event_loop import coverage
from jaxsched.io.yaml_file import read_yaml_documents
from jaxsched.kube.capacity.fleet import unknown_products
from jaxsched.kube.cluster.record import read_recording
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.manifest import manifest_pods
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot
from jaxsched.kube.whatif import rollouts
from jaxsched.kube.whatif.forecast import Forecast, forecast_starts
from jaxsched.kube.whatif.recorded import read_snapshot
from jaxsched.kube.whatif.rollouts import Question, draw_durations
from jaxsched.policies.registry import parse
from tests.kube.snapshots import gang, nodes, snapshot
from tests.kube.whatif import test_calibration as days
from tests.support.kube.objects import NOW, make_node, make_pod

SETTINGS = PlanSettings(schedulers=1)
SURE = Question(draws=3, error=0.0)
KEY = "default/scheduling.x-k8s.io/{}"
ALL = 32  # GPUs of four nodes


def with_host(node: dict) -> dict:
    return node["metadata"]["labels"] | {"kubernetes.io/hostname": node["metadata"]["name"]}


def lasting(seconds: float, **more) -> dict:
    return {"annotations": {"jaxsched.io/duration-seconds": f"{seconds:g}"}} | more


def running(name: str, seconds: float, elapsed_s: float, first: int = 0, count: int = 4) -> list[dict]:
    """A gang that fills these nodes, with the slowdown of an ideal placement."""
    pods = gang(name, count, 8, age_s=elapsed_s, **lasting(seconds))
    return [pod | {"spec": pod["spec"] | {"nodeName": f"n{first + i}"}} for i, pod in enumerate(pods)]


def ask(shot: Snapshot, *policies: str, question: Question = SURE, settings: PlanSettings = SETTINGS) -> list[Forecast]:
    return forecast_starts(shot, [parse(one) for one in policies or ("pack",)], settings, question)


def of(found: list[Forecast], name: str) -> Forecast:
    return next(answer for answer in found if answer.gang.key == KEY.format(name))


def times(answer: Forecast) -> tuple:
    return answer.low_s, answer.median_s, answer.high_s


@pytest.mark.parametrize("policy", ["pack", "greedy-wait", "first-fit:sjf+backfill"])
def test_it_starts_when_the_gang_that_holds_all_gpus_ends(policy: str) -> None:
    alone = [*running("r", 1000, 400), *gang("g", 4, 8, **lasting(300))]
    answer = of(ask(snapshot(nodes(4), alone), policy), "g")
    assert times(answer) == (600.0, 600.0, 600.0)
    assert answer.nodes == ("n0", "n1", "n2", "n3") and answer.behind == () and answer.reason is None
    assert answer.waits_s == 60.0


def draw_case(number: int) -> Snapshot:
    """Up to six nodes of 8 GPUs, some taken, and two to seven gangs that wait, some of whole nodes."""
    rng = np.random.default_rng(number)
    count, pods = int(rng.integers(1, 7)), []
    for node, gpus in enumerate(rng.choice([0, 1, 2, 3, 4, 8], count)):
        pods += [] if not gpus else gang(f"r{node}", 1, int(gpus), node=f"n{node}", age_s=60.0, **lasting(900 + node))
    for name in range(int(rng.integers(2, 8))):
        size, gpus = ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 8), (2, 8), (4, 2))[rng.integers(8)]
        seconds, age_s = rng.integers(60, 9000), float(rng.integers(10, 500))
        pods += gang(f"g{name}", size, gpus, age_s=age_s, **lasting(seconds))
    return snapshot(nodes(count), pods)


@pytest.mark.parametrize("policy", ["pack", "pack:sjf+backfill", "pack:fifo+backfill+reserve"])
def test_who_starts_now_is_who_is_planned(policy: str) -> None:
    """Before: not in one of six such cases, where pods of whole nodes and smaller ones wait."""
    planner = Planner(GuardedPolicy(policy, SETTINGS), SETTINGS)
    for number in range(25):
        shot = draw_case(number)
        planned = {placement.gang.key for placement in planner.plan(shot).placements}
        assert planned == {answer.gang.key for answer in ask(shot, policy) if answer.median_s == 0.0}, number


def test_a_higher_priority_goes_before_it_whatever_the_order_of_the_queue() -> None:
    high = gang("h", 4, 8, age_s=1.0, **lasting(200, spec={"priority": 5}))
    shot = snapshot(nodes(4), [*running("r", 1000, 400), *gang("g", 4, 8, **lasting(100)), *high])
    for policy in ("pack", "greedy-wait", "pack:sjf+backfill"):
        found = ask(shot, policy)
        assert times(of(found, "h")) == (600.0, 600.0, 600.0)
        assert times(of(found, "g")) == (800.0, 800.0, 800.0)
        assert of(found, "g").behind == (KEY.format("h"),)
        assert [answer.gang.key for answer in found] == [KEY.format("h"), KEY.format("g")]


def test_policies_differ_as_their_orders_do() -> None:
    waiting = [*gang("long", 4, 8, age_s=90.0, **lasting(900)), *gang("short", 4, 8, **lasting(100))]
    found = ask(snapshot(nodes(4), [*running("r", 1000, 400), *waiting]), "pack", "pack:sjf+backfill")
    assert [(answer.policy, answer.median_s) for answer in found] == [
        ("pack", 600.0),
        ("pack", 1500.0),
        ("pack:sjf+backfill", 700.0),
        ("pack:sjf+backfill", 600.0),
    ]


def test_what_fits_starts_now_and_what_never_fits_says_why() -> None:
    waiting = [*gang("now", 2, 8), *gang("never", 5, 8)]
    found = ask(snapshot(nodes(4), [*running("r", 1000, 400, count=2), *waiting]))
    assert times(of(found, "now")) == (0.0, 0.0, 0.0) and of(found, "now").nodes == ("n2", "n3")
    never = of(found, "never")
    assert times(never) == (None, None, None) and never.reason is not None
    assert never.reason.reason == "LargerThanCluster"


def test_a_start_beyond_the_horizon_is_told_with_the_planners_reason() -> None:
    shot = snapshot(nodes(4), [*running("r", 1000, 400), *gang("g", 4, 8)])
    answer = of(ask(shot, question=dataclasses.replace(SURE, horizon_s=300.0)), "g")
    assert times(answer) == (np.inf, np.inf, np.inf) and answer.nodes == () and answer.reason is not None
    assert answer.reason.reason == "Insufficient" and "0 fit now" in answer.reason.message


def test_nodes_that_no_pod_may_go_to_are_no_help() -> None:
    raw = [*nodes(4), *({**node, "spec": {"unschedulable": True}} for node in nodes(8)[4:])]
    shot = snapshot(raw, [*running("r", 1000, 400), *running("s", 500, 400, first=4), *gang("g", 4, 8)])
    assert times(of(ask(shot), "g")) == (600.0, 600.0, 600.0)


def test_pods_that_are_deleted_end_with_their_grace_period() -> None:
    """Before: with the run time that they had stated."""
    pods = running("r", 3600, 60)
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW + 30))
    pods = [pod | {"metadata": pod["metadata"] | {"deletionTimestamp": ends}} for pod in pods]
    answer = of(ask(snapshot(nodes(4), [*pods, *gang("g", 4, 8, **lasting(300))])), "g")
    assert times(answer) == (30.0, 30.0, 30.0)


def test_what_others_are_promised_and_whom_they_keep_away() -> None:
    """As the planner has it. Before: such a gang would have started now."""
    promised = make_pod("o", 8, scheduler="other", uid="o") | {
        "status": {"phase": "Pending", "nominatedNodeName": "n0"}
    }
    mine = gang("g", 1, 8, labels={"team": "b"}, **lasting(300))
    answer = of(ask(snapshot(nodes(1), [promised, *mine])), "g")
    assert answer.median_s is not None and answer.median_s > 1000.0
    term = {"labelSelector": {"matchLabels": {"team": "b"}}, "topologyKey": "kubernetes.io/hostname"}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    guard = make_pod("a", 1, uid="a", node="n0", spec={"affinity": alone})
    machines = [node | {"metadata": node["metadata"] | {"labels": with_host(node)}} for node in nodes(1)]
    answer = of(ask(snapshot(machines, [guard, *gang("g", 1, 1, labels={"team": "b"}, **lasting(300))])), "g")
    assert answer.median_s is None and answer.reason.reason == "NoNodeAllowed"


def test_cordoned_nodes_are_the_reason_where_they_are() -> None:
    """Before: others were said to hold CPU or memory, and nobody did."""
    machines = nodes(2)
    machines[1] |= {"spec": machines[1].get("spec", {}) | {"unschedulable": True}}
    answer = of(ask(snapshot(machines, gang("g", 2, 8, **lasting(300)))), "g")
    assert answer.median_s is None and answer.reason.reason == "NodesUnusable"


def test_pools_of_nodes_are_apart_and_overlapping_ones_say_so() -> None:
    raw = [node | {"metadata": node["metadata"] | {"labels": {"pool": str(i // 4)}}} for i, node in enumerate(nodes(8))]
    busy = [*running("r", 1000, 400), *running("s", 700, 400, first=4)]
    a, b = (gang(name, 4, 8, spec={"nodeSelector": {"pool": str(i)}}) for i, name in enumerate("ab"))
    found = ask(snapshot(raw, [*busy, *a, *b]))
    assert [of(found, name).median_s for name in "ab"] == [600.0, 300.0]
    assert of(found, "b").nodes == ("n4", "n5", "n6", "n7")
    found = ask(snapshot(raw, [*busy, *a, *gang("any", 4, 8)]))
    assert of(found, "a").median_s is None and of(found, "any").median_s is not None
    reason = of(found, "a").reason
    assert reason is not None and reason.reason == "NotSimulated"


def test_a_gang_that_may_use_some_gpu_types_only_waits_for_these() -> None:
    """The others wait for all nodes; before, nothing was said of it."""
    label, types = "nvidia.com/gpu.product", ["Tesla-T4", "Tesla-T4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"]
    mixed = [make_node(f"n{i}", labels={label: product}) for i, product in enumerate(types)]
    here = lambda product: {"spec": {"nodeSelector": {label: product}}}
    pods = [
        *running("r", 1000, 400, first=2, count=2),
        *gang("any", 1, 8, age_s=50.0, **lasting(100)),
        *gang("fast", 2, 8, age_s=40.0, **lasting(100, **here(types[2]))),
        *gang("slow", 1, 8, age_s=30.0, **lasting(100, **here(types[0]))),
    ]
    found = ask(snapshot(mixed, pods), "pack:backfill")
    assert of(found, "slow").nodes in (("n0",), ("n1",)) and of(found, "slow").median_s == 0.0
    assert of(found, "fast").nodes == ("n2", "n3") and 0.0 < (of(found, "fast").median_s or 0.0) < np.inf
    assert of(found, "any").reason is None


def test_draws_are_those_of_the_law_and_the_same_beside_other_gangs_and_policies() -> None:
    drawn = draw_durations("one", 1000.0, 0.0, 0.5, 4000, seed=1)
    assert np.array_equal(drawn, draw_durations("one", 1000.0, 0.0, 0.5, 4000, seed=1))
    rank = ndtr(np.log(np.sort(drawn) / 1000.0) / 0.5)  # uniform
    assert np.abs(rank - (np.arange(4000) + 0.5) / 4000).max() < 1.63 / np.sqrt(4000)  # Kolmogorov, 1%
    late = draw_durations("one", 1000.0, 1500.0, 0.5, 4000, seed=1)
    over = 1.0 - ndtr(np.log(1.5) / 0.5)
    rank = 1.0 - (1.0 - ndtr(np.log(np.sort(late) / 1000.0) / 0.5)) / over
    assert late.min() >= 1500.0 and np.abs(rank - (np.arange(4000) + 0.5) / 4000).max() < 1.63 / np.sqrt(4000)
    forgotten = draw_durations("one", 1.0, 1e9, 0.1, 10, seed=1)
    assert np.isfinite(forgotten).all() and (forgotten > 1e9).all()
    unsure = Question(draws=40)
    shot = snapshot(nodes(4), [*running("r", 1000, 400), *gang("g", 4, 8)])
    more = dataclasses.replace(shot, pods=(*shot.pods, *snapshot([], gang("late", 4, 8, age_s=1.0)).pods))
    one, two = of(ask(shot, question=unsure), "g"), of(ask(more, "first-fit", question=unsure), "g")
    assert times(one) == times(two)
    ends = np.sort(np.ceil((draw_durations(KEY.format("r"), 1000.0, 400.0, 0.5, 40, 0) - 400.0) / 10.0) * 10.0)
    assert times(one) == (ends[1], ends[19], ends[37])


def test_a_job_that_is_not_submitted_stands_behind_those_that_wait() -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    job = {
        "kind": "Job",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {"parallelism": 4, "completions": 4, "template": {"spec": {"containers": [container]}}},
    }
    pods = manifest_pods([job], "job.yaml", NOW, SETTINGS, 0)
    assert [pod.name for pod in pods] == ["mine-0", "mine-1", "mine-2", "mine-3"]
    shot = snapshot(nodes(4), [*running("r", 1000, 400), *gang("g", 4, 8, **lasting(100))])
    found = ask(dataclasses.replace(shot, pods=(*shot.pods, *pods)))
    assert [answer.median_s for answer in found] == [600.0, 700.0] and found[1].behind == (KEY.format("g"),)
    high = manifest_pods([job], "job.yaml", NOW, SETTINGS, 7)
    found = ask(dataclasses.replace(shot, pods=(*shot.pods, *high)))
    assert found[0].gang.namespace == "team" and [answer.median_s for answer in found] == [600.0, 4200.0]


def test_it_says_again_what_the_simulator_did_when_run_times_are_certain() -> None:
    asked = 0
    for seed, policy in enumerate(("pack", "pack:sjf+backfill+reserve+forward", "greedy-wait")):
        jobs, at_s = days.drawn_jobs(seed), 0.4 * days.DAY_S // days.INTERVAL_S * days.INTERVAL_S
        known = days.first(jobs, int((jobs.arrival * days.INTERVAL_S <= at_s).sum()))
        day = days.played(known.replace(duration_s=known.estimate_s), policy, in_python=True)
        for answer in ask(days.seen(day, at_s), policy, settings=days.SETTINGS):
            then_s = day.start_s[int(answer.gang.key[-4:])] - at_s
            # Not to the second: how much slower than now the running gangs were before is not in a snapshot. Nor are
            # the true ends, by which `greedy-wait` waits.
            assert answer.median_s == pytest.approx(then_s, rel=0.05, abs=60.0 if policy == "greedy-wait" else 30.0)
            asked += 1
    assert asked >= 10


@pytest.mark.parametrize("name", ["pack:las+preempt", "qssf", "random"])
def test_policies_that_cannot_be_played_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="--policies"):
        ask(snapshot(nodes(4), gang("g", 4, 8)), name)


def product(name: str, number: int) -> dict:
    return make_node(f"n{number}", labels={"nvidia.com/gpu.product": name} if name else {})


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-GeForce-RTX-2080-Ti", "n0"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "NVIDIA-H100-80GB-HBM3", "n1"),
        ("Tesla-K80", "NVIDIA-H100-80GB-HBM3", "n1"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "Tesla-V100-SXM2-16GB", "n1"),
        ("NVIDIA-X900", "Tesla-T4", "n1"),
        ("", "Tesla-T4", "n1"),
    ],
)
def test_the_faster_gpu_is_taken(first: str, second: str, chosen: str) -> None:
    """Before: products that were not known counted as a B200, and a slice of a GPU as all of it."""
    shot = snapshot([product(first, 0), product(second, 1)], gang("g", 1, 1))
    assert of(ask(shot, "pack"), "g").nodes == (chosen,)
    words = unknown_products(shot.nodes, SETTINGS)
    assert bool(words) == (first in ("", "NVIDIA-X900")) and "\n" not in words


def test_speeds_of_ones_own_are_taken() -> None:
    shot = snapshot([product("NVIDIA-X900", 0), product("NVIDIA-B200", 1)], gang("g", 1, 1))
    own = dataclasses.replace(SETTINGS, gpu_speeds={"X900": 9.0})
    assert of(ask(shot, settings=own), "g").nodes == ("n0",) and not unknown_products(shot.nodes, own)


def test_a_resource_that_no_node_has_is_told() -> None:
    """Before: now."""
    answer = of(ask(snapshot(nodes(2), gang("g", 1, 1, requests={"rdma/hca": "1"}))), "g")
    assert times(answer) == (None, None, None) and answer.reason is not None
    assert answer.reason.message == "no node has rdma/hca, which pod default/g-0 asks for"


def test_memory_that_others_hold_is_told() -> None:
    """Before: now. A pod without GPUs never ends in the simulation; one with GPUs does, but holds memory until then."""
    asks = gang("g", 1, 4, requests={"memory": "300Gi"})
    for gpus, words in (
        (None, "of its 1 workers 0 fit even when all pods with GPUs have ended"),
        (1, "GPUs are free, but not enough memory: "),
    ):
        holds: dict = {"node": "n0", "requests": {"memory": "400Gi"}, "scheduler": "default-scheduler"}
        other = make_pod("other", gpus, uid="other", **holds)
        answer = of(ask(snapshot(nodes(1), [other, *asks])), "g")
        assert answer.median_s is None and answer.reason is not None and words in answer.reason.message, gpus
        answer = of(ask(snapshot(nodes(2), [other, *asks])), "g")
        assert (answer.nodes == ("n1",)) if gpus is None else (answer.beyond_gpus == ("memory",))


def test_resources_that_may_run_out_before_gpus_are_named() -> None:
    """Half of the GPUs and three quarters of the memory each: the planner starts one, the simulation both."""
    asks = [*gang("a", 1, 4, requests={"memory": "380Gi"}), *gang("b", 1, 4, requests={"memory": "380Gi"})]
    found = ask(snapshot(nodes(1), asks))
    assert [answer.beyond_gpus for answer in found] == [("memory",), ("memory",)]
    assert of(ask(snapshot(nodes(1), gang("g", 1, 4))), "g").beyond_gpus == ()


@pytest.mark.slower
@pytest.mark.parametrize("policy", ["pack", "greedy-wait"])
def test_without_numba_it_is_played_in_python(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: an AssertionError."""
    shot = snapshot(nodes(4), [*running("r", 1000, 400), *gang("g", 4, 8)])
    many = Question(draws=20, error=0.1)
    monkeypatch.setattr(rollouts, "FEW_JOBS", 0)
    before = times(of(ask(shot, policy, question=many), "g"))
    for module in (rollouts, coverage):
        monkeypatch.setattr(module, "numba_missing", lambda: "it needs Numba")
    assert times(of(ask(shot, policy, question=many), "g")) == before


CASES = Path(__file__).parents[4] / "shared" / "cases" / "kube"


@pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases is not here")
@pytest.mark.parametrize("policy", ["pack", "greedy-wait"])
@pytest.mark.parametrize("recording", sorted(CASES.glob("rec_*.jsonl")), ids=lambda path: path.stem)
def test_the_cases_get_true_answers(recording: Path, policy: str) -> None:
    shot = read_snapshot(read_recording(recording))
    for path in sorted(CASES.glob("*.yaml")):
        pods = manifest_pods(read_yaml_documents(path, "the page"), str(path), shot.now_s, SETTINGS, 0)
        [answer] = ask(dataclasses.replace(shot, pods=pods), policy)
        if "rdma" in path.stem:
            assert answer.median_s is None and answer.reason is not None and "rdma/hca" in answer.reason.message
        else:
            assert times(answer) == (0.0, 0.0, 0.0) and answer.nodes == ("h100-0",), path


@pytest.mark.parametrize(("policy", "starts_s"), [("pack:fifo+backfill", 0.0), ("pack:fifo+backfill+racks", 600.0)])
def test_whole_racks_are_waited_for(policy, starts_s):
    """Three NVL72 racks with six trays in use each; of the last one they end in 600 s."""
    there = [make_node(f"n{i:02}", 4, labels={"nvidia.com/gpu.clique": f"c.{i // 18}"}) for i in range(54)]
    pods = []
    for rack in range(3):
        small = gang(f"s{rack}", 6, 4, age_s=400.0, **lasting(1000.0 if rack == 2 else 9000.0))
        pods += [pod | {"spec": pod["spec"] | {"nodeName": f"n{18 * rack + i:02}"}} for i, pod in enumerate(small)]
    pods += gang("large", 16, 4, **lasting(300.0))
    settings = PlanSettings(domain_block=16, topology=("nvidia.com/gpu.clique",))
    (answer,) = ask(snapshot(there, pods), policy, settings=settings)
    assert answer.median_s == pytest.approx(starts_s, abs=10.0)
