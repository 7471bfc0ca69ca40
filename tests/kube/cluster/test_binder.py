"""The binder's rules, and what is reported about pods, against the fake and a real API server."""

import pytest

from jaxsched.kube.cluster import binder as outcomes
from jaxsched.kube.cluster.api import pod_path
from jaxsched.kube.cluster.binder import Binder
from tests.support.kube.calls import assignment, post


def test_bind_succeeds(world) -> None:
    pod = world.pod()
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.get(pod)["spec"]["nodeName"] == "n0"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(world, status: int) -> None:
    pod = world.pod()
    world.proxy.inject("POST", "binding", status=status, times=2)
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.proxy.count("POST", "binding") == 3


def test_retry_after_is_honoured(world) -> None:
    waits: list[float] = []
    world.proxy.inject("POST", "binding", status=429, retry_after="4")
    binder = Binder(world.proxy.api, sleep=waits.append)
    assert binder.bind(assignment(world.pod(), "n0"), "d", "p").result == outcomes.BOUND
    assert waits and 2.0 <= waits[0] <= 4.0


def test_a_lost_answer_is_read_back_and_not_written_twice(world) -> None:
    pod = world.pod()
    world.proxy.inject("POST", "binding", lose_answer=True)
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.BOUND
    assert world.proxy.count("POST", "binding") == 1
    assert world.get(pod)["spec"]["nodeName"] == "n0"


def test_a_pod_that_another_bound_is_elsewhere(world) -> None:
    pod = world.pod()
    post(world, pod, "n9")
    outcome = Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p")
    assert outcome.result == outcomes.ELSEWHERE and "n9" in outcome.message
    assert (
        Binder(world.proxy.api).bind(assignment(pod, "n9"), "d", "p").result == outcomes.BOUND
    )  # it is what we wanted


def test_a_pod_that_is_gone_or_replaced_is_forgotten(world) -> None:
    pod = world.pod(name := world.name())
    world.api.request("DELETE", pod_path("default", name), body={"gracePeriodSeconds": 0})
    assert Binder(world.proxy.api).bind(assignment(pod, "n0"), "d", "p").result == outcomes.GONE


def test_a_new_pod_of_the_same_name_is_not_bound_by_an_old_plan(world) -> None:
    world.since(22, "the uid in a Binding")
    old = world.pod(name := world.name())
    world.api.request("DELETE", pod_path("default", name), body={"gracePeriodSeconds": 0})
    new = world.pod(name)
    assert Binder(world.proxy.api).bind(assignment(old, "n0"), "d", "p").result == outcomes.GONE
    assert "nodeName" not in world.get(new)["spec"]


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_is_final(world, status: int) -> None:
    world.proxy.inject("POST", "binding", status=status)
    outcome = Binder(world.proxy.api).bind(assignment(world.pod(), "n0"), "d", "p")
    assert outcome == (outcomes.DENIED, "injected") and world.proxy.count("POST", "binding") == 1


def test_a_silent_server_is_given_up_on_after_the_deadline(world) -> None:
    world.proxy.inject("POST", "binding", status=503, times=100)
    outcome = Binder(world.proxy.api, deadline_s=1.0).bind(assignment(world.pod(), "n0"), "d", "p")
    assert outcome.result == outcomes.UNKNOWN


def test_who_leads_no_longer_binds_nothing(world) -> None:
    binder = Binder(world.proxy.api, may_bind=lambda: False)
    assert binder.bind(assignment(world.pod(), "n0"), "d", "p").result == outcomes.UNKNOWN
    assert world.proxy.count("POST", "binding") == 0
