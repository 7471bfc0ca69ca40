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
COMPILE_S = 20  # CPU seconds until the event loop is there, about


def kept(function: str) -> bool:
    """Whether the machine code of a function that is called from Python is on disk."""
    return _FOLDER is not None and any(_FOLDER.rglob(f"*.{function}-*.nbi"))


def compiled(function: Callable) -> Callable:
    """`function` as machine code, for other compiled functions, which hold its code themselves."""
    return _compiled(function, from_python=False)


def inlined(function: Callable) -> Callable:
    """As `compiled`, for a large function that is called from one place: it becomes part of its caller.

    Numba optimises every function by itself, with all that it calls, and again as part of its caller. Where large ones
    call each other in a long chain, that takes most of the time of compiling.
    """
    options: dict[str, Any] = {"inline": "always", "error_model": "numpy", "_nrt": False}
    return numba.njit(**options)(function)


def compiled_for_python(function: Callable) -> Callable:
    """Likewise for Python, whose lock it does not hold, and kept on disk beside JAX's programs.

    If all could be called so, compilation took twice as long.
    """
    return _compiled(function, from_python=True)


def _compiled(function: Callable, *, from_python: bool) -> Callable:
    """Nothing here makes or keeps an array: without Numba's counts of references (`_nrt`) all is 4 times faster."""
    options: dict[str, Any] = {
        "cache": from_python and _FOLDER is not None,
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
