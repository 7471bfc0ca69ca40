"""Memory and threads of a training run over time: python -m tests.support.training_soak MINUTES [CONFIG]."""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxsched.io.json_file import read_rows
from jaxsched.learning.loop import METRICS_FILE


def of_process(pid: int, name: str) -> int:
    """A number of /proc/PID/status: VmRSS (kB) or Threads."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def main(minutes: float, config: str) -> None:
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "jaxsched.cli", "train", "--config", config, "--out", str(run)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        try:
            while time.monotonic() - began < minutes * 60 and child.poll() is None:
                time.sleep(20)
                log = run / METRICS_FILE
                chunks = len(read_rows(log)) if log.exists() else 0
                megabytes, threads = of_process(child.pid, "VmRSS") / 1024, of_process(child.pid, "Threads")
                now = time.monotonic() - began
                print(f"{now:.0f} s: {megabytes:.1f} MB, {threads} threads, {chunks} chunks", flush=True)
        finally:
            child.terminate()
            child.wait(60)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "configs/quickstart.yaml")
