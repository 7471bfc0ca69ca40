"""Evaluations in a checkpoint's card: recorded there, and shown beside new ones."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from jaxsched.evaluation.tables import Comparison, align
from jaxsched.io import cards
from jaxsched.io.files import locked
from jaxsched.policies.checkpoint import WHAT

WAIT_S = 30.0
CHECKPOINT = "CHECKPOINT"  # in a recorded command, the policy that the card is of


def record(folder: Path, command: Sequence[str], comparison: Comparison) -> None:
    """Puts an evaluation into the card of the checkpoint in `folder`, in place of an earlier one by the same command.

    In `command` and figures, the checkpoint's folder becomes `CHECKPOINT`.
    """
    named = lambda word: CHECKPOINT if word == str(folder) else word
    text = shlex.join(map(named, command))
    report = comparison.to_json()
    figures = {named(name): own for name, own in report["policies"].items()}
    entry = {
        "command": text,
        "jct_mean_s": {name: own["jct_mean_s"] for name, own in figures.items()},
        "jct_ci95_s": {name: own["jct_ci95_s"] for name, own in figures.items()},
        "ratio_to_best_baseline": {name: own["ratio_to_best_baseline"] for name, own in figures.items()},
        "jobs": report["jobs"],
        "versions": comparison.versions,
    }
    with locked(folder, wait_s=WAIT_S):  # another evaluation may be about to add its own
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
