"""The contract suite's servers: a loopback fake always, a real one where binaries are found (docs/kubernetes.md)."""

import importlib.util
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kube.calls import eventually
from tests.support.kube.objects import make_node, make_pod
from tests.support.kube.server import RealServer, binaries

NEEDED = ("kubernetes", "prometheus_client")
if any(importlib.util.find_spec(name) is None for name in NEEDED):
    # The extra jaxsched[kube] is not installed: what remains is test_replay.py.
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_replay"]

ran: Counter = Counter()
names = itertools.count()


class World:
    """One API server under test, seen directly and through a proxy that breaks things."""

    def __init__(self, kind: str, api, proxy, minor: int, forget) -> None:
        self.kind, self.api, self.proxy, self.minor = kind, api, proxy, minor
        self.forget_history = forget  # afterwards every version from before gives 410
        self.made: list[str] = []

    def since(self, minor: int, what: str) -> None:
        """Skip on older servers."""
        if self.minor < minor:
            pytest.skip(f"{what} needs Kubernetes 1.{minor}, this is 1.{self.minor}")

    def name(self, kind: str = "p") -> str:
        return f"{kind}{next(names)}-{os.getpid()}"

    def make(self, path: str, body: dict) -> dict:
        response = self.api.request("POST", path, body=body)
        assert response.status == 201, response
        self.made.append(f"{path}/{body['metadata']['name']}")
        return response.body

    def pod(self, name: str = "", **more) -> dict:
        return self.make("/api/v1/namespaces/default/pods", make_pod(name or self.name(), **more))

    def node(self, name: str = "", **more) -> dict:
        raw = make_node(name or self.name("n"), **more)
        made = self.make("/api/v1/nodes", {k: v for k, v in raw.items() if k != "status"} | {"kind": "Node"})
        path, kind = f"/api/v1/nodes/{made['metadata']['name']}", "application/strategic-merge-patch+json"
        response = self.api.request("PATCH", f"{path}/status", body={"status": raw["status"]}, content=kind)
        assert response.ok, response
        return response.body

    def custom(self, group: str, version: str, kind: str, plural: str) -> str:
        """Serve a custom resource with any fields and no subresource; the path of its objects in `default`."""
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        body["metadata"] = {"name": f"{plural}.{group}"}
        version_of = {"name": version, "served": True, "storage": True, "schema": schema}
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        body["spec"] = {"group": group, "scope": "Namespaced", "names": names, "versions": [version_of]}
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        eventually(lambda: self.api.request("GET", f"{definitions}/{plural}.{group}").status == 404)  # of a test before
        self.make(definitions, body)
        path = f"/apis/{group}/{version}/namespaces/default/{plural}"
        eventually(lambda: self.api.request("GET", path).ok)
        return path

    def priority(self, value: int, **more) -> dict:
        """Fields of a pod or a PodGroup with this priority; `more` is of its class.

        A real server knows names of classes only. It looks them up in a copy of its own that lags by moments: one
        that was just made may still be refused as not found (403).
        """
        if self.kind == "fake":
            return {"priority": value} | more
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": self.name("class")}}
        made = self.make("/apis/scheduling.k8s.io/v1/priorityclasses", kind | {"value": value} | more)
        spec = {"priorityClassName": made["metadata"]["name"]}
        pods, trial, dry = "/api/v1/namespaces/default/pods", make_pod(self.name(), spec=spec), {"dryRun": "All"}
        eventually(lambda: self.api.request("POST", pods, query=dry, body=trial).ok)
        return spec

    def get(self, pod: dict) -> dict:
        meta = pod["metadata"]
        return self.api.request("GET", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}").body

    def clean(self) -> None:
        strip = {"metadata": {"finalizers": None}}
        for path in reversed(self.made):
            if "/pods/" in path:
                self.api.request("PATCH", path, body=strip, content="application/strategic-merge-patch+json")
            self.api.request("DELETE", path, body={"gracePeriodSeconds": 0})
        self.made.clear()


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer | None]:
    found = binaries()
    if found is None:
        yield None
        return
    server = RealServer(found)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kube)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    from jaxsched.kube.cluster.api import ApiClient, connect
    from tests.support.kube.fake import FakeServer
    from tests.support.kube.proxy import Proxy

    if request.param == "real":
        server = request.getfixturevalue("real_server")
        if server is None:
            pytest.skip("no API server: set KUBEBUILDER_ASSETS or JX_BIN to a folder with etcd and kube-apiserver")
        api, fake, minor = connect(str(server.kubeconfig)), None, server.minor
        forget = server.restart
    else:
        fake = FakeServer()
        api, minor, forget = ApiClient(fake.url), 36, fake.compact
    proxy = Proxy(api)
    one = World(request.param, api, proxy, minor, forget)
    yield one
    one.clean()
    proxy.close()
    if fake is not None:
        fake.close()


@pytest.fixture(scope="module")
def planner():
    from jaxsched.kube.plan.planner import Planner
    from jaxsched.kube.policy import GuardedPolicy
    from jaxsched.kube.read.settings import PlanSettings

    settings = PlanSettings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0)
    return Planner(GuardedPolicy("pack:area+backfill+forward", settings), settings)


@pytest.fixture
def start(world: World, planner):
    """Start a scheduler: `(api, **options) -> Scheduler`; it ends with the test."""
    from jaxsched.kube.cluster.app import Options, Scheduler
    from jaxsched.kube.cluster.monitoring import Metrics

    running: list[Scheduler] = []

    def begin(api=None, **options) -> Scheduler:
        scheduler = Scheduler(
            api or world.proxy.api, planner, Options(**({"namespace": "default"} | options)), Metrics()
        )
        running.append(scheduler)
        scheduler.start()
        return scheduler

    yield begin
    for scheduler in running:
        scheduler.stop()
        scheduler.close()


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" and report.passed:
        ran.update(kind for kind in ("fake", "real") if f"[{kind}" in report.nodeid)


def pytest_terminal_summary(terminalreporter) -> None:
    if ran:
        terminalreporter.write_line(
            f"contract suite: {ran['fake']} passed against the fake, {ran['real']} against a real API server"
        )
