"""Compiling many functions as one: each is optimised once, in the module of the one that Python calls.

By itself Numba optimises every function with all that it calls, and then again as part of each of its callers.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


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
    found: dict[Any, None] = {}
    left = list(libraries)
    while left:
        library = left.pop()
        if library not in found:
            found[library] = None
            left += library._linking_libraries
    return list(found)


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
