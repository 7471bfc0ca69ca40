"""The kind of machine: what compiled programs and the last bits of their results depend on."""

import hashlib
import os
import platform
from pathlib import Path


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_kind() -> str:
    """Architecture, usable cores and a digest of the CPU's features, such as `x86_64-2-0123456789ab`.

    Sums are split over the cores, so that their number decides on last bits, too.
    """
    features = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    return f"{platform.machine()}-{cores()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
