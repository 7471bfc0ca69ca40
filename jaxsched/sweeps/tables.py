"""Tables of a sweep, and the curves of its points; less is better.

- `seeds_*`: mean ± 95% t interval over seeds, one line per group of points.
- `ranking_*`: the points in the order of a figure, and how far each is from the best. That is compared seed by seed:
  what seeds have in common, easy or hard draws, does not blur the difference.
- `aggregate_*`: all tests together, by interquartile means, and how likely one point is better than another. A score is
  the ratio to the best hand-written policy, of one training seed on one test.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import (
    UNKNOWN,
    Interval,
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)
from jaxsched.evaluation.tables import align, markdown_table, plus_minus
from jaxsched.io.json_file import read_rows
from jaxsched.learning.loop import METRICS_FILE
from jaxsched.learning.untrained import curve_of
from jaxsched.sweeps.plan import spell_change
from jaxsched.sweeps.records import UNTRAINED, Record, doubts, figures_of, with_references

_MISSING = math.nan


def seeds_cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
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


def seeds_legend(rows: list[dict[str, Any]]) -> list[str]:
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


def seeds_text(rows: list[dict[str, Any]]) -> str:
    """For a terminal."""
    return "\n".join([align(*seeds_cells(rows)), *seeds_legend(rows)])


def seeds_markdown(rows: list[dict[str, Any]]) -> str:
    """For a document."""
    return markdown_table(*seeds_cells(rows), seeds_legend(rows))


def _of_test(name: str, figure: str) -> Callable[[dict], float | None]:
    return lambda row: row["tests"].get(name, {}).get(figure)


def _summarize(values: Iterable[float | None], digits: int) -> str:
    """Mean ± half the interval; a dash if some run has no such figure, for example because it did not finish."""
    known = np.array([_MISSING if value is None else value for value in values])
    return plus_minus(float(known.mean()), mean_interval(known), digits)


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


def ranking_cells(records: Sequence[Record], figure: str) -> tuple[list[str], list[list[str]]]:
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
        rest, own = place.group.split(" "), spell_change(axis, x)
        if own in rest:
            rest.remove(own)
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


RANKING_LEGEND = [
    "± 95% t interval over seeds; less is better; ratio: JCT over the best hand-written policy's on the same jobs",
    "to the best: seed by seed; where the interval reaches 0, the seeds do not tell the two apart",
]


def ranking_text(records: Sequence[Record], figure: str) -> str:
    """For a terminal."""
    return "\n".join([align(*ranking_cells(records, figure)), *RANKING_LEGEND])


def ranking_markdown(records: Sequence[Record], figure: str) -> str:
    """For a document."""
    return markdown_table(*ranking_cells(records, figure), RANKING_LEGEND)


AGGREGATE_LEGEND = [
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


def aggregate_cells(records: Sequence[Record], against: str | None) -> tuple[list[str], list[list[str]]]:
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


def aggregate_text(records: Sequence[Record], against: str | None) -> str:
    """For a terminal."""
    return "\n".join([align(*aggregate_cells(records, against)), *AGGREGATE_LEGEND])


def aggregate_markdown(records: Sequence[Record], against: str | None) -> str:
    """For a document."""
    return markdown_table(*aggregate_cells(records, against), AGGREGATE_LEGEND)
