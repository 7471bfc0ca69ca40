"""What is shipped is taken by a real API server, which knows every field of it."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kube
DEPLOY = Path(__file__).parents[3] / "deploy"
CHECKED = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-k")
BASE = {
    "namespace/jaxsched",
    "serviceaccount/jaxsched",
    "clusterrole.rbac.authorization.k8s.io/jaxsched",
    "clusterrole.rbac.authorization.k8s.io/jaxsched-metrics-reader",
    "clusterrolebinding.rbac.authorization.k8s.io/jaxsched",
    "deployment.apps/jaxsched",
    "networkpolicy.networking.k8s.io/jaxsched",
}
HA = {
    "role.rbac.authorization.k8s.io/jaxsched-lease",
    "rolebinding.rbac.authorization.k8s.io/jaxsched-lease",
    "poddisruptionbudget.policy/jaxsched",
}
PREEMPTION = {
    "clusterrole.rbac.authorization.k8s.io/jaxsched-preemption",
    "clusterrolebinding.rbac.authorization.k8s.io/jaxsched-preemption",
}


@pytest.fixture
def kubectl(real_server, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs it as the administrator; the namespace is there already, as a dry run makes none."""
    if real_server is None or not (real_server.folder / "kubectl").is_file():
        pytest.skip("no API server with kubectl: set KUBEBUILDER_ASSETS or JX_BIN to a folder with them")

    def run(*arguments: object) -> subprocess.CompletedProcess:
        command = [
            str(real_server.folder / "kubectl"),
            "--kubeconfig",
            str(real_server.kubeconfig),
            *map(str, arguments),
        ]
        return subprocess.run(command, capture_output=True, text=True, env={"HOME": str(tmp_path)}, timeout=120)

    made = run("apply", "--server-side", "-f", DEPLOY / "base" / "namespace.yaml")
    assert made.returncode == 0, made.stderr
    return run


@pytest.mark.parametrize(
    ("folder", "objects"), [("base", BASE), ("ha", BASE | HA), ("preemption", BASE | PREEMPTION)]
)  # fmt: skip
def test_manifests_are_taken_with_every_field_known(kubectl, folder: str, objects: set[str]) -> None:
    done = kubectl(*CHECKED, DEPLOY / folder)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == objects


def test_overlays_change_what_they_say(kubectl) -> None:
    for folder, argument in (("ha", "--leader-elect"), ("preemption", "--preemption")):
        built = kubectl("kustomize", DEPLOY / folder).stdout
        assert argument in built and "--metrics-auth" in built
        assert argument not in kubectl("kustomize", DEPLOY / "base").stdout


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("terminationGracePeriodSeconds", "terminationGracePeriod", "field not declared"),
        ("replicas: 1", "replicas: one", "replicas"),
        ("readOnlyRootFilesystem: true", "readonlyRootFilesystem: true", "field not declared"),
    ],
)
def test_a_wrong_field_would_be_seen(kubectl, tmp_path: Path, old: str, new: str, words: str) -> None:
    folder = tmp_path / "base"
    shutil.copytree(DEPLOY / "base", folder)
    text = (folder / "deployment.yaml").read_text()
    assert old in text
    (folder / "deployment.yaml").write_text(text.replace(old, new))
    done = kubectl(*CHECKED, folder)
    assert done.returncode != 0 and words in done.stderr
