"""The decorators of everything here that is compiled."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config

from jaxsched.machine import cache_root, cpu_kind, usable_folder

config: Any = numba_config  # its options are attributes that it sets when it is imported

OLDEST = (0, 68)
if numba.version_info[:2] < OLDEST:
    raise ImportError(f"Numba {'.'.join(map(str, OLDEST))} or newer, {numba.__version__} is installed")

_PACKAGE = Path(__file__).parents[3]
_SOURCES = (
    *sorted(Path(__file__).parent.glob("*.py")),
    _PACKAGE / "dynamics/resources.py",
    _PACKAGE / "semantics.py",
)


def _folder() -> Path | None:
    """Machine code of these sources: Numba itself looks at one file at a time, not at those that it takes from."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    folder = cache_root() / "numba" / f"{cpu_kind()}-{digest.hexdigest()[:12]}"
    return folder if usable_folder(folder) else None


_FOLDER = _folder()


def compiled(function: Callable) -> Callable:
    """`function` as machine code, kept on disk beside JAX's programs; for other compiled functions."""
    return _compiled(function, from_python=False)


def compiled_for_python(function: Callable) -> Callable:
    """Likewise for Python, whose lock it does not hold. If all could be called so, compilation took twice as long."""
    return _compiled(function, from_python=True)


def _compiled(function: Callable, *, from_python: bool) -> Callable:
    """Nothing here makes or keeps an array: without Numba's counts of references (`_nrt`) all is 4 times faster."""
    options: dict[str, Any] = {
        "cache": _FOLDER is not None,
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": not from_python,
        "no_cfunc_wrapper": True,
        "_nrt": False,
    }
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_FOLDER or "")
    try:
        return numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = before
