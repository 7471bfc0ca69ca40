"""`jaxsched kube run` as a command, against the fake server."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import connect
from tests.support.kube.fake import FakeServer
from tests.support.kube.objects import make_node

ROOT = Path(__file__).parents[3]
COMPILES = """
import sys, threading
import jax, jax.numpy as jnp
from jaxsched.cli.main import main
from jaxsched.kube import policy
def compiles(*_):
    lowered = jax.jit(lambda x: sum(jnp.sin(x * k) for k in range(60))).lower(1.0)
    print("compiles", flush=True)
    while True:
        lowered.compile({"xla_backend_optimization_level": 0})
policy.JaxProgram = compiles
main(sys.argv[1:])
"""


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def kubeconfig(server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: fake, users: [{name: me, user: {}}],"
        f" clusters: [{{name: fake, cluster: {{server: '{server.url}'}}}}],"
        " contexts: [{name: fake, context: {cluster: fake, user: me}}]}"
    )
    return path


def test_it_can_be_ended_while_a_policy_is_compiled(server, kubeconfig: Path) -> None:
    """Before: exit code 134, for the thread could not be ended while it was in XLA."""
    server.handle("POST", "/api/v1/nodes", {}, make_node("n0"), "")
    arguments = [
        "kube",
        "run",
        "--checkpoint",
        "checkpoints/quickstart",
        "--metrics-port",
        "0",
        "--partition-label",
        "zoen",
    ]
    command = [sys.executable, "-c", COMPILES, *arguments, "--kubeconfig", str(kubeconfig)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.readline() == "compiles\n"
    first, second = running.stderr.readline(), running.stderr.readline()
    assert "WARNING no node has the label zoen (--partition-label): is it misspelt?" in first and "ready" in second
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert said == ""


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a service account, and a home without a kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    for constant in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        (tmp_path / constant).write_text("something")
        monkeypatch.setattr(f"kubernetes.config.incluster_config.{constant}", str(tmp_path / constant))


def test_a_wrong_context_is_told_what_there_is(in_a_pod, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: the pod's own cluster was taken, or said to be missing."""
    told = f"no context 'nope' in {kubeconfig}; it has: fake"
    assert refusal(str(kubeconfig), "nope") == told
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert refusal(None, "nope") == told
    assert connect(None, "fake").host == connect().host != "https://127.0.0.1:9"


def test_a_kubeconfig_that_is_not_there_is_named(in_a_pod, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect().host == "https://127.0.0.1:9"
    assert refusal("/nope", None) == "--kubeconfig /nope: no such file"
    assert refusal(None, "nope") == "--context nope: there is no ~/.kube/config to have it: give --kubeconfig FILE"
    monkeypatch.setenv("KUBECONFIG", "/nope")
    assert refusal(None, None) == "KUBECONFIG=/nope: no such file"


def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert refusal(None, None).startswith("no cluster to talk to: give --kubeconfig FILE")
    file = tmp_path / ".kube" / "config"
    file.parent.mkdir()
    file.write_text("[")
    assert refusal(None, None).startswith("no cluster to talk to: ~/.kube/config cannot be used (")
    assert refusal(str(file), None).startswith(f"--kubeconfig {file}: cannot be used: ")


def refusal(kubeconfig: str | None, context: str | None) -> str:
    with pytest.raises(UserError) as refused:
        connect(kubeconfig, context)
    return str(refused.value)
