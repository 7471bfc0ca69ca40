"""The kind of machine: what compiled programs and the last bits of their results depend on."""

import hashlib
import platform
from pathlib import Path


def cpu_kind() -> str:
    """Architecture and a digest of the CPU's features, such as `x86_64-0123456789ab`."""
    features = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
