"""Marks of the functions that become machine code. By themselves they stay plain Python, and need no Numba."""

from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F", bound=Callable)
_T = TypeVar("_T", bound=tuple)

COMPILED: set[Callable] = set()
INLINED: set[Callable] = set()


def compiled(function: _F) -> _F:
    """To be machine code where a run is long, see `machine_code`."""
    COMPILED.add(function)
    return function


def inlined(function: _F) -> _F:
    """As `compiled`; it becomes part of its caller: a few instructions in a loop, or a step of the main loop."""
    INLINED.add(function)
    return function


def by_reference(fields: _T) -> _T:
    """A tuple as a pointer to it, for machine code; in Python the tuple itself."""
    return fields
