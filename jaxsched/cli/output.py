"""What commands print and write: tables, reports, files, and the progress of long work."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jaxsched.errors import UserError
from jaxsched.io.files import save_result

if TYPE_CHECKING:
    from jaxsched.evaluation.tables import Comparison
    from jaxsched.simulation import engine


def show(comparison: "Comparison") -> None:
    """The table and its legend on stdout; drawn with lines where a terminal is wide enough for them."""
    from jaxsched.evaluation import tables

    console = Console()
    text = tables.plain_text(comparison)
    if console.is_terminal and console.width > 1.1 * max(map(len, text.splitlines())):
        console.print(tables.rich_table(comparison))
    else:
        print(text)
    for line in tables.legend(comparison):
        print(line)


Writer = Callable[[Path | None, Callable[[Path], object]], None]


@contextlib.contextmanager
def results() -> Iterator[Writer]:
    """Hands out `write(path, how)`, for what a command has worked out: nothing that can be kept is lost.

    `path` None: was not asked for. What was written is said at the end of the block. If one file cannot be written the
    others still are, and UserError at the end says where each one is kept.
    """
    written: list[Path] = []
    failed: list[str] = []

    def write(path: Path | None, how: Callable[[Path], object]) -> None:
        if path is None:
            return
        try:
            save_result(path, how)
            written.append(path)
        except UserError as error:
            failed.append(str(error))

    try:
        yield write
    finally:
        try:
            for path in written:
                print(f"wrote {path}")
        finally:
            if failed:
                raise UserError("; ".join(failed))


def text(content: str) -> Callable[[Path], object]:
    """How to write a text; bytes of a file's name that are no text stand in it as `\\udcff`."""
    return lambda path: path.write_text(content, encoding="utf-8", errors="backslashreplace")


EVERY_S = 5.0
STALLED = 10  # times as long as a unit takes: then nobody can say how long the rest will take


@contextlib.contextmanager
def still_at(what: str) -> Iterator[None]:
    """Says from time to time that a piece of work, of which nobody knows how long it takes, goes on in the block."""
    over, begin = threading.Event(), time.monotonic()

    def say() -> None:
        while not over.wait(EVERY_S):
            print(f"{what}: at work for {time.monotonic() - begin:,.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
        self._moved: dict[str, tuple[int, float]] = {}  # what was done last, and when
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
            if self._moved.get(name, (-1, now))[0] != done:
                self._moved[name] = done, now
            still_s = now - self._moved[name][1]
            stalls = 0 < done < total and still_s > max(EVERY_S, STALLED * paced_s / max(paced, 1))
            none = f", none for {still_s:,.0f} s" if stalls else ""
            if self._bars is not None:
                self._bars.start_task(self._tasks[name])
                said = f"{done:,}/{total:,} {unit}{none or _rate(paced, paced_s, unit)} {note}"
                self._bars.update(self._tasks[name], completed=done, said=said)
            elif over or now - self._printed.get(name, -EVERY_S) >= EVERY_S:
                self._printed[name] = now
                line = f"{name}: {done:,}/{total:,} {unit}{_rate(paced, paced_s, unit)}"
                if over:
                    line += f", done in {passed_s:,.1f} s"
                elif none:
                    line += none
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
        self._running = set(names)
        self._after = contextlib.ExitStack()

    def __exit__(self, *exception: object) -> None:
        self._after.close()
        super().__exit__(*exception)

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
        with self._lock:
            if over and progress.policy in self._running:
                self._running.remove(progress.policy)
                if not self._running:
                    self._after.enter_context(still_at("figures and the lower bound"))


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


Data = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]


def check_report(path: Path | None, *inputs: str | Path, **others: Path | None) -> None:
    """UserError if a report is asked for (`--json`) that cannot be written; told before a long computation.

    `inputs` are what the command reads, `others` the other files that it writes, by option.
    """
    from jaxsched.io.files import check_outputs

    check_outputs({"--json": path} | {f"--{name}": other for name, other in others.items()}, inputs)


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """The report as JSON, if a file was asked for."""
    from jaxsched.io.json_file import to_json

    with results() as write:
        write(path, text(to_json(report, 1)))
