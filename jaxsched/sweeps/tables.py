"""The points of a sweep in the order of a figure, with 95% t intervals over seeds, and how far each is from the best.

The best is compared seed by seed: what seeds have in common, easy or hard draws, does not blur the difference.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import UNKNOWN, Interval, mean_interval
from jaxsched.evaluation.tables import align, markdown_table, plus_minus
from jaxsched.io.json_file import read_rows
from jaxsched.learning.loop import METRICS_FILE
from jaxsched.learning.untrained import curve_of
from jaxsched.sweeps.records import Record, figures_of


class LinePoint(NamedTuple):
    """A point of a line: where, the mean there, and its interval."""

    x: float
    mean: float
    interval: Interval


class RankedGroup(NamedTuple):
    """A group of points, which differ in the seed only, in the order of a figure; less is better."""

    group: str
    changes: dict[str, Any]  # values of the axes
    values: Float64[np.ndarray, "seeds"]  # NaN where a run has no such figure
    mean: float  # NaN if one of them is
    interval: Interval
    to_best: float  # mean over common seeds of the figure over the best group's, less 1
    to_best_interval: Interval


def figure_named(records: Sequence[Record], by: str | None) -> str:
    """The figure of that name, or the first one. UserError if there is none of it."""
    known = figures_of(records)
    if by is None:
        return known[0]
    if by not in known:
        raise UserError(f"--by {by!r}: should be one of {', '.join(map(repr, known))}")
    return by


def rank_groups(records: Sequence[Record], figure: str) -> list[RankedGroup]:
    """All groups, best first and those without the figure last."""
    groups: dict[str, dict[int, float]] = {}
    changes = {record["group"]: json.loads(record["changes"]) for record in records}
    for record in records:
        value = record.get(figure)
        groups.setdefault(record["group"], {})[record["seed"]] = math.nan if value is None else value
    means = {group: float(np.mean(list(values.values()))) for group, values in groups.items()}
    order = sorted(groups, key=lambda group: (math.isnan(means[group]), means[group]))
    places = []
    for group in order:
        values = np.array(list(groups[group].values()), np.float64)
        interval = UNKNOWN if math.isnan(means[group]) else mean_interval(values)
        difference = _compare_seeds(groups[group], groups[order[0]])
        places.append(RankedGroup(group, changes[group], values, means[group], interval, *difference))
    return places


def _compare_seeds(own: dict[int, float], best: dict[int, float]) -> tuple[float, Interval]:
    """Mean and interval over common seeds of the ratio, less 1."""
    common = [seed for seed in own if seed in best]
    ratios = np.array([own[seed] / best[seed] - 1 if best[seed] else math.nan for seed in common])
    if not len(ratios) or np.isnan(ratios).any():
        return math.nan, UNKNOWN
    return float(ratios.mean()), mean_interval(ratios)


def cells(records: Sequence[Record], figure: str) -> tuple[list[str], list[list[str]]]:
    """Column names and lines of text: the ranking by a figure, and the other figures beside it."""
    places = rank_groups(records, figure)
    others = [name for name in figures_of(records) if name != figure]
    beside = {name: {place.group: place for place in rank_groups(records, name)} for name in others}
    names = ["point", "rank", "seeds", figure, "to the best", *others]
    lines = []
    for rank, place in enumerate(places, 1):
        low, high = place.to_best_interval
        percent = plus_minus(100 * place.to_best, (100 * low, 100 * high))
        away = "–" if rank == 1 or math.isnan(place.to_best) else f"{'+' if place.to_best >= 0 else ''}{percent} %"
        rest = [_format_interval(beside[name][place.group], name) for name in others]
        known = "–" if math.isnan(place.mean) else str(rank)
        lines.append([place.group, known, str(len(place.values)), _format_interval(place, figure), away, *rest])
    return names, lines


def _format_interval(place: RankedGroup, figure: str) -> str:
    return plus_minus(place.mean, place.interval, 3 if figure.endswith("ratio") else 1)


def group_along_axis(places: Sequence[RankedGroup], axis: str) -> dict[str, list[LinePoint]]:
    """The places by the value of an axis, a line for each value of the other axes and variant.

    UserError if there is no such axis, or its values are no numbers.
    """
    known = dict.fromkeys(key for place in places for key in place.changes)
    if axis not in known:
        raise UserError(f"--x {axis!r}: should be an axis of the sweep, {', '.join(map(repr, known)) or 'it has none'}")
    series: dict[str, list[LinePoint]] = {}
    for place in places:
        x = place.changes[axis]
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise UserError(f"--x {axis!r}: its value {x!r} is no number; leave --x out")
        short = axis.rpartition(".")[2]
        rest = [word for word in place.group.split(" ") if not word.startswith(f"{short}=")]
        series.setdefault(" ".join(rest), []).append(LinePoint(float(x), place.mean, place.interval))
    return {name: sorted(spots, key=lambda spot: spot.x) for name, spots in series.items()}


def curves(records: Sequence[Record]) -> dict[str, list[LinePoint]]:
    """Validation JCTs over chunks of every group, of those chunks that all its seeds have.

    UserError where there is none.
    """
    series: dict[str, list[LinePoint]] = {}
    for group in dict.fromkeys(record["group"] for record in records):
        own = [
            dict(zip(record["curve_chunk"], record["curve_jct_s"])) for record in records if record["group"] == group
        ]
        chunks = sorted(set.intersection(*(set(one) for one in own)))
        if not chunks and any(own):
            raise UserError(f"--curves: no chunk of training was validated in all runs of {group!r}")
        values = {chunk: np.array([one[chunk] for one in own], np.float64) for chunk in chunks}
        points = [LinePoint(chunk, float(all_.mean()), mean_interval(all_)) for chunk, all_ in values.items()]
        if points:
            series[group] = points
    return series


def are_runs(paths: Sequence[Path]) -> bool:
    """Whether they are folders of trainings rather than files of sweeps. UserError where some are and some are not."""
    runs = [path.is_dir() for path in paths]
    if any(runs) and not all(runs):
        raise UserError("plot: takes folders of trainings or a sweep, not both")
    if len(paths) > 1 and not any(runs):
        raise UserError(f"plot: {paths[1]}: takes one sweep, or folders of trainings")
    return any(runs)


def curves_of_runs(paths: Sequence[Path]) -> dict[str, list[LinePoint]]:
    """Mean JCT in validation over the decisions so far, a line for each run by its folder's path.

    UserError for a folder that holds no training, and one in which no validation has come to its end.
    """
    return {str(path): _curve(path) for path in paths}


def _curve(path: Path) -> list[LinePoint]:
    rows = read_rows(path / METRICS_FILE)
    if not rows or not all("chunk" in row and "decisions" in row for row in rows):
        raise UserError(f"{path}: should be the folder of a training of schedulers, with {METRICS_FILE}")
    decisions, total = {0: 0.0}, 0.0
    for row in rows:
        total += row["decisions"]
        decisions[row["chunk"]] = total
    curve = curve_of(path, rows)
    points = [LinePoint(decisions[chunk], jct_s, UNKNOWN) for chunk, jct_s in curve if jct_s is not None]
    if not points:
        raise UserError(f"{path}: no validation has come to its end yet")
    return points


LEGEND = [
    "± 95% t interval over seeds; less is better; ratio: JCT over the best hand-written policy's on the same jobs",
    "to the best: seed by seed; where the interval reaches 0, the seeds do not tell the two apart",
]


def plain_text(records: Sequence[Record], figure: str) -> str:
    """For a terminal."""
    return "\n".join([align(*cells(records, figure)), *LEGEND])


def markdown(records: Sequence[Record], figure: str) -> str:
    """For a document."""
    return markdown_table(*cells(records, figure), LEGEND)
