"""What the lines of a sweep's files must hold, before anything is made of them: rows, baselines, and records of rows.

More than this may stand in a line. A figure is null, or NaN, where a run did not finish.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import SWEPT
from jaxsched.io.json_file import read_rows
from jaxsched.io.schema import Count, Text, convert

ROWS_FILE = "rows.jsonl"
VALIDATION = "validation: JCT (s)"

Line = dict[str, Any]
Figure = float | None


class _Reached(msgspec.Struct):
    chunk: Count
    jct_s: Figure


class _Validation(msgspec.Struct):
    best_jct_s: Figure
    curve: list[_Reached]


class _Test(msgspec.Struct):
    jct_mean_s: Figure
    ratio: Figure
    best_baseline: Text | None
    baselines_jct_s: dict[Text, Figure]

    def __post_init__(self) -> None:
        if self.best_baseline is not None and self.best_baseline not in self.baselines_jct_s:
            raise ValueError("best_baseline should be one of baselines_jct_s")


_TestFigures: Any = msgspec.defstruct("_TestFigures", [(metric.name, Figure) for metric in SWEPT], bases=(_Test,))


class _Training(msgspec.Struct):
    wall_s: float
    cpu_s: float
    chunk_wall_s: Figure
    chunk_cpu_s: Figure


class _Row(msgspec.Struct):
    id: Text
    point: Text
    group: Text
    variant: Text
    seed: Count
    changes: dict[str, Any]
    validation: _Validation
    tests: dict[Text, _TestFigures]  # pyright: ignore[reportInvalidTypeForm]
    training: _Training


class _Baseline(msgspec.Struct):
    id: Text
    jct_by_list_s: dict[Text, list[Figure]]


class _Record(msgspec.Struct, rename={"validation_s": VALIDATION}):
    id: Text
    point: Text
    group: Text
    seed: Count
    changes: str
    curve_chunk: list[Count]
    curve_jct_s: list[Figure]
    validation_s: Figure


def read_sweep_rows(path: Path) -> list[Line]:
    """The rows of `ROWS_FILE`; none where there is no file. UserError with the line and the place that is wrong."""
    return read_rows(path, _Row, "row of a sweep")


def read_baselines(path: Path) -> list[Line]:
    """The rows of hand-written policies. UserError as `read_sweep_rows`."""
    return read_rows(path, _Baseline, "measurement of a sweep's baselines")


def check_record(record: Line, where: str) -> Line:
    """A record: see `sweeps.records`. UserError if it is none."""
    where = f"{where}: is no row of a sweep"
    convert(_Record, record, where, finite=False)
    figures = {name: value for name, value in record.items() if ": " in name}
    convert(dict[str, Figure], figures, where, finite=False)
    try:
        changes = json.loads(record["changes"])
    except (ValueError, RecursionError):
        changes = None
    if not isinstance(changes, dict):
        raise UserError(f"{where}: changes: should be a mapping, as JSON")
    return record
