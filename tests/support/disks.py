"""Small and read-only file systems, where the system lets us mount them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(place: Path, size: str = "64k") -> Iterator[Path]:
    """An empty file system of that size on `place`. Skips the test where mounting is not allowed."""
    place.mkdir(parents=True, exist_ok=True)
    if _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)):
        pytest.skip("needs the right to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remounted(place: Path, options: str) -> None:
    """Give a mounted file system other options: `size=1m`, `ro`, `rw`."""
    assert _mount("-o", f"remount,{options}", str(place)) == 0


def _mount(*arguments: str) -> int:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, timeout=30).returncode
    except FileNotFoundError:
        return 1
