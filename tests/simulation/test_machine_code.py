"""Tables in machine code: what is read and written is what Python reads and writes."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxsched.event_loop._kernel.jit import by_reference, compiled, inlined, with_rows, write

numba = pytest.importorskip("numba", reason="machine code needs the extra `compiled`")

RECORD = np.dtype([("small", "i1"), ("large", "f8"), ("half", "f4")], align=True)


class Inner(NamedTuple):
    """A tuple within."""

    flag: bool
    deep: Any  # int64[2, 3, 4]


class Fields(NamedTuple):
    """Of all kinds that worlds and tables have."""

    many: int
    numbers: Any  # int64[5]
    other: Any  # int64[2]
    fixed: Any  # float32[3, 4], not to be written
    gaps: Any  # float64[3], every second of an array
    bytes: Any  # int8[2, 2]
    records: Any  # RECORD[2, 3]
    none: Any  # int64[0, 0]
    inner: Inner


def make_fields() -> Fields:
    fixed = np.linspace(0.1, 1.2, 12, dtype=np.float32).reshape(3, 4)
    fixed.flags.writeable = False
    records = np.zeros((2, 3), RECORD)
    records["large"], records["small"] = np.arange(6).reshape(2, 3) / 7, -3
    gaps = np.arange(6.0)[::2]
    inner = Inner(True, np.arange(24).reshape(2, 3, 4))
    none = np.zeros((0, 0), int)
    return Fields(7, np.arange(5) * 3, np.arange(2), fixed, gaps, np.ones((2, 2), np.int8), records, none, inner)


@compiled
def _sum(row: Any, least: int) -> int:
    total = 0
    for i in range(len(row)):
        total += max(row[i], least)
    return total


@inlined
def _change(f: Fields, i: int, j: int) -> None:
    f.numbers[i] += 100
    f.numbers[-1] = f.many
    f.bytes[i, j] = 5
    f.inner.deep[i, j, -2] = -1
    record = f.records[i, -1]
    record.large, record.half = record.large + 0.5, 0.25
    f.records[i, j].small -= 1


@compiled
def _compute(f: Fields, i: int, j: int) -> float:
    _change(f, i, j)
    chosen = f.numbers if f.inner.flag else f.other
    lengths = f.inner.deep.shape[2] * 1000.0 + f.fixed.size + len(f.none)
    found = f.fixed[i, -j] + f.gaps[-1] + f.records[i, j].large + f.records[i, j].small
    return found + lengths + _sum(f.inner.deep[i, j], 0) + _sum(f.numbers, 1) + chosen[i]


@compiled
def compute(f: Fields, i: int, j: int) -> float:
    return _compute(by_reference(f), i, j)


@pytest.mark.parametrize(("i", "j"), [(0, 1), (1, 1)])
def test_machine_code_reads_and_writes_as_python_does(i, j):
    from jaxsched.event_loop._kernel.machine_code import machine_code

    compiled_fields, played = make_fields(), make_fields()
    rows = with_rows(played)
    expected = compute(rows, i, j)
    write(rows)
    assert machine_code(compute)(compiled_fields, i, j) == pytest.approx(expected, rel=1e-12)
    for name, value in compiled_fields._asdict().items():
        np.testing.assert_array_equal(
            getattr(played, name) if name != "inner" else played.inner.deep,
            value if name != "inner" else value.deep,
            err_msg=name,
        )


def test_numba_is_left_as_it_was():
    """What is done to it while the loop is compiled is undone, and others' functions are compiled as ever."""
    from numba.core.registry import cpu_target

    from jaxsched.event_loop._kernel.machine_code import machine_code

    machine_code(compute)(make_fields(), 0, 0)
    assert "resolve_function_type" not in vars(cpu_target.typing_context)
    assert numba.njit(lambda row: row[-1] + len(row))(np.arange(3.0)) == 5.0
