"""The rows of a sweep as a table: mean ± 95% t interval over seeds, one line per group of points."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxsched.evaluation.metrics import mean_interval
from jaxsched.evaluation.tables import align, markdown_table, plus_minus
from jaxsched.sweeps.references import doubts, with_references

_MISSING = math.nan


def cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column names and lines of text, in the order of the rows; then untrained policies and the rules of priors."""
    rows = with_references(rows)
    tests = list(dict.fromkeys(name for row in rows for name in row["tests"]))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    columns: list[tuple[str, Callable[[dict], float | None], int]] = [
        ("validation JCT (s)", lambda row: row["validation"]["best_jct_s"], 0),
        *[
            column
            for name in tests
            for column in (
                (f"{name}: JCT (s)", _of_test(name, "jct_mean_s"), 0),
                (f"{name}: ratio", _of_test(name, "ratio"), 3),
            )
        ],
        ("wall per chunk (s)", lambda row: row["training"]["chunk_wall_s"], 2),
        ("CPU per chunk (s)", lambda row: row["training"]["chunk_cpu_s"], 2),
    ]
    names = ["point", "seeds", *(name for name, _, _ in columns)]
    lines = []
    for group in groups:
        own = [row for row in rows if row["group"] == group]
        lines.append([group, str(len(own)), *(_summarize(map(of, own), digits) for _, of, digits in columns)])
    return names, lines


def legend(rows: list[dict[str, Any]]) -> list[str]:
    """What the figures mean, and which policies the ratios are to."""
    lines = ["± 95% t interval over training seeds; ratio: JCT over the best hand-written policy's on the same jobs"]
    best: dict[tuple[str, str, float], list[str]] = {}
    for row in rows:
        for name, test in row["tests"].items():
            policy = test["best_baseline"]
            if policy is not None:
                best.setdefault((name, policy, test["baselines_jct_s"][policy]), []).append(row["group"])
    for (name, policy, jct_s), groups in sorted(best.items()):
        alone = sum(other == name for other, _, _ in best) == 1
        where = "" if alone else f" (for {', '.join(dict.fromkeys(groups))})"
        lines.append(f"{name}: best hand-written policy {policy}, {jct_s:,.0f} s{where}")
    return [*lines, *doubts(rows)]


def plain_text(rows: list[dict[str, Any]]) -> str:
    """For a terminal."""
    return "\n".join([align(*cells(rows)), *legend(rows)])


def markdown(rows: list[dict[str, Any]]) -> str:
    """For a document."""
    return markdown_table(*cells(rows), legend(rows))


def _of_test(name: str, figure: str) -> Callable[[dict], float | None]:
    return lambda row: row["tests"].get(name, {}).get(figure)


def _summarize(values: Iterable[float | None], digits: int) -> str:
    """Mean ± half the interval; a dash if some run has no such figure, for example because it did not finish."""
    known = np.array([_MISSING if value is None else value for value in values])
    return plus_minus(float(known.mean()), mean_interval(known), digits)
