"""How many cases the last tier tries: `CASES=5 make test-long` tries five times as many as the server does."""

import os
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

TIMES = int(os.environ.get("CASES", "1"))


def cases(count: int, **more) -> settings:
    """Hypothesis' settings for `count` cases, times `TIMES`."""
    return settings(max_examples=count * TIMES, **more)


def few(tried: Iterable[T], every: Iterable[T]) -> list[T]:
    """Parameters of a test that compiles a program for each: some of them on the server, all with `CASES=2` or more."""
    return list(tried if TIMES == 1 else every)
