"""The scheduler under a drill."""

import argparse
import atexit
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.kube.server import free_port


class Process:
    """`jaxsched kube run` as a child, on a port of its own: drills can run side by side."""

    def __init__(self, args: argparse.Namespace, name: str, *more: str) -> None:
        self.port, self.log = free_port(), Path(args.logs) / f"{name}.log"
        command = [sys.executable, "-m", "jaxsched.cli", "kube", "run", "--kubeconfig", args.kubeconfig]
        command += ["--metrics-port", str(self.port), "--identity", name, "--patience-s", str(args.patience_s)]
        if args.policy.startswith("checkpoints/"):
            command += ["--checkpoint", args.policy]
        else:
            command += ["--policy", args.policy]
        self.child = subprocess.Popen([*command, *more], stderr=self.log.open("a"), stdout=self.log.open("a"))
        atexit.register(self.child.kill)

    def wait_ready(self, timeout_s: float = 180) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise SystemExit(f"scheduler ended with {self.child.returncode}: {self.log.read_text()[-500:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as response:
                    if response.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        raise SystemExit("the scheduler did not become ready")

    def metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def kill(self, number: int) -> None:
        self.child.send_signal(number)
        self.child.wait(60)
