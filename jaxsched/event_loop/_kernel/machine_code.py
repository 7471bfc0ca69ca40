"""The marked functions as machine code, by Numba.

Some things keep compiling short. Many functions are compiled as one: by itself Numba optimises every function with
all that it calls, and then again as part of each of its callers. Tuples of many arrays are passed on as one pointer: by
value they are some hundred arguments of each function; so are arrays (`pointers`). Nothing counts references. And what
Numba does for any function, and these do not need, is left out.
"""

import contextlib
import dis
import functools
import gc
import hashlib
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager

from jaxsched.event_loop._kernel import jit
from jaxsched.event_loop._kernel.pointers import by_address
from jaxsched.machine import cache_root, cpu_kind, usable_folder


class Part(JITCodeLibrary):
    """The code of a function that is called by compiled ones only: left as it is, to be linked."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """See Numba."""
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None: it cannot be called by itself."""
        return 0

    @property
    def codegen(self) -> Any:
        """Itself: Numba asks it for nothing but `set_env`."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Not needed: it does not call Python."""


class Whole(JITCodeLibrary):
    """The code of a function that Python calls, with that of all functions that it needs."""

    def _optimize_final_module(self) -> None:
        """Once, not twice as Numba; a level lower, and without vectors: that takes less time and runs as fast."""
        manager, builder = self._codegen._module_pass_manager(opt=2, loop_vectorize=False)
        manager.run(self._final_module, builder)

    def finalize(self) -> None:
        """See Numba."""
        self._linking_libraries = _all_of(self._linking_libraries)
        super().finalize()


def _all_of(libraries: list[Any]) -> list[Any]:
    """Those and all that they need, each behind all that call it: LLVM leaves out what nobody has called yet."""
    found: dict[Any, None] = {}

    def visit(library: Any) -> None:
        if library not in found:
            for called in library._linking_libraries:
                visit(called)
            found[library] = None

    for library in libraries:
        visit(library)
    return list(found)[::-1]


class _Compiler(Compiler):
    library: type[JITCodeLibrary]

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *others: Any) -> None:
        super().__init__(typingctx, targetctx, library, *others)
        self.state.library = self.library(targetctx.codegen(), self.library.__name__)
        self.state.library.enable_object_caching()

    def define_pipelines(self) -> list[PassManager]:
        """Numba's, without the passes for what is not in these functions."""
        (usual,) = super().define_pipelines()
        lean = PassManager(usual.pipeline_name)
        lean.passes = [(one, what) for one, what in usual.passes if one.__name__ not in _NOT_NEEDED]
        lean.finalize()
        return [lean]


# Closures, `with`, `literally`, expressions of whole arrays, and other things that these functions do not have.
_NOT_NEEDED = {
    *("WithLifting", "InlineClosureLikes", "RewriteSemanticConstants", "RewriteDynamicRaises", "InlineOverloads"),
    *("MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls", "LiteralUnroll", "NopythonRewrites"),
    *("NoPythonSupportedFeatureValidation", "DumpParforDiagnostics"),
}


class PartCompiler(_Compiler):
    """To `Part`."""

    library = Part


class WholeCompiler(_Compiler):
    """To `Whole`."""

    library = Whole

    def compile_extra(self, func: Any) -> Any:
        """With all functions that it needs. Python's collector would search what Numba keeps, again and again."""
        collects = gc.isenabled()
        gc.disable()
        try:
            with _resolving_once(self.state.typingctx):
                return super().compile_extra(func)
        finally:
            if collects:
                gc.enable()


@contextlib.contextmanager
def _resolving_once(context: Any) -> Iterator[None]:
    """Numba finds out anew for each `+` which of its many functions fits the types: here, once for the same types."""
    resolve, known = context.resolve_function_type, {}

    def resolve_once(function: Any, args: tuple, kws: Any) -> Any:
        if kws or not isinstance(function, numba_types.Function):
            return resolve(function, args, kws)
        if (function, args) not in known:
            known[function, args] = resolve(function, args, kws)
        return known[function, args]

    context.resolve_function_type = resolve_once
    try:
        yield
    finally:
        del context.resolve_function_type


config: Any = numba_config  # its options are attributes that it sets when it is imported

_PACKAGE = Path(__file__).parents[2]
_SOURCES = (
    *sorted(Path(__file__).parent.rglob("*.py")),
    _PACKAGE / "event_loop/coverage.py",
    _PACKAGE / "dynamics/resources.py",
    _PACKAGE / "dynamics/sharing.py",
    _PACKAGE / "semantics.py",
    _PACKAGE / "workload/jobs.py",
    _PACKAGE / "workload/patterns.py",
)
_ONE_AT_A_TIME = threading.Lock()
COMPILE_S = 20  # CPU seconds until the event loop is there, about


SIMPLE_COMPILE_S = 11  # as COMPILE_S, for simple worlds


def is_kept(function: str, *, simple: bool = False) -> bool:
    """Whether the machine code of a function that is called from Python is on disk, for all or for simple worlds."""
    folder = _folder(simple)
    return folder is not None and any(folder.rglob(f"*.{_name(function, simple)}-*.nbi"))


def _name(function: str, simple: bool) -> str:
    """Of a function's machine code. LLVM tells code by names, and one process may have that of both kinds of worlds."""
    return f"{function}_simple" if simple else function


@functools.cache
def _folder(simple: bool) -> Path | None:
    """Machine code of these sources: Numba itself looks at one file at a time, not at those that it takes from."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    folder = cache_root() / "numba" / f"{cpu_kind()}-{digest.hexdigest()[:12]}{'-simple' * simple}"
    return folder if usable_folder(folder) else None


# Nothing here makes or keeps an array: without Numba's counts of references (`_nrt`) all is 4 times faster.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def machine_code(function: Callable, *, simple: bool = False) -> Callable:
    """A marked function, for Python, whose lock it does not hold. It is kept on disk beside JAX's programs.

    Args:
        function: marked as `compiled`.
        simple: For simple worlds only. Where the code for all worlds is not there yet, less is compiled then.
    """
    with _ONE_AT_A_TIME:
        return _whole(function, simple and _is_first(function))


@functools.cache
def _is_first(function: Callable) -> bool:
    """Whether its code for all worlds was not there when a simple world was first played."""
    return not is_kept(function.__name__)


@functools.cache
def _whole(function: Callable, simple: bool) -> Callable:
    folder, before = _folder(simple), config.CACHE_DIR
    config.CACHE_DIR = str(folder or "")
    try:
        options = _OPTIONS | {"cache": folder is not None, "pipeline_class": WholeCompiler}
        return numba.njit(**options)(_on_machine_code(function, simple))
    finally:
        config.CACHE_DIR = before


@functools.cache
def _part(function: Callable, simple: bool) -> Callable:
    """A marked function, for others, which hold its code themselves."""
    if function is jit.by_reference:
        return by_address
    inline = function in jit.INLINED
    options = _OPTIONS | {"no_cpython_wrapper": True, "forceinline": inline, "pipeline_class": PartCompiler}
    if simple and function in jit.SPECIAL:
        never = _NEVER_CALLED[function.__annotations__["return"]]
        return numba.njit(**options)(_named(_name(function.__name__, simple), never, never.__globals__))
    return numba.njit(**options)(_on_machine_code(function, simple))


# In the place of functions that are not called, by what they return: the types of their callers stay as they are.
_NEVER_CALLED: dict[Any, Callable] = {int: lambda *_: 0, bool: lambda *_: False, None: lambda *_: None}


def _on_machine_code(function: Any, simple: bool) -> Callable:
    """The same function, but what is marked of all that it calls is machine code."""
    names = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    called = {name: function.__globals__.get(name) for name in names}
    marked = jit.COMPILED | jit.INLINED | {jit.by_reference}
    parts = {
        name: _part(value, simple) for name, value in called.items() if inspect.isfunction(value) and value in marked
    }
    return _named(_name(function.__name__, simple), function, function.__globals__ | parts)


def _named(name: str, function: Any, names: dict[str, Any]) -> Callable:
    """The same function, by that name, in which global names mean something else."""
    made = types.FunctionType(function.__code__, names, name, function.__defaults__)
    made.__qualname__ = name
    return made
