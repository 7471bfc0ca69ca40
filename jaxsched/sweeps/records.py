"""The rows of a sweep as records of plain columns, which Parquet holds as well as JSON lines; and what is beside them.

Untrained policies and the rules of their priors are rows like others, with a group of their own. Where many groups
begin alike there is one row for all. `doubts` says which trainings may show nothing.
"""

import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import SWEPT, mean_interval
from jaxsched.io.files import write_text
from jaxsched.io.json_file import read_rows
from jaxsched.learning.untrained import FEW_DECISIONS, are_alike
from jaxsched.sweeps.plan import load_sweep, rows_of
from jaxsched.sweeps.rows import VALIDATION, Line, check_record, read_sweep_rows

Row = dict[str, Any]
UNTRAINED, PRIOR = "untrained", "prior"
_NOTHING = dict.fromkeys(("wall_s", "cpu_s", "chunk_wall_s", "chunk_cpu_s"))


def with_references(rows: Sequence[Row]) -> list[Row]:
    """The rows, and after them those of untrained policies and of priors; rows from before have none."""
    return [*rows, *_references(rows, UNTRAINED, lambda row: UNTRAINED), *_references(rows, PRIOR, _prior_of)]


def _references(rows: Sequence[Row], kind: str, name_of: Callable[[Row], str]) -> Iterator[Row]:
    """Rows of a kind, for every set of figures by seed that some group has; it has the name of these groups."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["tests"] and all(kind in test for test in row["tests"].values()):
            groups.setdefault(row["group"], []).append(_reference(row, kind))
    sets: dict[str, list[str]] = {}
    for group, own in groups.items():
        sets.setdefault(repr([(row["seed"], row["tests"]) for row in own]), []).append(group)
    first = {own[0]: own for own in sets.values()}
    names = {group: name_of(next(row for row in rows if row["group"] == group)) for group in first}
    for group, like in first.items():
        alone = list(names.values()).count(names[group]) == 1
        more = f" and {len(like) - 1} more" if len(like) > 1 else ""
        name = names[group] if alone else f"{names[group]} ({group}{more})"
        yield from (row | {"group": name, "point": f"{name} seed={row['seed']}"} for row in groups[group])


def _reference(row: Row, kind: str) -> Row:
    curve = row["validation"]["curve"]
    before = next((one["jct_s"] for one in curve if one["chunk"] == 0), None) if kind == UNTRAINED else None
    tests = {name: test[kind] for name, test in row["tests"].items()}
    own = {"id": f"{row['id']} {kind}", "validation": {"best_jct_s": before, "curve": []}, "training": _NOTHING}
    return row | own | {"tests": tests}


def _prior_of(row: Row) -> str:
    return f"{PRIOR}: {next(iter(row['tests'].values()))[PRIOR]['policy']}"


def doubts(rows: Sequence[Row]) -> Iterator[str]:
    """A line for every group whose trainings may show nothing."""
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        decisions = min((row["training"].get("decisions") or math.inf for row in own), default=math.inf)
        if decisions < FEW_DECISIONS:
            yield f"{group}: {decisions:,.0f} decisions of a training are few to learn from"
        for name in own[0]["tests"]:
            if said := _compare([row["tests"][name] for row in own if name in row["tests"]]):
                yield f"{group}: {name}: {said}"


def _compare(tests: Sequence[dict[str, Any]]) -> str | None:
    """What is to be said of trained and untrained figures of a test, a seed each."""
    pairs = [(test["jct_by_list_s"], test[UNTRAINED]["jct_by_list_s"]) for test in tests if UNTRAINED in test]
    if not pairs or any(None in by_list for pair in pairs for by_list in pair):
        return None
    if all(are_alike(*pair) for pair in pairs):
        return "trained and untrained decide alike, so that it shows nothing of what training or a part of it brings"
    low, high = mean_interval(np.array([np.mean(after) / np.mean(before) for after, before in pairs]))
    return "seeds do not tell trained from untrained" if low <= 1.0 <= high else None


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
    ids: dict[str, str] = {}
    for record in found:
        if ids.setdefault(record["point"], record["id"]) != record["id"]:
            raise UserError(
                f"{path}: has rows of two configurations of {record['point']!r}, as of a sweep that was changed; give "
                "its file (.yaml), which says which ones are its own"
            )
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
