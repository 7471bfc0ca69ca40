"""The marked functions as machine code, by Numba.

Three things keep compiling short. Many functions are compiled as one: by itself Numba optimises every function with
all that it calls, and then again as part of each of its callers. Tuples of many arrays are passed on as one pointer: by
value they are some hundred arguments of each function. And nothing counts references.
"""

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
from llvmlite import ir
from numba.core import cgutils
from numba.core import config as numba_config
from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model

from jaxsched.event_loop._kernel import jit
from jaxsched.machine import cache_root, cpu_kind, usable_folder


class Part(JITCodeLibrary):
    """The code of a function that is called by compiled ones only: left as it is, to be linked."""

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


class PartCompiler(_Compiler):
    """To `Part`."""

    library = Part


class WholeCompiler(_Compiler):
    """To `Whole`."""

    library = Whole


class Reference(numba_types.Type):
    """A pointer to a named tuple that outlives it and does not change."""

    def __init__(self, of: numba_types.NamedTuple) -> None:
        self.of = of
        super().__init__(name=f"Reference({of})")

    def place(self, field: str) -> int:
        """Which of the fields."""
        return self.of.fields.index(field)


@register_model(Reference)
class ReferenceModel(models.PrimitiveModel):
    """How it is held: an address."""

    def __init__(self, manager: Any, reference: Reference) -> None:
        target = manager.lookup(reference.of).get_value_type()
        super().__init__(manager, reference, target.as_pointer())


@intrinsic
def by_address(typingctx: Any, fields: numba_types.NamedTuple) -> Any:
    """A named tuple of the caller as a `Reference`, for functions that it calls."""

    def address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once_value(builder, args[0])

    return Reference(fields)(fields), address


@infer_getattr
class Fields(AttributeTemplate):
    """Types of the fields; a tuple within is a `Reference`, too."""

    key = Reference

    def generic_resolve(self, reference: Reference, field: str) -> numba_types.Type:
        """See Numba's `AttributeTemplate`."""
        found = reference.of.types[reference.place(field)]
        return Reference(found) if isinstance(found, numba_types.NamedTuple) else found


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, reference: Reference, address: Any, field: str) -> Any:
    at = cgutils.gep_inbounds(builder, address, 0, reference.place(field))
    if isinstance(reference.of.types[reference.place(field)], numba_types.NamedTuple):
        return at
    return _loaded(builder, at)


def _loaded(builder: Any, at: Any) -> Any:
    """What does not change: LLVM may keep it over writes elsewhere. Member by member, since it leaves whole ones."""
    kind = at.type.pointee
    if isinstance(kind, (ir.LiteralStructType, ir.ArrayType)):
        count = len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count
        whole = ir.Constant(kind, ir.Undefined)
        for i in range(count):
            whole = builder.insert_value(whole, _loaded(builder, cgutils.gep_inbounds(builder, at, 0, i)), i)
        return whole
    value = builder.load(at)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


config: Any = numba_config  # its options are attributes that it sets when it is imported

_PACKAGE = Path(__file__).parents[2]
_SOURCES = (
    *sorted(Path(__file__).parent.glob("*.py")),
    _PACKAGE / "event_loop/coverage.py",
    _PACKAGE / "dynamics/resources.py",
    _PACKAGE / "dynamics/sharing.py",
    _PACKAGE / "semantics.py",
    _PACKAGE / "workload/jobs.py",
)
_ONE_AT_A_TIME = threading.Lock()
COMPILE_S = 35  # CPU seconds until the event loop is there, about


def is_kept(function: str) -> bool:
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
        options = _OPTIONS | {"cache": folder is not None, "pipeline_class": WholeCompiler}
        return numba.njit(**options)(_on_machine_code(function))
    finally:
        config.CACHE_DIR = before


@functools.cache
def _part(function: Callable) -> Callable:
    """A marked function, for others, which hold its code themselves."""
    if function is jit.by_reference:
        return by_address
    inline = function in jit.INLINED
    options = _OPTIONS | {"no_cpython_wrapper": True, "forceinline": inline, "pipeline_class": PartCompiler}
    return numba.njit(**options)(_on_machine_code(function))


def _on_machine_code(function: Any) -> Callable:
    """The same function, but what is marked of all that it calls is machine code."""
    names = {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}
    called = {name: function.__globals__.get(name) for name in names}
    marked = jit.COMPILED | jit.INLINED | {jit.by_reference}
    parts = {name: _part(value) for name, value in called.items() if inspect.isfunction(value) and value in marked}
    return types.FunctionType(function.__code__, function.__globals__ | parts, function.__name__, function.__defaults__)
