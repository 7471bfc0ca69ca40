"""The marked functions as machine code, by Numba."""

import dis
import functools
import hashlib
import inspect
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config

from jaxsched.event_loop import jit, linking, references
from jaxsched.machine import cache_root, cpu_kind, usable_folder

config: Any = numba_config  # its options are attributes that it sets when it is imported

_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    *sorted(Path(__file__).parent.glob("*.py")),
    _PACKAGE / "dynamics/resources.py",
    _PACKAGE / "semantics.py",
)
_ONE_AT_A_TIME = threading.Lock()
COMPILE_S = 25  # CPU seconds until the event loop is there, about


def kept(function: str) -> bool:
    """Whether the machine code of a function that is called from Python is on disk."""
    folder = _folder()
    return folder is not None and any(folder.rglob(f"*.{function}-*.nbi"))


@functools.cache
def _folder() -> Path | None:
    """Machine code of these sources: Numba itself looks at one file at a time, not at those that it takes from."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    folder = cache_root() / "numba" / f"{cpu_kind()}-{digest.hexdigest()[:12]}"
    return folder if usable_folder(folder) else None


# Nothing here makes or keeps an array: without Numba's counts of references (`_nrt`) all is 4 times faster.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def machine_code(function: Callable) -> Callable:
    """A marked function, for Python, whose lock it does not hold. It is kept on disk beside JAX's programs."""
    with _ONE_AT_A_TIME:
        return _whole(function)


@functools.cache
def _whole(function: Callable) -> Callable:
    folder, before = _folder(), config.CACHE_DIR
    config.CACHE_DIR = str(folder or "")
    try:
        options = _OPTIONS | {"cache": folder is not None, "pipeline_class": linking.WholeCompiler}
        return numba.njit(**options)(_on_machine_code(function))
    finally:
        config.CACHE_DIR = before


@functools.cache
def _part(function: Callable) -> Callable:
    """A marked function, for others, which hold its code themselves."""
    if function is jit.by_reference:
        return references.by_reference
    inline = function in jit.INLINED
    options = _OPTIONS | {"no_cpython_wrapper": True, "forceinline": inline, "pipeline_class": linking.PartCompiler}
    return numba.njit(**options)(_on_machine_code(function))


def _on_machine_code(function: Any) -> Callable:
    """The same function, but what is marked of all that it calls is machine code."""
    names = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    called = {name: function.__globals__.get(name) for name in names}
    marked = jit.COMPILED | jit.INLINED | {jit.by_reference}
    parts = {name: _part(value) for name, value in called.items() if inspect.isfunction(value) and value in marked}
    return types.FunctionType(function.__code__, function.__globals__ | parts, function.__name__, function.__defaults__)
