"""What a table of trainings has beside them: untrained policies and the rules of their priors; and its doubts.

Both are rows like those of a sweep, with a group of their own. Where many groups begin alike there is one row for all.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxsched.evaluation.metrics import mean_interval
from jaxsched.learning.untrained import FEW_DECISIONS, are_alike

Row = dict[str, Any]
UNTRAINED, PRIOR = "untrained", "prior"
_NOTHING = dict.fromkeys(("wall_s", "cpu_s", "chunk_wall_s", "chunk_cpu_s"))


def with_references(rows: Sequence[Row]) -> list[Row]:
    """The rows, and after them those of untrained policies and of priors; rows from before have none."""
    return [*rows, *_references(rows, UNTRAINED, lambda row: UNTRAINED), *_references(rows, PRIOR, _prior_of)]


def _references(rows: Sequence[Row], kind: str, name_of: Callable[[Row], str]) -> Iterator[Row]:
    """Rows of a kind, for every set of figures by seed that some group has; it has the name of these groups."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["tests"] and all(kind in test for test in row["tests"].values()):
            groups.setdefault(row["group"], []).append(_reference(row, kind))
    sets: dict[str, list[str]] = {}
    for group, own in groups.items():
        sets.setdefault(repr([(row["seed"], row["tests"]) for row in own]), []).append(group)
    first = {own[0]: own for own in sets.values()}
    names = {group: name_of(next(row for row in rows if row["group"] == group)) for group in first}
    for group, like in first.items():
        alone = list(names.values()).count(names[group]) == 1
        more = f" and {len(like) - 1} more" if len(like) > 1 else ""
        name = names[group] if alone else f"{names[group]} ({group}{more})"
        yield from (row | {"group": name, "point": f"{name} seed={row['seed']}"} for row in groups[group])


def _reference(row: Row, kind: str) -> Row:
    curve = row["validation"]["curve"]
    before = next((one["jct_s"] for one in curve if one["chunk"] == 0), None) if kind == UNTRAINED else None
    tests = {name: test[kind] for name, test in row["tests"].items()}
    own = {"id": f"{row['id']} {kind}", "validation": {"best_jct_s": before, "curve": []}, "training": _NOTHING}
    return row | own | {"tests": tests}


def _prior_of(row: Row) -> str:
    return f"{PRIOR}: {next(iter(row['tests'].values()))[PRIOR]['policy']}"


def doubts(rows: Sequence[Row]) -> Iterator[str]:
    """A line for every group whose trainings may show nothing."""
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        decisions = min((row["training"].get("decisions") or math.inf for row in own), default=math.inf)
        if decisions < FEW_DECISIONS:
            yield f"{group}: {decisions:,.0f} decisions of a training are few to learn from"
        for name in own[0]["tests"]:
            if said := _compare([row["tests"][name] for row in own if name in row["tests"]]):
                yield f"{group}: {name}: {said}"


def _compare(tests: Sequence[dict[str, Any]]) -> str | None:
    """What is to be said of trained and untrained figures of a test, a seed each."""
    pairs = [(test["jct_by_list_s"], test[UNTRAINED]["jct_by_list_s"]) for test in tests if UNTRAINED in test]
    if not pairs or any(None in by_list for pair in pairs for by_list in pair):
        return None
    if all(are_alike(*pair) for pair in pairs):
        return "trained and untrained decide alike, so that it shows nothing of what training or a part of it brings"
    low, high = mean_interval(np.array([np.mean(after) / np.mean(before) for after, before in pairs]))
    return "seeds do not tell trained from untrained" if low <= 1.0 <= high else None
