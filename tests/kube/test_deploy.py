"""What is shipped to run in a cluster fits together."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def manifest(name: str, folder: str = "base") -> dict:
    return yaml.safe_load((ROOT / "deploy" / folder / name).read_text())


def changes_of_ha() -> dict:
    """Path in the Deployment -> the value that the overlay with two replicas puts there."""
    (patch,) = manifest("kustomization.yaml", "ha")["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": manifest("deployment.yaml")["metadata"]["name"]}
    return {one["path"]: one["value"] for one in yaml.safe_load(patch["patch"])}


def labels_of_pods() -> dict:
    (labels,) = manifest("kustomization.yaml")["labels"]
    return labels["pairs"]


def test_replicas_are_on_different_nodes_and_can_be_updated_on_two() -> None:
    changes = changes_of_ha()
    (term,) = changes["/spec/template/spec/affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels_of_pods()}}
    rolling = changes["/spec/strategy"]["rollingUpdate"]
    assert rolling["maxSurge"] == 0 and 0 < rolling["maxUnavailable"] < changes["/spec/replicas"]


def test_a_drain_leaves_a_replica() -> None:
    budget = manifest("poddisruptionbudget.yaml", "ha")
    assert budget["kind"] == "PodDisruptionBudget" and budget["spec"]["selector"]["matchLabels"] == labels_of_pods()
    assert 0 < budget["spec"]["maxUnavailable"] < changes_of_ha()["/spec/replicas"]
    assert "poddisruptionbudget.yaml" in manifest("kustomization.yaml", "ha")["resources"]


def test_jobs_do_not_push_the_scheduler_out() -> None:
    assert manifest("deployment.yaml")["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"


def test_the_network_policy_is_of_our_pods_and_their_port() -> None:
    policy, kustomization = manifest("networkpolicy.yaml")["spec"], manifest("kustomization.yaml")
    (labels,) = kustomization["labels"]
    assert policy["podSelector"]["matchLabels"] == labels["pairs"] and labels["includeSelectors"]
    assert "networkpolicy.yaml" in kustomization["resources"]
    (container,) = manifest("deployment.yaml")["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    ((rule,),) = [[rule] for rule in policy["ingress"]]
    assert policy["policyTypes"] == ["Ingress"] and rule["from"]  # an empty list would let in everyone
    assert [one["port"] for one in rule["ports"]] == [port["name"]]
    arguments = container["args"]
    assert int(arguments[arguments.index("--metrics-port") + 1]) == port["containerPort"]
    assert arguments[arguments.index("--metrics-address") + 1] == "0.0.0.0"  # the kubelet does not come over loopback


def let_in(path: str) -> bool:
    """Whether .dockerignore lets a path into the build: the last rule that fits it or a folder above it."""
    folders = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
    inside = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.removeprefix("!")
        if line and not line.startswith("#"):
            names = [one.rpartition("/")[2] for one in folders] if rule.startswith("**/") else folders
            if any(fnmatch.fnmatchcase(name, rule.removeprefix("**/")) for name in names):
                inside = line.startswith("!")
    return inside


def test_the_image_is_built_from_all_it_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = re.findall(r"^COPY (\S+) ", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"], "pyproject.toml"]
    needed += [*project["project"]["license-files"], "constraints.txt", *(one for one in copied if one != ".")]
    assert len(needed) > 8
    for path in needed:
        assert (ROOT / path).exists() and let_in(path), path


@pytest.mark.parametrize(
    "path", [".git/config", ".venv/bin/python", "runs/mine/state", "tests/conftest.py", "jaxsched/__pycache__/x.pyc",
             "jaxsched/.env", "kubeconfig"]
)  # fmt: skip
def test_the_image_holds_nothing_else(path: str) -> None:
    assert not let_in(path)
