"""A comparison of policies: its rows, and how they are shown: as a table, as Markdown, as JSON, in a card."""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxsched.border import checked
from jaxsched.evaluation.metrics import COLUMNS, Interval, JobCounts, Metric, Metrics
from jaxsched.io import cards
from jaxsched.io.files import locked
from jaxsched.io.json_file import to_json
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import Settings

UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
_LEAST = 10.0  # of the least mean JCT, in the table's unit
CHECKPOINT = "CHECKPOINT"  # in a command that a card records, the policy that the card is of


@dataclasses.dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds: every figure is the mean of the seeds' figures, NaN if a run was cut off."""

    name: str
    baseline: bool  # hand-written
    figures: Metrics
    jct_ci95_s: Interval  # of the mean JCT; over seeds, or of a single run over batches of jobs
    ratio: float  # mean over seeds of JCT / JCT of the best baseline on the same jobs
    ratio_ci95: Interval  # over seeds
    gap: float  # mean over seeds of JCT / lower bound on any policy's JCT on the same jobs
    jobs: JobCounts  # summed over seeds
    rejections: dict[str, int]  # jobs by reason
    notes: list[str]
    shares: dict[str, float]  # of GPU time, by tenant; mean over seeds, empty if a run was cut off
    ends: dict[str, dict[str, float]]  # figures by how jobs ended, likewise
    outcomes: list[Outcome]  # one per seed


@checked
@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Policies on the same jobs, in the order they were named. Printed it is a table."""

    rows: list[PolicyResult]
    bound_s: float  # lower bound on any policy's mean JCT, mean over seeds (docs/bound.md)
    config: dict[str, Any]
    versions: dict[str, str]
    settings: Settings

    @property
    def best_baseline(self) -> PolicyResult | None:
        """The hand-written policy of least mean JCT; None if none ran to its end."""
        return best_baseline(self.rows)

    @property
    def jobs(self) -> JobCounts:
        """The account of the policy that left most jobs unfinished; of each of them where all finished all."""
        return min((row.jobs for row in self.rows), key=lambda jobs: jobs.finished)

    def __repr__(self) -> str:
        return "\n".join([plain_text(self), *legend(self)])

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `jaxsched evaluate --json` writes them.

        Returns:
            `jobs` (the account), `bound_s`, `policies` (by name the figures of `metrics.METRICS` and what follows of
            them; None where one does not exist), `config` and `versions`.
        """
        policies = {
            row.name: {
                **_figures(row),
                "share_by_tenant": row.shares,
                "by_end": row.ends,
                "ratio_to_best_baseline": row.ratio,
                "gap_to_bound": row.gap,
                "jobs": dataclasses.asdict(row.jobs),
            }
            for row in self.rows
        }
        return make_plain(
            {
                "jobs": dataclasses.asdict(self.jobs),
                "bound_s": self.bound_s,
                "policies": policies,
                "config": self.config | {"runs": {row.name: _runs(row) for row in self.rows}},
                "versions": self.versions,
            }
        )

    def dumps(self) -> str:
        """`to_json` as text."""
        return to_json(self.to_json(), 2)


def best_baseline(rows: Sequence[PolicyResult]) -> PolicyResult | None:
    """See `Comparison.best_baseline`."""
    known = [row for row in rows if row.baseline and not math.isnan(row.figures.jct_mean_s)]
    return min(known, key=lambda row: row.figures.jct_mean_s, default=None)


def time_unit(rows: Sequence[PolicyResult]) -> tuple[str, float]:
    """Name and seconds of the largest unit in which every mean JCT is at least 10 (else seconds)."""
    means = [row.figures.jct_mean_s for row in rows if not math.isnan(row.figures.jct_mean_s)]
    fitting = [unit for unit in UNITS if means and min(means) / unit[1] >= _LEAST]
    return fitting[-1] if fitting else UNITS[0]


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


def _figures(row: PolicyResult) -> dict[str, Any]:
    """By name, the interval after the figure that it is of."""
    found = dataclasses.asdict(row.figures)
    return {"jct_mean_s": found.pop("jct_mean_s"), "jct_ci95_s": known_interval(row.jct_ci95_s), **found}


def _runs(row: PolicyResult) -> dict[str, Any]:
    """What the report says of a policy beside its figures."""
    stats = [dataclasses.asdict(result.stats) for result in row.outcomes]
    return {
        "hand_written": row.baseline,
        "ratio_ci95": known_interval(row.ratio_ci95),
        "rejected_because": row.rejections,
        "notes": row.notes,
        "seeds": stats,
    }


def known_interval(interval: Interval) -> list[float] | None:
    """[low, high], or None where there is no interval."""
    return None if math.isnan(interval[0]) else list(interval)


def make_plain(value: Any) -> Any:
    """The same with NaN and infinities as None, which JSON has."""
    if isinstance(value, dict):
        return {str(key): make_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    if isinstance(value, np.generic):
        return make_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def record(folder: Path, command: Sequence[str], comparison: Comparison) -> None:
    """Puts an evaluation into the card of the checkpoint in `folder`, in place of an earlier one by the same command.

    In `command` and figures, the checkpoint's folder becomes `CHECKPOINT`.
    """
    from jaxsched.policies.checkpoint import WHAT  # networks, which tables do not need

    named = lambda word: CHECKPOINT if word == str(folder) else word
    words = list(map(named, command))
    text = shlex.join(words)
    report = comparison.to_json()
    figures = {named(name): own for name, own in report["policies"].items()}
    entry = {
        "command": text,
        "jct_mean_s": {name: own["jct_mean_s"] for name, own in figures.items()},
        "jct_ci95_s": {name: own["jct_ci95_s"] for name, own in figures.items()},
        "ratio_to_best_baseline": {name: own["ratio_to_best_baseline"] for name, own in figures.items()},
        "jobs": report["jobs"],
        "versions": comparison.versions,
        "files": cards.named_files(words),
    }
    with locked(folder, wait_s=30.0):  # another evaluation may be about to add its own
        what = cards.what_of(folder) or WHAT
        kept = [one for one in cards.read_card(folder, what).get("figures", []) if one["command"] != text]
        cards.update(folder, what, figures=[*kept, entry])


def table_beside_card(lines: Sequence[tuple[str, float | None, float | None]]) -> str:
    """A table of mean JCTs: name, in the card, now, and their ratio; a dash where there is none."""

    def text(value: float | None, form: str) -> str:
        return "–" if value is None or math.isnan(value) else format(value, form)

    def ratio(then: float | None, now: float | None) -> float | None:
        return now / then if then and now else None

    names = ["mean JCT (s)", "card", "now", "now / card"]
    rows = [[name, text(then, ",.1f"), text(now, ",.1f"), text(ratio(then, now), ".4f")] for name, then, now in lines]
    return align(names, rows)
