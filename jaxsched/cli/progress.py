"""Progress of long work: a bar with rate and time left on a terminal, a plain line every few seconds elsewhere."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from jaxsched.simulation import engine

EVERY_S = 5.0


class Display:
    """Shows how far several named pieces of work are; a context manager, safe to call from several threads.

    `total` is the number of `unit`s that each piece has.
    """

    def __init__(self, names: Sequence[str], total: int, unit: str = "jobs") -> None:
        self._unit, self._total = unit, total
        self._lock = threading.Lock()
        self._printed: dict[str, float] = {}
        self._begun: dict[str, tuple[int, float]] = {}
        self._totals: dict[str, tuple[int, str]] = {}  # of pieces with their own
        self._said: set[str] = set()
        console = Console(stderr=True)
        self._bars = _bars(console) if console.is_terminal else None
        self._tasks = {}
        if self._bars is not None:
            self._tasks = {name: self._bars.add_task(name, total=total, start=False, said="waiting") for name in names}

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def compiling(self, name: str, what: str) -> None:
        """`name` waits for something to be compiled; said once, where several wait for the same."""
        with self._lock:
            if what in self._said:
                return
            self._said.add(what)
            if self._bars is not None:
                self._bars.update(self._tasks[name], said=f"compiling {what}")
            else:
                print(f"{name}: compiling {what}", file=sys.stderr, flush=True)

    def update(
        self, name: str, done: int, passed_s: float, *, over: bool, note: str = "", apart: tuple[int, float] = (0, 0.0)
    ) -> None:
        """`name` has done so many units in `passed_s` seconds of work; `over`: it will do no more.

        `apart`: of those, units and seconds that say nothing of the pace, for something was compiled in them.
        """
        paced, paced_s = done - apart[0], passed_s - apart[1]
        total, unit = self._totals.get(name, (self._total, self._unit))
        with self._lock:
            now = time.monotonic()
            if self._bars is not None:
                self._bars.start_task(self._tasks[name])
                said = f"{done:,}/{total:,} {unit}{_rate(paced, paced_s, unit)} {note}"
                self._bars.update(self._tasks[name], completed=done, said=said)
            elif over or now - self._printed.get(name, -EVERY_S) >= EVERY_S:
                self._printed[name] = now
                line = f"{name}: {done:,}/{total:,} {unit}{_rate(paced, paced_s, unit)}"
                if over:
                    line += f", done in {passed_s:,.1f} s"
                elif paced > 0:
                    line += f", about {(total - done) * paced_s / paced:,.0f} s left"
                print(f"{line} {note}".rstrip(), file=sys.stderr, flush=True)

    def more(self, name: str, done: int, total: int, passed_s: float, unit: str = "") -> None:
        """As `update` for pieces of work that are not known beforehand, each with its own total, and `unit` if given.

        Until its first report the program of a piece was compiled. That time says nothing of its pace.
        """
        self._totals[name] = (total, unit or self._unit)
        begun = self._begun.setdefault(name, (done, passed_s))
        if self._bars is not None and name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, start=False, said="waiting")
        self.update(name, done, passed_s, over=done == total, apart=begun)


class OverAll:
    """Beside each piece of work a line for all of them, as several workers do them; `total` is their units."""

    def __init__(self, display: Display, total: int) -> None:
        self._display, self._total = display, total
        self._done: dict[str, int] = {}
        self._begin = time.monotonic()

    def more(self, name: str, done: int, total: int, passed_s: float, unit: str = "") -> None:
        """As `Display.more`. What has a unit of its own does not count for all."""
        self._display.more(name, done, total, passed_s, unit)
        if unit:
            return
        self._done[name] = done
        together = min(sum(self._done.values()), self._total)
        self._display.more("all workers", together, self._total, time.monotonic() - self._begin)


class RunDisplay(Display):
    """The progress of `compare`: one piece of work per policy, its units the jobs of all seeds."""

    def __init__(self, names: Sequence[str], jobs: int) -> None:
        super().__init__(names, jobs)
        self._latest: dict[tuple[str, int], engine.Progress] = {}

    def report(self, progress: "engine.Progress") -> None:
        """As `compare` wants it."""
        if progress.compiling:
            self.compiling(progress.policy, progress.compiling)
            return
        with self._lock:
            self._latest[progress.policy, progress.seed] = progress
            runs = [run for (policy, _), run in self._latest.items() if policy == progress.policy]
        done, passed_s = sum(run.finished for run in runs), sum(run.wall_s for run in runs)
        over = all(run.over for run in runs) and sum(run.total for run in runs) == self._total
        note = f"({sum(run.simulated_s for run in runs) / 86400:,.1f} simulated days)" if done else ""
        self.update(progress.policy, done, passed_s, over=over, note=note)


def _rate(done: int, passed_s: float, unit: str) -> str:
    """What to say of the rate, once there is one."""
    if not done or passed_s <= 0:
        return ""
    if done >= 2 * passed_s:
        return f", {done / passed_s:,.0f} {unit}/s"
    return f", {passed_s / done:,.1f} s per {unit.removesuffix('s')}"


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
        console=console,
    )
