"""The clocks of this machine and of the API server are hours apart."""

import dataclasses
import time

import pytest

from jaxsched.kube.cluster.api import ServerClock
from jaxsched.kube.read.objects import parse_time
from tests.support.kube.objects import make_pod
from tests.support.kube.turns import bound, turn


def owned(world, uid: str) -> dict:
    """A pod of a controller that does not say how many it wants."""
    raw = make_pod(world.name(), 1)
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "name": uid, "uid": uid, "controller": True}
    raw["metadata"]["ownerReferences"] = [owner]
    return world.make("/api/v1/namespaces/default/pods", raw)


@pytest.mark.parametrize("hours", [-5, 5])
def test_ages_and_settling_go_by_the_servers_clock(world, start, monkeypatch, hours: int) -> None:
    """Before: behind the server a gang never settles, ahead of it it is old, and late, at once."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600.0 * hours)
    world.node()
    scheduler = start()
    uid = world.name("u")
    pods = [owned(world, uid) for _ in range(2)]
    now, made = scheduler.snapshot().now_s, parse_time(pods[1]["metadata"]["creationTimestamp"])
    assert made is not None and -2.0 < now - made < 30.0
    slow = dataclasses.replace(scheduler.planner.settings, settle_s=600.0)
    monkeypatch.setattr(scheduler.planner, "settings", slow)
    turn(scheduler, lambda: any("newest pod is under" in str(c) for c in conditions(world, pods[0])))
    assert bound(world, pods) == 0
    quick = dataclasses.replace(scheduler.planner.settings, settle_s=0.5)
    monkeypatch.setattr(scheduler.planner, "settings", quick)
    turn(scheduler, lambda: bound(world, pods) == 2)
    (waited,) = [one for one in scheduler.metrics.gang_s.collect()[0].samples if one.name.endswith("_sum")]
    assert 0.0 <= waited.value < 60.0
    stamps = [condition["lastTransitionTime"] for condition in conditions(world, pods[0])]
    assert all(abs((parse_time(stamp) or 0.0) - now) < 60.0 for stamp in stamps)


def conditions(world, pod: dict) -> list[dict]:
    return world.get(pod)["status"].get("conditions") or []


def test_the_bounds_narrow_and_follow_a_clock_that_is_set() -> None:
    """A server whose clock is read to the second, with answers that take a tenth of one."""
    clock, server = ServerClock(), 1_800_000_000.0
    for number in range(50):
        sent = 100.0 + 0.37 * number
        stamp = time.gmtime(int(server + sent + 0.05))
        clock.update(time.strftime("%a, %d %b %Y %H:%M:%S GMT", stamp), sent, sent + 0.1)
    assert clock._bounds is not None
    low, high = clock._bounds
    assert low <= server <= high and high - low < 0.3
    clock.update("Fri, 15 Jan 2027 03:00:00 GMT", 200.0, 200.1)  # five hours earlier
    assert clock._bounds[1] - clock._bounds[0] == pytest.approx(1.1)
    for odd in ("", None, "yesterday", "Fri, 99 Jan 2027 03:00:00 GMT"):
        clock.update(odd, 300.0, 300.1)
    assert clock._bounds[0] == pytest.approx(1_799_982_000.0 - 200.1)


def test_without_an_answer_this_machines_clock_counts() -> None:
    assert abs(ServerClock().now_s() - time.time()) < 5.0
