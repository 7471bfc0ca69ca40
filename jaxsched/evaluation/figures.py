"""Figures, written as files: the distribution of JCTs per policy, and learning curves. Needs the extra `viz`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from jaxsched.errors import UserError
from jaxsched.evaluation.statistics import Interval
from jaxsched.evaluation.tables import Comparison, time_unit
from jaxsched.io.files import atomic_path, read_text

MOST_BYTES = 1 << 30  # of a run's metrics

# Okabe & Ito's colours, told apart by colour-blind readers too; a second round is dashed.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":")
_NAME_HEIGHT = 0.05  # of the axes, for a name beside a line


def _axes() -> tuple[Any, Any]:
    """A figure that needs no display, and its axes. UserError if matplotlib is not there."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib, which is not installed: pip install 'jaxsched[viz]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


FORMATS = (".png", ".pdf", ".svg")


def check_figure(path: str | Path) -> None:
    """UserError if a figure cannot be drawn into a file of this name."""
    if Path(path).suffix.lower() not in FORMATS:
        raise UserError(f"figure {path}: should end in {', '.join(FORMATS)}")
    _axes()


def _save(figure: Any, path: str | Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format=Path(path).suffix.lower().lstrip("."))


def _name_lines(axes: Any) -> None:
    """Names of the lines right of the axes, each in its colour and as high as its end, far enough apart."""
    low, high = axes.get_ylim()
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    ends = {line: (line.get_ydata()[-1] - low) / (high - low) for line in named}
    below = 1.0 + _NAME_HEIGHT
    for line in sorted(named, key=lambda line: -ends[line]):
        below = min(ends[line], below - _NAME_HEIGHT) if np.isfinite(ends[line]) else below - _NAME_HEIGHT
        place = {"xycoords": "axes fraction", "xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(line.get_label(), (1.0, below), color=line.get_color(), fontsize="small", **place)


def predicted_against_measured(
    hardware: Shaped[np.ndarray, "D"],
    measured: Float[np.ndarray, "D"],
    predicted: Float[np.ndarray, "D"],
    path: str | Path,
) -> None:
    """Throughput ratios, one point each, coloured by `hardware` (names)."""
    figure, axes = _axes()
    for i, kind in enumerate(np.unique(hardware)):
        here = hardware == kind
        off = np.abs(predicted - measured)[here].mean()
        axes.plot(
            measured[here], predicted[here], ".", markersize=4, alpha=0.6, color=_COLOURS[i % len(_COLOURS)],
            label=f"{kind}: mean error {off:.3f}",
        )  # fmt: skip
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.set(xlabel="measured throughput ratio, shared over alone", ylabel="predicted without having seen it")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes.grid(alpha=0.3)
    _save(figure, path)


def jct_distribution(comparison: Comparison, path: str | Path) -> None:
    """Share of jobs that finished within a time, one line per policy, jobs of all seeds together; log time axis."""
    figure, axes = _axes()
    unit, seconds = time_unit(comparison.rows)
    for i, row in enumerate(comparison.rows):
        jct = np.sort(np.concatenate([result.jct_s[result.finished] for result in row.outcomes])) / seconds
        share = np.arange(1, len(jct) + 1) / max(len(jct), 1)
        keep = np.unique(np.linspace(0, len(jct) - 1, 2000).astype(int)) if len(jct) else slice(0)
        mean = row.figures.jct_mean_s / seconds
        name = f"{row.name}: mean {mean:,.1f} {unit}" if np.isfinite(mean) else row.name
        axes.plot(jct[keep], share[keep], label=name, **_look(i))
    axes.set(xscale="log", xlabel=f"job completion time ({unit})", ylabel="share of jobs", ylim=(0, 1))
    _name_lines(axes)
    axes.grid(alpha=0.3)
    _save(figure, path)


def performance_profile(
    shares: Mapping[str, Float[np.ndarray, "F"]], factors: Float[np.ndarray, "F"], path: str | Path
) -> None:
    """A line per policy: the share of worlds in which it is within a factor of the best (Dolan & Moré, 2002)."""
    figure, axes = _axes()
    for i, (name, share) in enumerate(shares.items()):
        axes.plot(factors, share, label=name, drawstyle="steps-post", **_look(i))
    axes.set(xscale="log", xlabel="mean JCT over the best policy's in the same world", ylabel="share of worlds")
    axes.set(ylim=(0, 1.02), xlim=(1, float(factors[-1])))
    _name_lines(axes)
    axes.grid(alpha=0.3)
    _save(figure, path)


def intervals(places: Sequence[tuple[str, float, Interval]], xlabel: str, path: str | Path) -> None:
    """Names from top to bottom, each with its mean and interval; those without a mean keep an empty line."""
    figure, axes = _axes()
    for i, (_, mean, (low, high)) in enumerate(places):
        axes.plot(mean, i, "o", color=_COLOURS[0])
        axes.plot([low, high], [i, i], color=_COLOURS[0], linewidth=1.5)
    axes.set(xlabel=f"{xlabel}, 95% interval over seeds", ylim=(len(places) - 0.5, -0.5))
    axes.set_yticks(range(len(places)), [name for name, _, _ in places])
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def lines(
    series: Mapping[str, Sequence[tuple[float, float, Interval]]], labels: tuple[str, str], path: str | Path
) -> None:
    """A line per name through spots (x, mean, interval), with the interval, if there is one, as a band."""
    figure, axes = _axes()
    for i, (name, spots) in enumerate(series.items()):
        x, mean = ([spot[column] for spot in spots] for column in (0, 1))
        axes.plot(x, mean, label=name or None, marker="o", markersize=3, **_look(i))
        axes.fill_between(
            x, *([end[side] for _, _, end in spots] for side in (0, 1)), alpha=0.15, color=_look(i)["color"]
        )
    several = any(low < high for spots in series.values() for _, _, (low, high) in spots)
    axes.set(xlabel=labels[0], ylabel=labels[1] + ", 95% interval over seeds" * several)
    _name_lines(axes)
    axes.grid(alpha=0.3)
    _save(figure, path)


def learning_curve(
    rows: Iterable[Mapping[str, float]],
    path: str | Path,
    *,
    x: str = "decisions",
    y: str = "validation_jct_s",
    references: Mapping[str, float] | None = None,
) -> None:
    """Metric `y` against `x` over the rows that have both (`x` summed up); `references` are level lines by name."""
    figure, axes = _axes()
    passed, points = 0.0, []
    for row in rows:
        passed += row.get(x, 0.0)
        if y in row:
            points.append((passed, row[y]))
    axes.plot(
        *np.array(points or [(np.nan, np.nan)]).T, marker="o", markersize=3, color=_COLOURS[0], label="validation"
    )
    for i, (name, value) in enumerate((references or {}).items(), 1):
        axes.axhline(value, label=name, **(_look(i) | {"linestyle": "--"}))
    axes.set(xlabel=f"{x} so far", ylabel=y.replace("_jct_s", " mean JCT (s)"))
    _name_lines(axes)
    axes.grid(alpha=0.3)
    _save(figure, path)


def _look(i: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[i % len(_COLOURS)],
        "linestyle": _STYLES[i // len(_COLOURS) % len(_STYLES)],
        "linewidth": 1.5,
    }


def read_rows(path: str | Path) -> Sequence[Mapping[str, float]]:
    """The rows of a run's `metrics.jsonl`. UserError if there is no such file or it is not one."""
    import json

    try:
        return [json.loads(line) for line in read_text(path, MOST_BYTES).splitlines()]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a file of JSON lines ({error})") from None
