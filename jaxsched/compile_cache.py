"""JAX's compilation cache on disk: the second run of a command starts at once."""

import os
import sys
from pathlib import Path

from jaxsched.machine import cache_root, cpu_kind, usable_folder

OPTIONS = {"persistent_cache_min_compile_time_secs": 0.0, "persistent_cache_min_entry_size_bytes": 0}


def enable_cache() -> Path | None:
    """Turns the cache on, unless its folder cannot be written; returns it. One per kind of CPU: homes are shared.

    Where JAX is not imported yet, it is told by its environment variables: not every command needs it.
    """
    folder = cache_root() / "xla" / cpu_kind()
    if not usable_folder(folder):
        return None
    options = {"compilation_cache_dir": str(folder)} | OPTIONS
    for name, value in options.items():
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(f"jax_{name}", value)
        else:
            os.environ[f"JAX_{name.upper()}"] = str(value)
    return folder
