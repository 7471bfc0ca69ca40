"""A whole control plane on loopback: API server, controller manager, default scheduler, fake kubelets."""

import json
import subprocess
import sys
import time
import urllib.request

from jaxsched.kube.cluster.api import connect
from tests.support.kube.drill_pods import patient
from tests.support.kube.kubelets import Kubelets
from tests.support.kube.server import RealServer, binaries, free_port

CONTROLLERS = "node-lifecycle-controller,pod-garbage-collector-controller,taint-eviction-controller"


class ControlPlane(RealServer):
    """`start` with `nodes` fake nodes; `stop`. `alone`: the API server and the nodes, nothing else.

    SystemExit if there are no binaries.
    """

    def __init__(self, nodes: int, alone: bool = False) -> None:
        folder = binaries()
        if folder is None:
            raise SystemExit("KUBEBUILDER_ASSETS names no folder with etcd, kube-apiserver and the others")
        super().__init__(folder)
        self.nodes, self.alone = nodes, alone
        self.others: list[subprocess.Popen] = []

    def start(self) -> None:
        super().start()
        if self.alone:
            Kubelets(connect(str(self.kubeconfig)), self.nodes).register()
            return
        self._other("kube-controller-manager", f"--controllers={CONTROLLERS}")
        self._other("kube-scheduler")
        command = [sys.executable, "-m", "tests.support.kube.kubelets", str(self.kubeconfig), str(self.nodes)]
        log = (self.home / "kubelets.log").open("a")
        self.others.append(subprocess.Popen(command, stdout=log, stderr=log))
        self._wait_for_nodes()

    def _other(self, name: str, *arguments: str) -> None:
        """A process beside the API server, which `restart` must not take for it."""
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        self._run(name, *common, *arguments, f"--secure-port={free_port()}")
        self.others.append(self.processes.pop())

    def _wait_for_nodes(self) -> None:
        api = connect(str(self.kubeconfig))
        while len(patient(api, "GET", "/api/v1/nodes").body["items"]) < self.nodes:
            if any(process.poll() is not None for process in self.others):
                raise SystemExit("the controller manager, the scheduler or the kubelets ended at once")
            time.sleep(0.2)

    def compact(self) -> None:
        """Forget all old versions in etcd."""
        etcd = f"http://127.0.0.1:{self.etcd_port}/v3"
        version = _post(f"{etcd}/maintenance/status", {})["header"]["revision"]
        _post(f"{etcd}/kv/compaction", {"revision": version, "physical": True})

    def stop(self) -> None:
        for process in self.others:
            process.kill()
            process.wait(30)
        super().stop()


def _post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)
