"""Shared by all test rooms: hypothesis profiles, a cache of compiled programs, and a limit to what they pile up.

Being here also puts `tests/` on the path, for `import oracle`.
"""

import os
import shutil
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

from jaxsched.cli.cache import enable_cache
from jaxsched.machine import CACHE_VARIABLE, allow_whole_loops

allow_whole_loops()

# Examples come from a fixed seed, so that a run tells the same story everywhere; `--hypothesis-profile=explore` roams.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_QUIET)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """What one test, worker, notebook or command of this run has compiled, others find on disk until it ends."""
    if not hasattr(config, "workerinput"):
        os.environ[CACHE_VARIABLE] = folder = tempfile.mkdtemp(prefix="jaxsched-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(enable_cache())


_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Forgets compiled programs before the process has as many memory maps as Linux allows: then compiling crashes."""
    yield
    if _MOST_MAPS.exists() and len(_MAPS.read_bytes().splitlines()) > int(_MOST_MAPS.read_text()) // 3:
        jax.clear_caches()
