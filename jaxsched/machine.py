"""The kind of machine: what compiled programs and the last bits of their results depend on; where programs are kept."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from jaxsched.errors import UserError

_WHOLE_LOOPS = "xla_cpu_small_while_loop_byte_threshold=1000000000000000"
_NO_CALLS: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ""}


CACHE_VARIABLE, THREADS_VARIABLE = "JAXSCHED_CACHE", "JAXSCHED_THREADS"
MOST_THREADS = 4096


def home() -> Path:
    """The user's home folder; the root, as containers have it, for a user who has none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def cache_root() -> Path:
    """Where compiled programs are kept: `$JAXSCHED_CACHE`, else `~/.cache/jaxsched`."""
    return Path(os.environ.get(CACHE_VARIABLE) or home() / ".cache" / "jaxsched")


def usable_folder(folder: Path) -> bool:
    """Whether a folder is there, or could be made, and may be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side() -> int:
    """How many threads play runs: one per core, 16 at most, or as many as `JAXSCHED_THREADS` says.

    14 played rules 3.6 times as fast as 2, and a learned policy 2.5 times (docs/performance.md). UserError if the
    variable is no such number.
    """
    asked = os.environ.get(THREADS_VARIABLE, "").strip()
    if not asked:
        return min(cores(), 16)
    if not (asked.isascii() and asked.isdecimal() and len(asked) <= 9 and 1 <= int(asked) <= MOST_THREADS):
        raise UserError(f"{THREADS_VARIABLE}: {asked[:20]!r} should be a whole number from 1 to {MOST_THREADS}")
    return int(asked)


def memory_bytes() -> int:
    """What memory this process may use: the machine's, or less where its control group (v2) is limited."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdigit() else whole


def compute_on_one_thread() -> None:
    """Have JAX's CPU backend run each program on one thread.

    The program of a simulation is a sequence of small operations: handed around a pool of threads it takes up to twice
    the CPU time, and more time on the wall (docs/performance.md). For a process that simulates one thing at a time:
    several runs would share that thread. The backend sizes its pool by the cores that it may use when it starts, so
    this must come before the first array. Nothing changes afterwards, nor where a process cannot choose its cores, nor
    where JAX has a plugin for an accelerator, whose own threads would all be on one core.

    SciPy's OpenBLAS gets one thread, too, if it is not loaded yet: on small matrices its threads mostly spin.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    if jax.config.jax_platforms != "cpu" and _accelerator_plugin():  # pyright: ignore[reportAttributeAccessIssue]
        return
    if not hasattr(os, "sched_setaffinity"):
        return
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        jax.local_devices()
    finally:
        os.sched_setaffinity(0, every)


def leave_accelerators_alone() -> None:
    """Have JAX see CPUs only, unless the user's `JAX_PLATFORMS` says otherwise; before the first array.

    Otherwise it would take most of an accelerator's memory at the start, which another process may need.
    """
    import jax

    if _accelerator_plugin() and not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")


def allow_whole_loops() -> None:
    """Let XLA's CPU backend compile loops of any size as one function; before the first array. See `loop_options`."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "--xla_backend_extra_options" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={_WHOLE_LOOPS}".strip()


@functools.cache
def loop_options() -> dict[str, str | bool]:
    """Compiler options for a program of many small operations in loops; empty where XLA does not know them.

    XLA's CPU backend runs loops operation by operation, at 50 to 100 ns each. It compiles a loop as one function if
    that is small, or may be large (`allow_whole_loops`), and holds no `scatter`, `sort` or call of a library.
    The option keeps it from putting such calls in place of sums.
    """
    import jax

    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=_NO_CALLS)
    except jax.errors.JaxRuntimeError:
        return {}
    return _NO_CALLS


def _accelerator_plugin() -> bool:
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(plugins) or importlib.util.find_spec("libtpu") is not None


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


PACKAGES = ("jax", "jaxlib", "flax", "numpy", "numba")


def versions() -> dict[str, str]:
    """Of jaxsched, of the packages that its results depend on and of Python, and the kinds of device and of CPU."""
    import jax

    import jaxsched

    found = {"jaxsched": jaxsched.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"device": jax.devices()[0].device_kind, "cpu": cpu_kind()}
