"""A comparison as a table: for a terminal, as plain text, as Markdown."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxsched.evaluation.compare import Comparison, PolicyResult
from jaxsched.evaluation.metrics import COLUMNS, JobCounts, Metric
from jaxsched.evaluation.statistics import Interval

UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
_LEAST = 10.0  # of the least mean JCT, in the table's unit


def time_unit(rows: Sequence[PolicyResult]) -> tuple[str, float]:
    """Name and seconds of the largest unit in which every mean JCT is at least 10 (else seconds)."""
    means = [row.figures.jct_mean_s for row in rows if not math.isnan(row.figures.jct_mean_s)]
    fitting = [unit for unit in UNITS if means and min(means) / unit[1] >= _LEAST]
    return (fitting or UNITS)[-1] if fitting else UNITS[0]


def number(value: float, digits: int = 1) -> str:
    """With thousands separators, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def figure(metric: Metric, value: float, seconds: float) -> str:
    """A figure as its unit has it: times in units of so many `seconds`, shares in per cent."""
    if metric.unit == "s":
        return number(value / seconds)
    if metric.unit == "share":
        return "–" if math.isnan(value) else f"{value:.1%}"
    return number(value, 3)


def plus_minus(value: float, interval: Interval, digits: int = 1) -> str:
    """`value ± half the interval`."""
    half = (interval[1] - interval[0]) / 2
    return number(value, digits) + ("" if math.isnan(half) else f" ± {number(half, digits)}")


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Column names, and one line of text per policy, best mean JCT first and those without one last."""
    unit, seconds = time_unit(comparison.rows)
    first, *others = COLUMNS
    names = ["policy", f"{first.header} ({unit})", *(metric.header for metric in others), "ratio", "to bound"]
    best = comparison.best_baseline

    def line(row: PolicyResult) -> list[str]:
        low, high = row.jct_ci95_s
        return [
            row.name + (" *" if row is best else "") + (" †" if row.notes else ""),
            plus_minus(getattr(row.figures, first.name) / seconds, (low / seconds, high / seconds)),
            *(figure(metric, getattr(row.figures, metric.name), seconds) for metric in others),
            plus_minus(row.ratio, row.ratio_ci95, 3),
            number(row.gap, 3),
        ]

    order = sorted(comparison.rows, key=lambda row: (math.isnan(row.figures.jct_mean_s), row.figures.jct_mean_s))
    return names, [line(row) for row in order]


def accounts(went: Mapping[str, tuple[JobCounts, Mapping[str, int]]]) -> list[str]:
    """One line per policy (one for all where they agree): where every job that arrived has gone, and why not in."""
    lines: dict[str, list[str]] = {}
    for name, (jobs, rejections) in went.items():
        why = ", ".join(f"{count:,} {reason}" for reason, count in rejections.items())
        text = (
            f"{jobs.arrived:,} arrived = {jobs.finished:,} finished + {jobs.running:,} running + {jobs.queued:,} queued"
            f" + {jobs.rejected:,} rejected{f' ({why})' if why else ''}"
        )
        lines.setdefault(text, []).append(name)
    if len(lines) == 1:
        return [f"jobs, every policy: {text}" for text in lines]
    return [f"jobs, {', '.join(names)}: {text}" for text, names in lines.items()]


def legend(comparison: Comparison) -> list[str]:
    """What the figures mean, where the jobs went, and what is wrong with some of the figures."""
    several = len(comparison.rows[0].outcomes) > 1
    spread = (
        f"± 95% t interval over {len(comparison.rows[0].outcomes)} seeds; "
        if several
        else "± 95% interval by 20 batches of consecutive jobs (one seed: take it as a rough guide); "
        if any(math.isfinite(end) for row in comparison.rows for end in row.jct_ci95_s)
        else ""
    )
    unit, seconds = time_unit(comparison.rows)
    lines = [
        f"{spread}ratio: JCT over the best baseline's on the same jobs",
        f"to bound: JCT over a lower bound that no policy is under, {number(comparison.bound_s / seconds)} {unit}",
        *accounts({row.name: (row.jobs, row.rejections) for row in comparison.rows}),
        *remarks(comparison.config, {row.name: row.notes for row in comparison.rows}),
    ]
    if comparison.best_baseline is not None:
        lines.insert(1, "* best baseline (hand-written policy)")
    return lines


def remarks(config: Mapping[str, Any], notes: Mapping[str, Sequence[str]]) -> list[str]:
    """What run times are of, what is wrong with policies' figures, and which rows were left out."""
    reference, stated = config.get("reference_gpu"), config.get("run_times_on")
    converted = "" if stated == reference else f", converted from {stated}"
    skipped = config.get("skipped_rows") or {}
    return [
        *([f"run times are on {reference}{converted}"] if reference else []),
        *(f"† {name}: {note}" for name, those in notes.items() for note in those),
        *(f"rows of the trace that are no jobs: {count:,} ({reason})" for reason, count in skipped.items()),
    ]


def rich_table(comparison: Comparison) -> Table:
    """For a terminal."""
    names, lines = cells(comparison)
    table = Table(header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold" if i == 0 else "ellipsis")
    for line in lines:
        table.add_row(*map(Text, line), style="bold" if "*" in line[0] else "")
    return table


def plain_text(comparison: Comparison) -> str:
    """Aligned columns, whatever the width of the terminal."""
    return align(*cells(comparison))


def align(names: list[str], lines: list[list[str]]) -> str:
    """Columns of text under their names, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [names, *lines]) for i in range(len(names))]

    def line(row: Sequence[str]) -> str:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))
        return "  ".join([row[0].ljust(widths[0]), *rest]).rstrip()

    return "\n".join([line(names), "  ".join("-" * width for width in widths), *map(line, lines)])


def markdown(comparison: Comparison) -> str:
    """A table for a README, with the legend below it."""
    return markdown_table(*cells(comparison), legend(comparison))


def markdown_table(names: list[str], lines: list[list[str]], notes: list[str]) -> str:
    """A Markdown table with notes below it."""
    head = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    body = ["| " + " | ".join(cell.replace("*", "\\*") for cell in line) + " |" for line in lines]
    notes = [line.replace("*", "\\*") for line in notes]
    return "\n".join([*head, *body, "", *[note + "  " for note in notes]]).rstrip() + "\n"
