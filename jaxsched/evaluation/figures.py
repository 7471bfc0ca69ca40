"""Figures, written as files: the distribution of JCTs per policy, and learning curves. Needs the extra `viz`.

And a picture of clusters over time, as SVG: one panel per policy, one line per GPU, a bar per job; it can move. That is
plain text that any browser draws, and a page on GitHub shows: no library, no script.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import Interval
from jaxsched.evaluation.tables import Comparison, time_unit
from jaxsched.evaluation.timelines import Spans, spans_of
from jaxsched.io.files import atomic_path, read_text
from jaxsched.simulation.outcome import Outcome

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


WIDTH, LEFT, LINE, GAP, HEAD, FOOT = 900.0, 96.0, 3.6, 3.0, 46.0, 38.0  # pixels; a GPU has a line
TURN_S = 12  # of the animation
# How much slower than alone: light to dark, so that it reads without colours too.
SHADES = ((1.02, "#9ecae1", "as fast as alone"), (1.2, "#6baed6", "up to 1.2x"), (1.6, "#fd8d3c", "up to 1.6x"))
DARKEST = ("#a63603", "slower")
RESTART = ("#54278f", "restarting")
_FONT = 'font-family="Helvetica, Arial, sans-serif"'


def cluster_svg(results: Sequence[Outcome], cluster: Cluster, *, moving: bool = True) -> str:
    """Runs of policies on the same jobs, each as servers over time; `moving`: they fill up from left to right.

    UserError: see `spans_of`.
    """
    spans = [spans_of(result, cluster) for result in results]
    end_s = max((float(one.end_s.max()) for one in spans if len(one.job)), default=1.0)
    rows, height = _rows(cluster)
    panel = HEAD + height
    total = panel * len(results) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {total:.0f}" role="img" {_FONT}>',
        f"<title>{escape(_title(results))}</title>",
        f'<rect width="{WIDTH:g}" height="{total:.0f}" fill="white"/>',
    ]
    if moving:
        grows = (
            f'<animate attributeName="width" from="{LEFT:g}" to="{WIDTH:g}" dur="{TURN_S}s" repeatCount="indefinite"/>'
        )
        parts.append(f'<clipPath id="now"><rect width="{WIDTH:g}" height="{total:.0f}">{grows}</rect></clipPath>')
    for number, (result, own) in enumerate(zip(results, spans)):
        parts.append(f'<g transform="translate(0 {number * panel:.0f})">')
        parts += _panel(result, own, cluster, rows, height, end_s, moving)
        parts.append("</g>")
    restarts = any(result.attempts.restart_s.any() for result in results)
    parts += _foot(panel * len(results), end_s, restarts=restarts)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(cluster: Cluster) -> tuple[dict[tuple[int, int, int], float], float]:
    """Where the line of every GPU lies, by server, group and GPU; and the height of all."""
    server_id, gpus = np.asarray(cluster.server_id), np.asarray(cluster.group_gpus)
    where, y = {}, 0.0
    for p, n in sorted(np.argwhere(server_id >= 0).tolist(), key=lambda place: server_id[tuple(place)]):
        for group, count in enumerate(gpus[p, n].tolist()):
            for gpu in range(count):
                where[int(server_id[p, n]), group, gpu] = y
                y += LINE
        y += GAP
    return where, y


def _panel(
    result: Outcome,
    spans: Spans,
    cluster: Cluster,
    rows: dict[tuple[int, int, int], float],
    height: float,
    end_s: float,
    moving: bool,
) -> list[str]:
    done = result.finished
    mean_min = float(result.jct_s[done].mean()) / 60 if done.any() else float("nan")
    parts = [
        _text(LEFT, 24, f"<tspan font-weight='bold'>{escape(result.policy)}</tspan>", 15),
        _text(WIDTH - 8, 24, f"mean completion time {mean_min:,.0f} min", 13, "end"),
        f'<g transform="translate(0 {HEAD - 10:g})">',
    ]
    servers: dict[int, list[float]] = {}
    for (server, _, _), y in rows.items():
        servers.setdefault(server, []).append(y)
    for server, lines in servers.items():
        tall = max(lines) - min(lines) + LINE
        parts.append(_bar(LEFT, min(lines), WIDTH - LEFT, tall, "#f0f0f0"))
        parts.append(_text(LEFT - 6, (min(lines) + max(lines) + LINE) / 2 + 3.5, f"server {server}", 10, "end"))
    slowdown, restarts_s = result.run_s / result.jobs.duration_s, result.attempts.restart_s
    clip = ' clip-path="url(#now)"' if moving else ""
    parts.append(f'<g stroke="white" stroke-width="0.4"{clip}>')
    scale = (WIDTH - LEFT) / end_s
    for i, job in enumerate(spans.job):
        y = rows[int(spans.server[i]), int(spans.group[i]), int(spans.gpu[i])]
        x, held = LEFT + spans.start_s[i] * scale, (spans.end_s[i] - spans.start_s[i]) * scale
        colour = next((fill for most, fill, _ in SHADES if slowdown[job] <= most), DARKEST[0])
        parts.append(_bar(x, y, held, LINE, colour))
        restart_s = float(restarts_s[spans.attempt[i]])
        if restart_s > 0:
            parts.append(_bar(x, y, restart_s * scale, LINE, RESTART[0]))
    return [*parts, "</g>", "</g>"]


def _foot(y: float, end_s: float, *, restarts: bool) -> list[str]:
    """The time axis and what the shades mean."""
    parts = [_text(LEFT, y + 10, "0 h", 11), _text(WIDTH - 8, y + 10, f"{end_s / 3600:.1f} h", 11, "end")]
    x = LEFT
    shades = [*((colour, text) for _, colour, text in SHADES), DARKEST, *([RESTART] if restarts else [])]
    for colour, text in shades:
        parts += [_bar(x, y + 20, 12, 10, colour), _text(x + 17, y + 29, text, 11)]
        x += 40 + 6.2 * len(text)
    return [*parts, _text(x, y + 29, "one bar per job and GPU; grey: idle", 11)]


def _bar(x: float, y: float, wide: float, tall: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}">{text}</text>'


def _title(results: Sequence[Outcome]) -> str:
    names = " and ".join(result.policy for result in results)
    return f"The GPUs of a cluster over time under {names}, the same jobs each time"
