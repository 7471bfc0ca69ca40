"""The rows of a sweep as records of plain columns, which Parquet holds as well as JSON lines."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import SWEPT
from jaxsched.io.files import write_text
from jaxsched.io.json_file import read_rows
from jaxsched.sweeps.file import load_sweep
from jaxsched.sweeps.plan import rows_of
from jaxsched.sweeps.references import with_references
from jaxsched.sweeps.rows import VALIDATION, Line, check_record, read_sweep_rows

JSON_LINES, PARQUET, YAML = ".jsonl", ".parquet", (".yaml", ".yml")

Record = Line


def record_of(row: dict[str, Any]) -> Record:
    """The columns of a row: what names it, `changes` as JSON, the curve of validation, and a column per figure.

    Figures are `VALIDATION`, `TEST: JCT (s)`, `TEST: p99 (s)` and `TEST: ratio`, and the seconds of training.
    """
    figures = {VALIDATION: row["validation"]["best_jct_s"]}
    for name, test in row["tests"].items():
        figures |= {
            **{f"{name}: {metric.swept}": test[metric.name] for metric in SWEPT},
            f"{name}: ratio": test["ratio"],
        }
    return {
        "id": row["id"],
        "point": row["point"],
        "group": row["group"],
        "variant": row["variant"],
        "seed": row["seed"],
        "changes": json.dumps(row["changes"]),
        "curve_chunk": [one["chunk"] for one in row["validation"]["curve"]],
        "curve_jct_s": [one["jct_s"] for one in row["validation"]["curve"]],
        **figures,
        "training: wall (s)": row["training"]["wall_s"],
        "training: CPU (s)": row["training"]["cpu_s"],
    }


def figures_of(records: Sequence[Record]) -> list[str]:
    """The columns that hold a figure, the tests' ratios and JCTs before the others."""
    names = dict.fromkeys(name for record in records for name in record if ": " in name)
    first = [name for name in names if name.endswith(": ratio")]
    return [*first, *(name for name in names if name not in first)]


def read_records(path: Path) -> list[Record]:
    """The records of a sweep's file (.yaml, whose finished points they are), its rows (.jsonl), or Parquet.

    UserError for what is none of them, and where there is no row.
    """
    if path.suffix in YAML:
        plan = load_sweep(path)
        found, where = (
            [record_of(row) for row in with_references(rows_of(plan))],
            f"{path}: no point is finished in {plan.out}",
        )
    elif path.suffix == JSON_LINES:
        if not path.exists():
            raise UserError(f"{path}: no such file")
        found, where = _read_lines(path), f"{path}: has no rows"
    elif path.suffix == PARQUET:
        found, where = _read_parquet(path), f"{path}: has no rows"
    else:
        raise UserError(f"{path}: should be a sweep (.yaml), its rows.jsonl, or a .parquet of `jaxsched table`")
    if not found:
        raise UserError(where)
    return found


def check_records_file(path: Path | None) -> None:
    """UserError if records cannot be written into a file of this name."""
    if path is None:
        return
    if path.suffix not in (JSON_LINES, PARQUET):
        raise UserError(f"--rows {path}: should end in {JSON_LINES} or {PARQUET}")
    if path.suffix == PARQUET:
        _check_pyarrow(path)


def write_records(path: Path, records: Sequence[Record]) -> None:
    """As JSON lines or Parquet, as `path` ends; columns that a record lacks are null."""
    if path.suffix != PARQUET:
        write_text(path, "".join(json.dumps(record) + "\n" for record in records))
        return
    import pyarrow
    from pyarrow import parquet

    names = dict.fromkeys(name for record in records for name in record)
    parquet.write_table(pyarrow.table({name: [record.get(name) for record in records] for name in names}), path)


def _read_lines(path: Path) -> list[Record]:
    """Of a file of rows, or of records."""
    rows = read_rows(path)
    if "curve_chunk" in (rows[0] if rows else {}):
        return [check_record(row, f"{path}, line {number}") for number, row in enumerate(rows, 1)]
    return [record_of(row) for row in with_references(read_sweep_rows(path))]


def _read_parquet(path: Path) -> list[Record]:
    _check_pyarrow(path)
    import pyarrow
    from pyarrow import parquet

    try:
        found = parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
    return [check_record(row, f"{path}, row {number}") for number, row in enumerate(found, 1)]


def _check_pyarrow(path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{path}: Parquet needs pyarrow, which is not installed: pip install 'jaxsched[tables]'")
