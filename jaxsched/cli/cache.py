"""JAX's compilation cache on disk: the second run of a command starts at once."""

import os
from pathlib import Path

from jaxsched.machine import cpu_kind

VARIABLE = "JAXSCHED_CACHE"


def cache_folder() -> Path:
    """`$JAXSCHED_CACHE`, else `~/.cache/jaxsched`; in it one folder per kind of CPU: homes are shared."""
    base = Path(os.environ.get(VARIABLE) or Path("~/.cache/jaxsched").expanduser())
    return base / "xla" / cpu_kind()


def enable_cache() -> Path | None:
    """Turns the cache on, unless its folder cannot be written; returns the folder that is used."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder
