"""When pending gangs start: hand-made clusters whose answers are known."""

import dataclasses

import numpy as np
import pytest
from jax.scipy.special import ndtr

from jaxsched.errors import UserError
from jaxsched.kube.read.manifest import manifest_pods
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot
from jaxsched.kube.whatif.forecast import Forecast, forecast_starts
from jaxsched.kube.whatif.question import Question, draw_durations
from jaxsched.policies.registry import parse
from tests.kube.snapshots import gang, nodes, snapshot
from tests.kube.whatif import test_calibration as days
from tests.support.kube.objects import NOW

SETTINGS = PlanSettings(schedulers=1)
SURE = Question(draws=3, error=0.0)
KEY = "default/scheduling.x-k8s.io/{}"
ALL = 32  # GPUs of four nodes


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
            # Not to the second: how much slower than now the running gangs were before is not in a snapshot.
            assert answer.median_s == pytest.approx(then_s, rel=0.05, abs=30.0)
            asked += 1
    assert asked >= 10


@pytest.mark.parametrize("name", ["pack:las+preempt", "qssf", "random"])
def test_policies_that_cannot_be_played_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="--policies"):
        ask(snapshot(nodes(4), gang("g", 4, 8)), name)
