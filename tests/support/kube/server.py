"""A real etcd and API server on loopback, as plain processes, where their binaries are found."""

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path


def binaries() -> Path | None:
    """The folder that KUBEBUILDER_ASSETS or JX_BIN names, if it holds what is needed and openssl is there."""
    for variable in ("KUBEBUILDER_ASSETS", "JX_BIN"):
        folder = Path(os.environ.get(variable) or "/nonexistent")
        if all((folder / name).is_file() for name in ("etcd", "kube-apiserver")) and shutil.which("openssl"):
            return folder
    return None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class RealServer:
    """`start`, `kubeconfig`, `minor` (of the server's version 1.x), `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Path(tempfile.mkdtemp(prefix="jaxsched-kube-"))
        self.port, self.etcd_port, self.peer_port = free_port(), free_port(), free_port()
        self.kubeconfig = self.home / "kubeconfig"
        self.processes: list[subprocess.Popen] = []
        self.minor = 0

    def start(self) -> None:
        self._certificates()
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self._run(
            "etcd", "--data-dir", str(self.home / "etcd"), "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self._start_api()
        self._wait()

    def restart(self, pause_s: float = 0.0) -> None:
        """Kill the API server and start it again: its watch cache begins anew, so that old versions are gone."""
        self.processes[-1].kill()
        self.processes.pop().wait(30)
        time.sleep(pause_s)
        self._start_api()
        self._wait()

    def _start_api(self) -> None:
        pki = self.home
        options = {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "bind-address": "127.0.0.1",
            "secure-port": self.port,
            "tls-cert-file": f"{pki}/server.crt",
            "tls-private-key-file": f"{pki}/server.key",
            "client-ca-file": f"{pki}/ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": f"{pki}/ca.key",
            "service-account-key-file": f"{pki}/ca.key",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            "endpoint-reconciler-type": "none",
        } | self._alpha()
        self._run("kube-apiserver", *(f"--{name}={value}" for name, value in options.items()))

    def _alpha(self) -> dict[str, str]:
        """What serves upstream's PodGroups with all of their fields, on the version that has them as alpha."""
        said = subprocess.run([str(self.folder / "kube-apiserver"), "--version"], capture_output=True, text=True).stdout
        if " v1.36." not in said:
            return {}
        gates = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption")
        gates = ",".join(f"{gate}=true" for gate in (*gates, "DRAWorkloadResourceClaims"))
        return {"runtime-config": "scheduling.k8s.io/v1alpha2=true", "feature-gates": gates}

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()  # an API server waits a minute for open watches after SIGTERM
            process.wait(30)
        shutil.rmtree(self.home, ignore_errors=True)

    def _run(self, name: str, *arguments: str) -> None:
        log = (self.home / f"{name}.log").open("a")
        self.processes.append(subprocess.Popen([str(self.folder / name), *arguments], stdout=log, stderr=log))

    def _certificates(self) -> None:
        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=self.home, check=True, capture_output=True)

        new = ("-newkey", "rsa:2048", "-nodes")
        openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test")
        extensions = {"server": "subjectAltName=IP:127.0.0.1", "admin": "extendedKeyUsage=clientAuth"}
        for name, subject in {"server": "/CN=kube-apiserver", "admin": "/O=system:masters/CN=admin"}.items():
            (self.home / f"{name}.ext").write_text(extensions[name])
            openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
            openssl(
                "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-out", f"{name}.crt", "-extfile", f"{name}.ext",
            )  # fmt: skip
        self.kubeconfig.write_text(
            f"""apiVersion: v1
kind: Config
clusters:
  - name: test
    cluster: {{server: "https://127.0.0.1:{self.port}", certificate-authority: {self.home}/ca.crt}}
users: [{{name: admin, user: {{client-certificate: {self.home}/admin.crt, client-key: {self.home}/admin.key}}}}]
contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]
current-context: test
"""
        )

    def _wait(self) -> None:
        import json

        context = ssl.create_default_context(cafile=str(self.home / "ca.crt"))
        context.load_cert_chain(self.home / "admin.crt", self.home / "admin.key")
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self.processes):
                break
            try:
                base = f"https://127.0.0.1:{self.port}"
                with urllib.request.urlopen(f"{base}/readyz", context=context, timeout=2):
                    pass
                with urllib.request.urlopen(f"{base}/api/v1/namespaces/default", context=context, timeout=2):
                    pass
                with urllib.request.urlopen(f"{base}/version", context=context, timeout=2) as response:
                    self.minor = int(json.load(response)["gitVersion"].split(".")[1])
                return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError((self.home / "kube-apiserver.log").read_text()[-2000:])
