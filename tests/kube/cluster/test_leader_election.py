"""The Lease: one leads, and who cannot renew stops, against the fake and a real API server."""

import threading
import time

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.cluster.leader_election import LeaderElector
from tests.support.kube.calls import eventually
from tests.support.kube.turns import turn


def elector(world, name: str, who: str, api=None) -> LeaderElector:
    return LeaderElector(api or world.api, "default", name, who, lease_s=3.0, renew_s=1.5, retry_s=0.2)


def test_one_leads_and_the_next_follows_when_it_stops(world) -> None:
    name = world.name("lease")
    first = elector(world, name, "a").start()
    eventually(first.leading.is_set)
    second = elector(world, name, "b").start()
    time.sleep(1.0)
    assert not second.leading.is_set() and first.holds_lease()
    began = time.monotonic()
    first.stop()
    eventually(second.leading.is_set)
    assert time.monotonic() - began < 2.5  # given up, not run out
    second.stop()


def test_a_leader_that_cannot_renew_stops_before_another_starts(world) -> None:
    name = world.name("lease")
    first = elector(world, name, "a", world.proxy.api).start()
    eventually(first.leading.is_set)
    second = elector(world, name, "b").start()
    both: list[bool] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.02):
            both.append(first.holds_lease() and second.holds_lease())

    looking = threading.Thread(target=look)
    looking.start()
    world.proxy.inject("GET", "leases", status=500, times=1000)
    world.proxy.inject("PUT", "leases", status=500, times=1000)
    eventually(first.lost.is_set)
    assert not first.leading.is_set()
    eventually(second.leading.is_set)
    stop.set()
    looking.join()
    assert not any(both)
    second.stop()


def test_a_late_answer_does_not_prolong_the_lease(world) -> None:
    """The Lease of a second is written at once, and that is known only after it has run out."""
    world.proxy.inject("POST", "leases", late_s=1.2)
    first = LeaderElector(world.proxy.api, "default", world.name("lease"), "a", lease_s=1.0, renew_s=5.0, retry_s=1.0)
    first.start()
    eventually(first.leading.is_set)
    assert not first.holds_lease()
    eventually(first.holds_lease)
    first.stop()


def test_a_leader_that_is_told_nonsense_stops(world) -> None:
    """Before: the thread ended, and the process went on for ever without scheduling."""
    first = elector(world, world.name("lease"), "a", world.proxy.api).start()
    eventually(first.leading.is_set)
    world.proxy.inject("GET", "leases", status=200, body=b"{}", times=1000)
    eventually(first.lost.is_set)
    first.stop()


def test_a_server_that_forbids_for_a_moment_is_tried_again(world) -> None:
    """So does one that has just started. Before: the process ended."""
    first = elector(world, world.name("lease"), "a", world.proxy.api).start()
    eventually(first.leading.is_set)
    forbidden = [world.proxy.inject(method, "leases", status=403) for method in ("GET", "PUT")]
    eventually(lambda: all(one.hits for one in forbidden))
    time.sleep(0.5)
    assert first.denied == "" and first.holds_lease()
    first.stop()


def test_a_namespace_that_is_not_there_is_named(world, start) -> None:
    """Before: no word, and no leader."""
    if world.kind == "fake":  # it has no namespaces
        world.proxy.inject("POST", "leases", status=404, times=99)
    scheduler = start(leader_election=True, namespace="nosuchns")
    with pytest.raises(UserError, match=r"^leader election: no namespace 'nosuchns': create it, or .* --namespace$"):
        turn(scheduler, lambda: False, 10)
