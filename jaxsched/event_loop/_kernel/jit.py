"""Marks of the functions that become machine code, and tables with which they are played as plain Python.

By themselves the functions stay plain Python, and need no Numba.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

_F = TypeVar("_F", bound=Callable)
_T = TypeVar("_T", bound=tuple)

COMPILED: set[Callable] = set()
INLINED: set[Callable] = set()
SPECIAL: set[Callable] = set()


def compiled(function: _F) -> _F:
    """To be machine code where a run is long, see `machine_code`."""
    COMPILED.add(function)
    return function


def inlined(function: _F) -> _F:
    """As `compiled`; it becomes part of its caller: a few instructions in a loop, or a step of the main loop."""
    INLINED.add(function)
    return function


def special(function: _F) -> _F:
    """Besides: never called in simple worlds (`records.is_simple_world`): no part of the machine code for these."""
    SPECIAL.add(function)
    return function


def by_reference(fields: _T) -> _T:
    """A tuple as a pointer to it, for machine code; in Python the tuple itself."""
    return fields


class Rows(dict):
    """A table of records of which each becomes an object when it is first asked for.

    Until `write`, what is written into them is not in the table.
    """

    def __init__(self, table: np.ndarray) -> None:
        """`table`: records, of any shape; a place has as many indices as that."""
        self.table, self.shape, self.size = table, table.shape, table.size
        self._row = _row_of(table.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __missing__(self, place: Any) -> Any:
        """The record at a place; its fields can be read and written."""
        row = self[place] = self._row(*self.table[place].item())
        return row

    def write(self) -> None:
        """Put what has been written into the table."""
        names = self.table.dtype.names or ()
        for place, row in self.items():
            self.table[place] = tuple(getattr(row, name) for name in names)


@functools.cache
def _row_of(dtype: np.dtype) -> type:
    names = dtype.names or ()

    def fill(self: Any, *values: float) -> None:
        for name, value in zip(names, values):
            setattr(self, name, value)

    return type("Row", (), {"__slots__": names, "__init__": fill})


def with_rows(fields: tuple) -> Any:
    """A named tuple whose tables are `Rows`; 32-bit floats become 64-bit ones, as machine code computes with them."""
    return type(fields)(*map(_for_python, fields))


def _for_python(value: Any) -> Any:
    if isinstance(value, tuple):
        return with_rows(value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.names:
        return Rows(value)
    return value.astype(np.float64) if value.dtype == np.float32 else value


def write(fields: tuple) -> None:
    """Put what Python has written into the tables."""
    for value in fields:
        if isinstance(value, Rows):
            value.write()
        elif isinstance(value, tuple):
            write(value)
