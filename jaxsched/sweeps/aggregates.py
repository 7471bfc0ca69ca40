"""The points of a sweep by all tests together: interquartile means, and how likely one is better than another.

A score is the ratio to the best hand-written policy, of one training seed on one test; less is better.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
)  # fmt: skip
from jaxsched.evaluation.tables import align, markdown_table
from jaxsched.sweeps.records import Record
from jaxsched.sweeps.references import UNTRAINED

LEGEND = [
    "IQM: mean of the middle half of all ratios, seeds and tests together; less is better",
    "better: how likely a seed of the point is below one of the other on the same test, 0.5 if they are alike",
    "in brackets 95% bootstrap intervals over seeds; with few seeds they are too narrow",
]


def scores_of(records: Sequence[Record]) -> dict[str, Float64[np.ndarray, "seeds tests"]]:
    """Ratios of every group that has them all."""
    tests = [name for name in dict.fromkeys(key for record in records for key in record) if name.endswith(": ratio")]
    if not tests:
        raise UserError("--aggregate: the rows have no ratios to hand-written policies")
    groups: dict[str, list[list[float]]] = {}
    for record in records:
        row = [math.nan if record.get(test) is None else float(record[test]) for test in tests]
        groups.setdefault(record["group"], []).append(row)
    found = {group: np.array(rows) for group, rows in groups.items()}
    return {group: scores for group, scores in found.items() if np.isfinite(scores).all()}


def cells(records: Sequence[Record], against: str | None) -> tuple[list[str], list[list[str]]]:
    """Column names and lines of text, the least IQM first. UserError if there is no group `against`.

    None: the untrained policies, if they are a group, else the last one.
    """
    scores = scores_of(records)
    means = {group: interquartile_mean(own) for group, own in scores.items()}
    order = sorted(means, key=means.__getitem__)
    if not order:
        raise UserError("--aggregate: no point has all its ratios; a run did not finish")
    if against is not None and against not in scores:
        raise UserError(f"--against {against!r}: should be one of {', '.join(map(repr, order))}")
    other = against or (UNTRAINED if UNTRAINED in scores else order[-1])
    lines = []
    for group in order:
        own = scores[group]
        mean = f"{means[group]:.3f} {_brackets(bootstrap_interval(interquartile_mean, own))}"
        better = "–"
        if group != other:
            interval = bootstrap_interval(probability_of_improvement, own, scores[other])
            better = f"{probability_of_improvement(own, scores[other]):.2f} {_brackets(interval)}"
        lines.append([group, str(len(own)), str(own.shape[1]), mean, better])
    return ["point", "seeds", "tests", "IQM of ratios", f"better than {other}"], lines


def _brackets(interval: Interval) -> str:
    low, high = interval
    return "" if math.isnan(low) else f"[{low:.3f}, {high:.3f}]"


def plain_text(records: Sequence[Record], against: str | None) -> str:
    """For a terminal."""
    return "\n".join([align(*cells(records, against)), *LEGEND])


def markdown(records: Sequence[Record], against: str | None) -> str:
    """For a document."""
    return markdown_table(*cells(records, against), LEGEND)
