"""Tasks that workers of other processes can import."""

import os
import time
from pathlib import Path

from jaxsched.errors import UserError

PATIENCE_S = 300.0


def square(common: Path, argument: int, tell) -> tuple[int, int]:
    """Says that it is there, waits for the file `go`, and returns its process with the square."""
    tell((argument, os.getpid()))
    (common / f"begun-{argument}-{os.getpid()}").touch()
    late = time.monotonic() + PATIENCE_S
    while not (common / "go").exists():
        assert time.monotonic() < late
        time.sleep(0.02)
    return os.getpid(), argument**2


def refused(common: Path, argument: int, tell) -> int:
    """A user's mistake."""
    raise UserError(f"{argument}: should be even")


def die(common: Path, argument: int, tell) -> int:
    """As a process that the system kills."""
    (common / f"died-{os.getpid()}").touch()
    os._exit(1)
