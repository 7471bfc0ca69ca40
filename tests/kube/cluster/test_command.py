"""`jaxsched kube run` as a command, against the fake server."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kube.fake import FakeServer
from tests.support.kube.objects import make_node

ROOT = Path(__file__).parents[3]
COMPILES = """
import sys, threading
import jax, jax.numpy as jnp
from jaxsched.cli.main import main
from jaxsched.kube.planning import compiled_policy
lowered = jax.jit(lambda x: sum(jnp.sin(x * k) for k in range(60))).lower(1.0)
def compiles(*_):
    print("compiles", flush=True)
    while True:
        lowered.compile({"xla_backend_optimization_level": 0})
compiled_policy.JaxProgram = compiles
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
    arguments = ["kube", "run", "--checkpoint", "checkpoints/quickstart", "--metrics-port", "0"]
    command = [sys.executable, "-c", COMPILES, *arguments, "--kubeconfig", str(kubeconfig)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.readline() == "compiles\n"
    assert any("ready" in line for line in running.stderr)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
