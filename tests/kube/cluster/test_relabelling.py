"""Labels and nodes change while pods are bound, on a real API server: nothing waits for compiling."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxsched.kube.cluster.api import NODES
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.policy import FALLBACK, GuardedPolicy
from jaxsched.kube.read.hints import POLICY
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from tests.support.kube.calls import MERGE, eventually
from tests.support.kube.server import free_port
from tests.support.kube.turns import bound, gang, turn

pytestmark = pytest.mark.parametrize("world", [pytest.param("real", marks=pytest.mark.kube)], indirect=True)
SOON_S = 20.0  # of a bind; before, compiling held it up for minutes, and the process was not alive at 300 s
gate = threading.Event()  # the policy is compiled while it is open


@pytest.fixture
def planner() -> Planner:
    """A policy that is no rule, so that it is compiled."""

    def act(key, state, params, weights):
        assert gate.wait(300)  # while it is traced
        return parse("first-fit").function(key, state, params, weights)

    settings = PlanSettings(schedulers=2, running_slots=8, queue_slots=8, headroom=1.0)
    return Planner(GuardedPolicy(Policy("slow", act), settings, beside=True), settings)


def machines(world, count: int) -> list[str]:
    """Nodes in racks of four and one block."""
    return [world.node(rack=f"r{i // 4}")["metadata"]["name"] for i in range(count)]


def apart(world, names: list[str]) -> None:
    """Every node in a rack of its own, every two in a block."""
    for number, name in enumerate(names):
        place = {"rack": f"new{number}", "block": f"new{number // 2}"}
        labels = {f"cloud.provider.com/topology-{tier}": value for tier, value in place.items()}
        assert world.api.request("PATCH", f"{NODES}/{name}", body={"metadata": {"labels": labels}}, content=MERGE).ok


def test_binding_goes_on_while_the_policy_is_compiled(world, start) -> None:
    """For the first nodes, and for so many that other arrays are needed. Other racks need none."""
    gate.clear()
    names = machines(world, 8)
    scheduler = start()
    policy = scheduler.planner.policy

    def decided_by() -> str:
        """Who places a gang that comes now; it ends at once."""
        pods = gang(world, 2, 1)
        turn(scheduler, lambda: bound(world, pods) == 2, SOON_S)
        (by,) = {world.get(pod)["metadata"]["annotations"][POLICY] for pod in pods}
        return by

    assert decided_by() == FALLBACK and policy.compilations == 0
    gate.set()
    eventually(lambda: policy.compilations == 1, 120.0)
    gate.clear()
    assert decided_by() == "slow"
    apart(world, names)
    eventually(lambda: all("new" in str(node.labels) for node in scheduler.snapshot().nodes))
    assert decided_by() == "slow" and policy.compilations == 1
    machines(world, 8)
    eventually(lambda: len(scheduler.snapshot().nodes) == 16)
    assert decided_by() == FALLBACK and scheduler.livez() == scheduler.readyz() == ""
    gate.set()
    eventually(lambda: policy.compilations == 2, 120.0)
    assert decided_by() == "slow"


def test_a_rule_binds_within_ten_cpu_seconds_of_a_cold_start_and_whatever_the_racks(world, tmp_path) -> None:
    """The command itself, with nothing compiled before, and racks that change from two to eight."""
    names, first = machines(world, 8), gang(world, 4, 2)
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"""apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "{world.proxy.api.host}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
users: [{{name: test, user: {{}}}}]
current-context: test
"""
    )
    command = [sys.executable, "-m", "jaxsched.cli", "kube", "run", "--kubeconfig", str(config)]
    environment = {**os.environ, "JAXSCHED_CACHE": str(tmp_path / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen([*command, "--metrics-port", str(free_port())], env=environment, stderr=log)
    try:
        eventually(lambda: bound(world, first) == 4 or child.poll() is not None, 120.0)
        began = time.monotonic()
        apart(world, names)
        second = gang(world, 4, 2)
        eventually(lambda: bound(world, second) == 4, SOON_S)
        assert child.poll() is None and time.monotonic() - began < SOON_S
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    assert child.returncode == 0 and cpu_s < 10.0, (tmp_path / "log").read_text()
