"""Memory over time on the loopback fake, a gang a second: python -m tests.support.kube.soak MINUTES."""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import mkdtemp

from jaxsched.kube.cluster.api import ApiClient
from tests.support.kube.fake import FakeServer
from tests.support.kube.objects import make_node, make_pod

PORT = 18090


def scrape() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def main(minutes: float) -> None:
    fake = FakeServer()
    api = ApiClient(fake.url)
    for i in range(16):
        api.request("POST", "/api/v1/nodes", body=make_node(f"n{i}", rack=f"r{i // 4}"))
    config = Path(mkdtemp()) / "kubeconfig"
    config.write_text(
        f"apiVersion: v1\nkind: Config\nclusters: [{{name: f, cluster: {{server: '{fake.url}'}}}}]\n"
        "users: [{name: f, user: {}}]\ncontexts: [{name: f, context: {cluster: f, user: f}}]\ncurrent-context: f\n"
    )
    command = [sys.executable, "-m", "jaxsched.cli", "kube", "run", "--kubeconfig", str(config)]
    child = subprocess.Popen([*command, "--metrics-port", str(PORT)], stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=2).close()
                break
            except OSError:
                time.sleep(1)
        began, number, alive, told = time.time(), 0, [], 0.0
        while time.time() - began < minutes * 60:
            names = [f"s{number}-{k}" for k in range(4)]
            for name in names:
                pod = make_pod(name, 2, f"s{number}", 4)
                api.request("POST", "/api/v1/namespaces/default/pods", body=pod)
            alive.append(names)
            if len(alive) > 8:
                for name in alive.pop(0):
                    api.request("DELETE", f"/api/v1/namespaces/default/pods/{name}")
            number += 1
            if time.time() - told > 30:
                told, now = time.time(), scrape()
                done = now.get('jaxsched_pod_binds_total{result="bound"}', 0.0)
                megabytes = now["process_resident_memory_bytes"] / 2**20
                print(f"{time.time() - began:.0f} s: {megabytes:.1f} MB, {done:.0f} pods bound", flush=True)
            time.sleep(1.0)
    finally:
        child.terminate()
        child.wait(30)
        fake.close()


if __name__ == "__main__":
    main(float(sys.argv[1]))
