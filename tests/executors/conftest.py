"""A real Ray cluster of three workers, and submitit's processes of this machine."""

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jaxsched.executors import choose_executor
from tests.support.kube.server import free_port

MARK = "JAXSCHED_TESTS"  # a variable by which workers of these tests are known
ROOT, PATIENCE_S = Path(__file__).parents[2], 300.0


def needs(package: str) -> None:
    """Skips the test where an extra is not installed; imports nothing, for that would set up logging."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install -c constraints.txt -e '.[dev,ray,slurm]'")


@pytest.fixture(scope="session")
def environment():
    """What workers get: this checkout, and a token that Ray's processes know each other by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv(MARK, secrets.token_hex(8))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "200")
        yield


@pytest.fixture(scope="session")
def ray_cluster(environment):
    """HOST:PORT of a cluster that is ended with the tests."""
    needs("ray")
    port = free_port()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: sockets have their names from it
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
        command += ["--num-cpus=3", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}/ray"]
        log = Path(folder, "log")
        with log.open("w") as out:
            head = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            late = time.monotonic() + PATIENCE_S
            while "Ray runtime started" not in log.read_text():
                assert head.poll() is None and time.monotonic() < late, log.read_text()
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.wait(60)


@pytest.fixture(params=["ray", "slurm:local"])
def on(request, environment) -> str:
    """What `--on` says."""
    if request.param == "ray":
        return f"ray:{request.getfixturevalue('ray_cluster')}"
    needs("submitit")
    return request.param


@pytest.fixture
def executor(on, tmp_path):
    """Three workers."""
    asks = ["slurm_array_parallelism=3"] if on == "slurm:local" else []
    with choose_executor(on, asks, tmp_path / "jobs") as found:
        yield found
