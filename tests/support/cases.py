"""How many cases the last tier tries: `CASES=5 make test-long` tries five times as many as the server does."""

import os

from hypothesis import settings

TIMES = int(os.environ.get("CASES", "1"))


def cases(count: int, **more) -> settings:
    """Hypothesis' settings for `count` cases, times `TIMES`."""
    return settings(max_examples=count * TIMES, **more)
