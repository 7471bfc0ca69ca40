"""What the default scheduler's dashboards show of this one."""

from tests.support.kube.turns import bound, gang, turn

ATTEMPTS, SECONDS = "scheduler_schedule_attempts_total", "scheduler_scheduling_attempt_duration_seconds"


def value(scheduler, name: str, **labels: str) -> float:
    return scheduler.metrics.registry.get_sample_value(name, labels) or 0.0


def pending(scheduler) -> dict[str, float]:
    queues = ("active", "backoff", "gated", "unschedulable")
    return {queue: value(scheduler, "scheduler_pending_pods", queue=queue) for queue in queues}


def test_attempts_and_queues_as_upstream_counts_them(world, start) -> None:
    world.node()
    fits, large, short = gang(world, 2, 4), gang(world, 3, 8), gang(world, 4, 1, count=1)
    world.pod(spec={"schedulingGates": [{"name": "x.io/wait"}]})
    scheduler = start()
    turn(scheduler, lambda: bound(world, fits) == 2)
    own = {"profile": scheduler.settings.scheduler_name}
    for name in (ATTEMPTS, f"{SECONDS}_count"):
        assert value(scheduler, name, result="scheduled", **own) == 2
        tries, rest = divmod(value(scheduler, name, result="unschedulable", **own), len(large))
        assert tries >= 1 and rest == 0  # the gang that is not whole was not tried
        assert value(scheduler, name, result="error", **own) == 0
    longest = value(scheduler, f"{SECONDS}_sum", result="scheduled", **own)
    assert longest > value(scheduler, "jaxsched_bind_duration_seconds_sum")
    scheduler.step()
    assert pending(scheduler) == {"active": 0, "backoff": 0, "gated": len(short) + 1, "unschedulable": len(large)}
    waiting = {"LargerThanCluster": 1, "GangIncomplete": 1, "Insufficient": 0}
    assert {why: value(scheduler, "jaxsched_pending_gangs", reason=why) for why in waiting} == waiting


def test_a_binding_that_is_refused_is_an_error_and_then_in_backoff(world, start) -> None:
    world.node()
    scheduler = start()
    world.proxy.inject("POST", "binding", status=403)
    pods = gang(world, 1, 1)
    own = {"result": "error", "profile": scheduler.settings.scheduler_name}
    turn(scheduler, lambda: value(scheduler, ATTEMPTS, **own) == 1)
    scheduler.step()
    assert pending(scheduler)["backoff"] == 1 and bound(world, pods) == 0
