"""Hostile objects of a cluster: no watch ends, no plan raises, and the gang of another waits for nobody."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from jaxsched.errors import UserError
from jaxsched.io.yaml_file import read_yaml_documents
from jaxsched.kube.cluster.api import _event
from jaxsched.kube.cluster.informers import Reflector, Store
from jaxsched.kube.cluster.record import slim
from jaxsched.kube.plan.planner import Planner
from jaxsched.kube.read.groups import read_pod_group
from jaxsched.kube.read.manifest import manifest_pods
from jaxsched.kube.read.objects import read_node, read_pod
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.read.snapshot import Snapshot, read_volume, read_volume_claim
from tests.fuzz.kube_cases import PackPolicy, hostile, line, spoil
from tests.fuzz.mutations import mutated
from tests.kube.read.test_manifest import JOB, JOBSET, LEADER_WORKER_SET, PYTORCH, RAY, TENSORFLOW, VOLCANO
from tests.support.cases import cases
from tests.support.kube.objects import NOW, make_node, make_pod

READERS = {
    "nodes": read_node,
    "pods": read_pod,
    "podgroups": read_pod_group,
    "persistentvolumeclaims": read_volume_claim,
    "persistentvolumes": read_volume,
}
SETTINGS = PlanSettings(schedulers=2, running_slots=8, queue_slots=8, headroom=4.0)
MANIFESTS = (JOB, JOBSET, LEADER_WORKER_SET, PYTORCH, RAY, TENSORFLOW, VOLCANO)
GOOD = "good/pod/good"  # in a namespace of its own


class Watching:
    """A reflector without a thread or a server, on the lines of a watch."""

    host = "none"

    def __init__(self, kind: str) -> None:
        self.store = Store(READERS[kind], on_event=lambda what, raw: self.events.append(json.dumps(slim(raw))))
        self.events: list[str] = []
        self.lines: list[bytes] = []
        self.reflector = Reflector(self, "/", self.store)  # pyright: ignore[reportArgumentType]

    def stream(self, path: str, query: dict[str, str], idle_s: float, opened: object) -> Any:
        return map(_event, self.lines)

    def watch(self) -> None:
        self.reflector._watch()
        self.lines.clear()


def play(seed: int) -> None:
    """A cluster, some hostile changes, a plan: nothing raises, and what is whole is placed."""
    rng = random.Random(seed)
    watching = {kind: Watching(kind) for kind in READERS}
    for name in ("good-node", "n0", "n1"):
        watching["nodes"].store.put("ADDED", make_node(name, 8, labels={"jaxsched.io/pool": name}))
    own = make_pod("good", 8, uid="good", namespace="good", spec={"nodeSelector": {"jaxsched.io/pool": "good-node"}})
    own["spec"]["priority"] = 2**31 - 1
    watching["pods"].store.put("ADDED", own)
    for number in range(rng.choice((1, 1, 3, 8))):
        kind, raw = hostile(rng, number)
        if isinstance(raw.get("spec"), dict) and raw["spec"].get("nodeName") == "good-node":
            continue
        watching[kind].lines.append(line(rng, raw))
    for one in watching.values():
        one.watch()
        assert one.store.unreadable == 0
    pods = watching["pods"].store.items()
    shot = Snapshot(
        now_s=NOW,
        nodes=watching["nodes"].store.items(),
        pods=pods,
        groups=watching["podgroups"].store.items(),
        served=frozenset(rng.choice(((), ("scheduling.x-k8s.io",)))),
        volume_claims=dict(watching["persistentvolumeclaims"].store.items()),
        volumes=dict(watching["persistentvolumes"].store.items()),
    )
    patience_s = rng.choice((0.0, 600.0, 1e12))
    plan = Planner(PackPolicy(), SETTINGS, patience_s).plan(shot)  # pyright: ignore[reportArgumentType]
    assert plan.faults == (), plan.faults[0].__cause__
    placed = {placement.gang.key: placement for placement in plan.placements}
    assert set(placed) | set(plan.reasons) == set(plan.pending) and not set(placed) & set(plan.reasons)
    assert GOOD in placed or patience_s < 1e12, plan.reasons[GOOD]  # nodes may be kept for a gang that is late
    for reason in plan.reasons.values():
        assert reason.reason and reason.message


def test_hostile_objects_harm_nobody_else() -> None:
    for seed in range(200):
        play(seed)


def read_wrong_manifests(seed: int, inputs: int, path: Path) -> int:
    """Objects with other values somewhere, and mistyped text: pods, or one line. Returns how many were refused."""
    rng, refused = random.Random(seed), 0
    for number in range(inputs):
        documents = [yaml.safe_load(rng.choice(MANIFESTS)) for _ in range(rng.choice((1, 1, 2)))]
        for _ in range(rng.choice((1, 1, 2, 4))):
            spoil(rng, rng.choice(documents))
        content = yaml.safe_dump_all(documents, default_flow_style=None).encode("utf-8", "replace")
        path.write_bytes(mutated(rng, content) if rng.random() < 0.5 else content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                manifest_pods(read_yaml_documents(path, "the page"), str(path), NOW, SETTINGS, 0)
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and len(str(error)) < 2000 and "\n" not in str(error), (seed, number)
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}: {path.read_bytes()[:2000]!r}")
            raise
    return refused


def test_wrong_manifests(tmp_path: Path) -> None:
    assert 50 < read_wrong_manifests(0, 300, tmp_path / "m.yaml") < 290


@pytest.mark.long
def test_thousands_of_wrong_manifests(tmp_path: Path) -> None:
    read_wrong_manifests(1, 5000, tmp_path / "m.yaml")


@pytest.mark.long
@cases(2500, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**63))
def test_thousands_of_hostile_clusters(seed: int) -> None:
    play(seed)
