"""Shared by all rooms: shapes checked, hypothesis' profiles, compiled programs kept on disk and not all in memory."""

import ctypes
import gc
import os
import time
from pathlib import Path

if os.environ.get("CHECK_SHAPES") != "0":  # before anything of the package is imported
    from tests.support.shapes import check_functions_of

    check_functions_of("jaxsched", but="jaxsched.event_loop")  # Numba compiles these from their source

import jax
import pytest
from hypothesis import HealthCheck, Phase, settings

from jaxsched.machine import CACHE_VARIABLE, allow_whole_loops, enable_cache

allow_whole_loops()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `machine.compute_on_one_thread`; SciPy is not loaded yet

gc.set_threshold(100_000, 20, 20)  # tracing makes many objects: looking for garbage as often as usual is 8% of the time

# Examples come from a fixed seed, so that a run tells the same story everywhere; `--hypothesis-profile=explore` roams,
# and makes what it finds small, which takes minutes where each try plays a whole run.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_ONCE = (Phase.explicit, Phase.generate)
settings.register_profile(
    "fixed", deadline=None, derandomize=True, phases=_ONCE, print_blob=True, suppress_health_check=_QUIET
)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile("fixed")


CACHE = Path(__file__).parents[1] / ".cache" / "tests"  # never the user's own, that tests may not touch
KEPT_S = 14 * 86400.0


def pytest_configure(config: pytest.Config) -> None:
    """What one test, worker, notebook or command has compiled, others and later runs find on disk.

    Keyed by the program, the versions and the kind of machine. `TESTS_CACHE=$(mktemp -d) make test` compiles anew.
    """
    os.environ[CACHE_VARIABLE] = os.environ.get("TESTS_CACHE") or str(CACHE)
    folder = enable_cache()
    if folder is None:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    if CACHE in folder.parents and not hasattr(config, "workerinput"):
        for path in [path for path in folder.iterdir() if path.stat().st_mtime < time.time() - KEPT_S]:
            path.unlink(missing_ok=True)


# Fixtures that compile a lot for whichever test comes first, by room.
COMPILING = {
    "calibration": {"fitted", "folder"},
    "evaluation": {"comparison"},
    "kube": {"planner", "start"},
    "simulation": {"comparison"},
    "learning": {"batch", "chunks", "learner", "log_probs", "play", "played", "replay", "state", "step", "whole"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks by what a test needs: notebooks are `long`, what uses a `COMPILING` fixture is `slow`."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.long)
        needed = {name for room in item.path.parts for name in COMPILING.get(room, ())}
        if needed.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_PAGES, _PAGE_BYTES = Path("/proc/self/statm"), os.sysconf("SC_PAGE_SIZE")
MOST_BYTES = 2 << 30  # of a worker between tests; a single one adds half a gigabyte at most


@pytest.fixture(autouse=True)
def little_memory():
    """Forgets compiled programs before they take too much memory: what is needed again is read from the disk."""
    yield
    if _PAGES.exists() and _resident_bytes() > MOST_BYTES:
        _return_freed()
        if _resident_bytes() > MOST_BYTES * 3 // 4:
            jax.clear_caches()
            gc.collect()
            _return_freed()


def _resident_bytes() -> int:
    return int(_PAGES.read_text().split()[1]) * _PAGE_BYTES


def _return_freed() -> None:
    """To the system: glibc keeps what compilers have freed, which is more than half of what they took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Forgets compiled programs before the process has as many memory maps as Linux allows: then compiling crashes."""
    yield
    if _MOST_MAPS.exists() and len(_MAPS.read_bytes().splitlines()) > int(_MOST_MAPS.read_text()) // 3:
        jax.clear_caches()
