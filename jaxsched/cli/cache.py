"""JAX's compilation cache on disk: the second run of a command starts at once."""

from pathlib import Path

from jaxsched.machine import cache_root, cpu_kind, usable_folder


def enable_cache() -> Path | None:
    """Turns the cache on, unless its folder cannot be written; returns it. One per kind of CPU: homes are shared."""
    folder = cache_root() / "xla" / cpu_kind()
    if not usable_folder(folder):
        return None
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder
