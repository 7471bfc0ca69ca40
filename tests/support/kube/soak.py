"""Memory and threads over time on the loopback fake: python -m tests.support.kube.soak MINUTES [hostile].

A gang a second; with `hostile`, five spoilt objects a second on top, and clients that hold connections open.
"""

import random
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import mkdtemp

from jaxsched.kube.cluster.api import ApiClient
from tests.fuzz.kube_cases import hostile
from tests.support.kube.fake import FakeServer
from tests.support.kube.objects import make_node, make_pod
from tests.support.kube.server import free_port

PORT = free_port()


def scrape() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


PATHS = {
    "pods": "/api/v1/namespaces/default/pods",
    "nodes": "/api/v1/nodes",
    "podgroups": "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups",
    "persistentvolumeclaims": "/api/v1/namespaces/default/persistentvolumeclaims",
    "persistentvolumes": "/api/v1/persistentvolumes",
}
HELD = 200  # hostile objects at a time


class Hostile:
    """Objects that come, stay a while and go, and connections that only stay open."""

    def __init__(self, api: ApiClient) -> None:
        self.api, self.rng, self.number = api, random.Random(0), 0
        self.there: list[str] = []
        self.silent: list[socket.socket] = []

    def turn(self) -> None:
        """Five more objects, as many fewer, and a client."""
        for _ in range(5):
            self.number += 1
            kind, raw = hostile(self.rng, self.number)
            parts = ("metadata", "spec", "status")
            if not all(isinstance(raw.get(part, {}), dict) for part in parts):
                continue  # no server takes such an object
            name = f"hostile-{self.number}"
            raw["metadata"] = raw.get("metadata", {}) | {"name": name}
            raw.setdefault("spec", {})
            if self.api.request("POST", PATHS[kind], body=raw).ok:
                self.there.append(f"{PATHS[kind]}/{name}")
        while len(self.there) > HELD:
            self.api.request("DELETE", self.there.pop(0))
        self.silent.append(socket.create_connection(("127.0.0.1", PORT), timeout=10))
        if len(self.silent) > 50:
            self.silent.pop(0).close()


def threads(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Threads:")))


def main(minutes: float, spoilt: bool) -> None:
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
        enemy = Hostile(api) if spoilt else None
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
            if enemy is not None:
                enemy.turn()
            if time.time() - told > 30:
                told, now = time.time(), scrape()
                done = now.get('jaxsched_pod_binds_total{result="bound"}', 0.0)
                megabytes = now["process_resident_memory_bytes"] / 2**20
                faults = now["jaxsched_gangs_set_aside_total"] + now["jaxsched_failed_turns_total"]
                print(
                    f"{time.time() - began:.0f} s: {megabytes:.1f} MB, {threads(child.pid)} threads, {done:.0f} pods "
                    f"bound, {enemy.number if enemy else 0} hostile objects, {faults:.0f} faults",
                    flush=True,
                )
            time.sleep(1.0)
    finally:
        child.terminate()
        child.wait(30)
        fake.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), "hostile" in sys.argv[2:])
