"""Curves of single trainings: validation over decisions, from the untrained policy on."""

from collections.abc import Sequence
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.evaluation.statistics import UNKNOWN
from jaxsched.io.json_lines import read_rows
from jaxsched.learning.loop import METRICS_FILE
from jaxsched.learning.untrained import curve_of
from jaxsched.sweeps.ranking import LinePoint


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
