"""Names of the policies of golden runs: every rule x order x switch x forwarding x waiting option that there is."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .worlds import World

RULES = ("first-fit", "pack", "load-balance", "tetris", "least-interference", "contention-aware")
PLAIN = ("fifo", "sjf", "area", "tenants")
LEVELS = ("srtf", "srsf", "las", "mlfq", "tiresias", "gittins", "themis")
FORWARDS = ("", "forward", "spread")
ESTIMATING = ("sjf", "area", "srtf", "srsf", "themis", "reserve", "greedy-wait", "match", "seek", "default", "search")
SCHEDULERS = ("qssf", "tiresias-las", "tiresias-gittins", "themis")


def name_of(rule: str, *options: str) -> str:
    """As on the command line."""
    given = "+".join(filter(None, options))
    return f"{rule}:{given}" if given else rule


def _all(*parts: tuple[str, ...]) -> Iterator[str]:
    return (name_of(*part) for part in itertools.product(*parts))


SWITCHES = ("", "backfill", "consolidate", "backfill+reserve", "backfill+consolidate", "backfill+consolidate+reserve")


def plain() -> list[str]:
    """That stop nobody."""
    greedy = ("greedy-wait",)
    waits = ("", "t1.05", "t2"), ("p1", "p0", "p2"), ("", "lifetime"), ("", "reserve")
    seek = ("seek",), ("", "consolidate", "reserve")
    return [
        *_all(RULES, (*PLAIN, *LEVELS), SWITCHES, FORWARDS),
        *_all(greedy, (*PLAIN, "las", "themis"), ("", "stay", "spread"), *waits),
        *_all(RULES, PLAIN, ("backfill+spread",), *seek),
        *_all(greedy, PLAIN, ("spread",), ("p1",), *seek),
    ]


def stopping() -> list[str]:
    """That stop jobs."""
    switches = ("", "backfill", "consolidate", "backfill+consolidate")
    orders = (*LEVELS, "tiresias+q900")
    more = ("preempt",), switches, FORWARDS, ("", "h0.5"), ("", "faster")
    return [*_all(RULES, orders, *more), *_all(("greedy-wait",), orders, *more, ("", "lifetime"))]


def searching() -> list[str]:
    """That compare choices."""
    rules = ("search:pack", "search:greedy-wait", "search:tetris")
    found = _all(rules, ("fifo", "sjf", "area"), ("", "backfill"), ("", "spread"), ("n6",))
    return [f"{name}+p1" if "greedy-wait" in name else name for name in found]


# Played in every world in which they may be.
EVERYWHERE = (
    *RULES, *SCHEDULERS, "pack:backfill", "pack:sjf+backfill", "pack:area+backfill+reserve+spread", "greedy-wait:p1",
    "greedy-wait:sjf+spread+p1+lifetime+reserve", "default", "pack:las+backfill+preempt", "pack:srsf+backfill+preempt",
    "pack:mlfq+backfill+consolidate+preempt+spread+faster", "search:greedy-wait:area+n6+p1", "levels0", "levels1",
    "levels2",
)  # fmt: skip


def fits(spec: str, world: World) -> bool:
    """Whether a policy may play there."""
    words = spec.replace(":", "+").split("+")
    stops = "preempt" in words or spec in ("tiresias-las", "tiresias-gittins", "themis")
    history = "gittins" in words or spec in ("qssf", "tiresias-gittins")
    if (stops or spec.startswith("levels")) and not world.stops:
        return False
    if history and world.knows != "history":
        return False
    searches = words[0] == "search"
    if searches and (world.knows == "history" or "failures" in world.settings or world.out):
        return False
    return world.knows != "nothing" or not set(words) & set(ESTIMATING)


def write_levels(folder: Path, number: int) -> Path:
    """The folder of a policy whose order is a table of numbers; `levels0` and so on stand for them."""
    rng = np.random.default_rng((55, number))
    levels = (rng.integers(-4, 5, (8, 21)) * [1, 7, 2000][number]).tolist()
    path = folder / f"levels{number}"
    path.mkdir(parents=True, exist_ok=True)
    card = {"what": "levels", "schema": 1, "versions": {}, "levels": levels, "margin": [0, 1, 6][number]}
    (path / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return path
