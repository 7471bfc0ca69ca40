"""Manifests that people have: which gangs they make."""

import json
from pathlib import Path

import pytest
import yaml

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.yaml_file import read_yaml_documents
from jaxsched.kube.read.gangs import form_gangs
from jaxsched.kube.read.manifest import manifest_pods
from jaxsched.kube.read.objects import Pod
from jaxsched.kube.read.settings import PlanSettings

CASES = Path(__file__).parents[4] / "shared" / "cases" / "kube"
SETTINGS = PlanSettings(settle_s=0.0)


def template(gpus: int, more: str = "") -> str:
    limits = f"{{nvidia.com/gpu: {gpus}}}" if gpus else "{cpu: 1}"
    return f"{{spec: {{containers: [{{name: main, image: none, resources: {{limits: {limits}}}}}]}}{more}}}"


JOB = f"""
apiVersion: batch/v1
kind: Job
metadata:
  generateName: sample-job-
  labels: {{kueue.x-k8s.io/queue-name: user-queue}}
spec: {{parallelism: 3, completions: 3, suspend: true, template: {template(1)}}}
"""
PYTORCH = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: train, namespace: team}}
spec:
  pytorchReplicaSpecs:
    Master: {{replicas: 1, restartPolicy: OnFailure, template: {template(2)}}}
    Worker: {{replicas: 3, template: {template(2)}}}
"""
TENSORFLOW = f"""
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {{name: train}}
spec:
  tfReplicaSpecs:
    PS: {{replicas: 2, template: {template(0)}}}
    Worker: {{replicas: 4, template: {template(1)}}}
"""
JOBSET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: set}}
spec:
  replicatedJobs:
    - {{name: driver, template: {{spec: {{template: {template(0)}}}}}}}
    - {{name: workers, replicas: 2, template: {{spec: {{parallelism: 4, completions: 4, template: {template(8)}}}}}}}
"""
LEADER_WORKER_SET = f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: lws}}
spec: {{replicas: 2, leaderWorkerTemplate: {{size: 4, workerTemplate: {template(8)}}}}}
"""
RAY = f"""
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: ray}}
spec:
  rayClusterSpec:
    headGroupSpec: {{template: {template(0)}}}
    workerGroupSpecs: [{{groupName: gpus, replicas: 2, template: {template(4)}}}]
"""
VOLCANO = f"""
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: v}}
spec: {{minAvailable: 3, tasks: [{{name: w, replicas: 3, template: {template(1)}}}]}}
"""
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: serve}}
spec: {{replicas: 2, template: {template(1)}}}
"""
SAMPLE, TRAIN = ("default/Job/sample-job", 3, 1, 0, 0), ("team/PyTorchJob/train", 4, 2, 0, 0)


def gangs_of(text: str, tmp_path: Path) -> list[tuple[str, int, int, int, int]]:
    """Of each gang its key without a uid, workers, GPUs of each, parameter servers and helpers."""
    gangs = form_gangs(pods_of(text, tmp_path), (), frozenset(), SETTINGS, 0.0)
    assert all(gang.refusal is None and gang.waiting is None for gang in gangs), gangs
    return [
        (gang.key.partition(" ")[0], len(gang.workers), gang.gpus_per_worker, len(gang.ps), len(gang.helpers))
        for gang in gangs
    ]


def pods_of(text: str, tmp_path: Path) -> tuple[Pod, ...]:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return manifest_pods(read_yaml_documents(path, "the page"), str(path), 0.0, SETTINGS, 0)


@pytest.mark.parametrize(
    ("text", "gangs"),
    [
        (JOB, [SAMPLE]),
        (f"---{JOB}---\n", [SAMPLE]),
        (f"---\n---{JOB}---\n---{PYTORCH}", [SAMPLE, TRAIN]),
        (PYTORCH, [TRAIN]),
        (TENSORFLOW, [("default/TFJob/train", 4, 1, 2, 0)]),
        (JOBSET, [("default/jobset/set", 8, 8, 0, 1)]),
        (LEADER_WORKER_SET, [("default/lws/lws/0", 4, 8, 0, 0), ("default/lws/lws/1", 4, 8, 0, 0)]),
        (RAY, [("default/RayJob/ray", 2, 4, 0, 1)]),
        (VOLCANO, [("default/Job/v", 3, 1, 0, 0)]),
        (DEPLOYMENT, [("default/pod/serve-0", 1, 1, 0, 0), ("default/pod/serve-1", 1, 1, 0, 0)]),
    ],
    ids="generateName separators two PyTorchJob TFJob JobSet LeaderWorkerSet RayJob Volcano Deployment".split(),
)
def test_a_manifest_makes_gangs(text: str, gangs: list, tmp_path: Path) -> None:
    """Before: Jobs and Pods with a name alone, and nothing around them."""
    assert gangs_of(text, tmp_path) == gangs


def test_two_jobs_of_one_name_to_be_are_two_gangs(tmp_path: Path) -> None:
    assert len(gangs_of(f"{JOB}---{JOB}", tmp_path)) == 2


def test_a_list_and_kueues_groups_of_pods(tmp_path: Path) -> None:
    labels = "labels: {kueue.x-k8s.io/pod-group-name: group}"
    notes = 'annotations: {kueue.x-k8s.io/pod-group-total-count: "2"}'
    spec = yaml.safe_load(template(1))["spec"]
    metas = [f"{{name: p{number}, {labels}, {notes}}}" for number in range(2)]
    pods = [{"kind": "Pod", "metadata": yaml.safe_load(meta), "spec": spec} for meta in metas]
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": pods})
    assert gangs_of(text, tmp_path) == [("default/kueue/group", 2, 1, 0, 0)]
    [alone] = form_gangs(pods_of(json.dumps(pods[0]), tmp_path), (), frozenset(), SETTINGS, 0.0)
    assert alone.waiting is not None and alone.waiting.message == "1 of 2 pods exist"


def test_what_makes_no_pods_is_left_out_and_said(tmp_path: Path) -> None:
    with pytest.warns(DoubtfulFile, match="left out: 'Service'"):
        assert gangs_of(f"kind: Service\n---{PYTORCH}", tmp_path) == [TRAIN]


def test_file_modes_are_numbers(tmp_path: Path) -> None:
    """Before: refused, for the 0 in front."""
    volumes = ", volumes: [{name: keys, secret: {secretName: s, defaultMode: 0400}}]"
    text = JOB.replace("{spec: {containers", f"{{spec: {{terminationGracePeriodSeconds: 30{volumes}, containers")
    assert gangs_of(text, tmp_path) == [SAMPLE]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "kind None should be one of Pod, Job, JobSet"),
        ("kind: Service\n---\nkind: ConfigMap", "kind 'Service', 'ConfigMap' should be one of"),
        (PYTORCH.replace("replicas: 3", "replicas: -3"), r"\(PyTorchJob\): -3 pods, should be"),
        (PYTORCH.replace("replicas: 3", "replicas: 5000"), "5000 pods, should be"),
        ("kind: PyTorchJob\nmetadata: {name: a}", "spec has no pods in it"),
        (
            "kind: JobSet\nmetadata: {name: a}\nspec: {replicatedJobs: [{name: a}]}",
            "template.spec.template.spec is missing",
        ),
        ("kind: LeaderWorkerSet\nmetadata: {name: a}\nspec: {replicas: 4000}", "workerTemplate.spec is missing"),
        (JOB.replace("generateName: sample-job-", "generateName: '-'"), "metadata.name: '' should be a name"),
        (f"{JOB}---{JOB.replace('completions: 3', 'completions: x')}", r"object 2 \(Job\): 'x' pods"),
    ],
)
def test_mistakes_name_file_and_object(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says) as error:
        pods_of(text, tmp_path)
    assert str(error.value).startswith(str(tmp_path / "file.yaml")) and "\n" not in str(error.value)


@pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases is not here")
@pytest.mark.parametrize("path", sorted(CASES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_cases_are_read(path: Path) -> None:
    pods = manifest_pods(read_yaml_documents(path, "the page"), str(path), 0.0, SETTINGS, 0)
    [gang] = form_gangs(pods, (), frozenset(), SETTINGS, 0.0)
    assert gang.refusal is None and gang.waiting is None and gang.gpus_per_worker == 1


@pytest.mark.parametrize(
    ("group", "pods"),
    [
        ({"replicas": 2}, 3),
        ({"minReplicas": 3}, 4),
        ({"replicas": 9, "maxReplicas": 4}, 5),
        ({"replicas": 3, "suspend": True}, 1),
        ({"replicas": 0, "minReplicas": 0, "maxReplicas": 5}, 1),
        ({"replicas": "three", "maxReplicas": 4}, None),
        ({"replicas": -1, "minReplicas": 1}, None),
    ],
)
def test_worker_groups_of_a_ray_cluster(group: dict, pods: int | None) -> None:
    """The head, and as many workers as KubeRay makes."""
    limits = {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    spec = {"headGroupSpec": {"template": {"spec": limits}}}
    spec["workerGroupSpecs"] = [{"groupName": "w", "template": {"spec": limits}, **group}]
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r"}, "spec": spec}
    if pods is None:
        with pytest.raises(UserError, match="pods, should be a whole number"):
            manifest_pods([cluster], "file", 0.0, SETTINGS, 0)
    else:
        assert len(manifest_pods([cluster], "file", 0.0, SETTINGS, 0)) == pods
