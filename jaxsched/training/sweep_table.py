"""The rows of a sweep as a table: mean ± 95% t interval over seeds, one line per group of points."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxsched.evaluation.statistics import mean_interval
from jaxsched.evaluation.tables import aligned, markdown_table, plus_minus

_MISSING = math.nan


def cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column names and lines of text, in the order of the rows."""
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
        ("train wall (s)", lambda row: row["training"]["wall_s"], 0),
        ("train CPU (s)", lambda row: row["training"]["cpu_s"], 0),
    ]
    names = ["point", "seeds", *(name for name, _, _ in columns)]
    lines = []
    for group in groups:
        own = [row for row in rows if row["group"] == group]
        lines.append([group, str(len(own)), *(_summed(map(of, own), digits) for _, of, digits in columns)])
    return names, lines


def legend(rows: list[dict[str, Any]]) -> list[str]:
    """What the figures mean, and which policies the ratios are to."""
    lines = ["± 95% t interval over training seeds; ratio: JCT over the best hand-written policy's on the same jobs"]
    best = {
        (name, test["best_baseline"], test["baselines_jct_s"].get(test["best_baseline"], _MISSING))
        for row in rows
        for name, test in row["tests"].items()
    }
    lines += [f"{name}: best hand-written policy {policy}, {jct:,.0f} s" for name, policy, jct in sorted(best, key=str)]
    return lines


def plain_text(rows: list[dict[str, Any]]) -> str:
    """For a terminal."""
    return "\n".join([aligned(*cells(rows)), *legend(rows)])


def markdown(rows: list[dict[str, Any]]) -> str:
    """For a document."""
    return markdown_table(*cells(rows), legend(rows))


def _of_test(name: str, figure: str) -> Callable[[dict], float | None]:
    return lambda row: row["tests"].get(name, {}).get(figure)


def _summed(values: Iterable[float | None], digits: int) -> str:
    """Mean ± half the interval; a dash if some run has no such figure, for example because it did not finish."""
    known = np.array([_MISSING if value is None else value for value in values])
    return plus_minus(float(known.mean()), mean_interval(known), digits)
