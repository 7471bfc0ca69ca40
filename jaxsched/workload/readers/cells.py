"""Columns of a log's cells, checked as they become numbers; and what a source of logs says of itself.

A piece of some ten thousand rows is looked at at a time. Whole columns are read at once where all cells are plain, and
cell by cell where one is not, which `rows.Row` then judges: so what is right, and what is said of what is not, is
written down there alone.
"""

import contextlib
import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Float64, Int64

from jaxsched.errors import Mistakes, UserError
from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.jobs import ENDS, WHOLE
from jaxsched.workload.rows import LONGEST_NAME, Row

LISTED = 10  # mistakes and notes of a file that are told one by one
_NOTHING = ("", "-", "none", "null", "nan", "NaN", "NaT", "n/a", "unknown", "\\N")  # what stands for no value
ABSENT = frozenset(form for word in _NOTHING for form in (word, word.lower(), word.upper(), word.capitalize()))
_PLAIN = set("0123456789.+-")
_LONGEST_PLAIN = 30
_ZERO = re.compile(r"[+-]?(0+\.?0*|\.0+)")
_DIGITS = [i for i in range(19) if i not in (4, 7, 10, 13, 16)]

COMPLETED, CANCELLED, FAILED = range(len(ENDS))
WORDS: dict[str, int] = {
    **dict.fromkeys(("completed", "complete", "pass", "passed", "succeeded", "success", "successful"), COMPLETED),
    **dict.fromkeys(("terminated", "finished", "done", "ok"), COMPLETED),
    **dict.fromkeys(("cancelled", "canceled", "killed", "kill", "revoked", "preempted", "deleted"), CANCELLED),
    **dict.fromkeys(("failed", "fail", "failure", "error", "exit", "timeout", "node_fail", "evicted"), FAILED),
    **dict.fromkeys(("out_of_memory", "oom", "boot_fail", "deadline", "launch_failed"), FAILED),
}
UNSTARTED = frozenset(("pending", "pend", "waiting", "queued", "requeued", "requeue_hold", "configuring"))
UNENDED = frozenset(("running", "run", "suspended", "completing", "resizing", "stopped", "signaling", "stage_out"))


class Findings:
    """What is found while a log is read: mistakes, rows that are no jobs, and what else a person should know."""

    def __init__(self, path: Path, unit: str = "line", strict: bool = False) -> None:
        self.path, self.unit, self.strict = path, unit, strict
        self.skipped: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.dated: bool | None = None  # submit times are dates
        self._mistakes: list[tuple[int, str]] = []
        self._count = 0

    def wrong(self, line: int, error: UserError) -> None:
        """A mistake, told as `error` says it."""
        self._count += 1
        if len(self._mistakes) < 100 * LISTED:
            self._mistakes.append((line, str(error)))

    def check(self) -> None:
        """UserError if there was a mistake: the message of the only one, or `Mistakes` with the first ten by line."""
        if self._count == 1:
            raise UserError(self._mistakes[0][1])
        if self._count:
            first = [text.removeprefix(f"{self.path}, ") for _, text in sorted(self._mistakes)[:LISTED]]
            raise Mistakes(str(self.path), self._count, first)


class Piece(NamedTuple):
    """Some rows of a log in their order."""

    numbers: Sequence[int]  # of the lines, or of the jobs in a list
    columns: Mapping[str, Sequence[str]]


@dataclasses.dataclass(eq=False)
class Cells:
    """A piece of a log. Rows that are left out are not looked at any more; values that stand for them mean nothing."""

    piece: Piece
    found: Findings
    keep: Bool[np.ndarray, "N"] = dataclasses.field(init=False)
    _texts: dict[str, Sequence[str]] = dataclasses.field(init=False, default_factory=dict)
    _numeric: dict[str, Float64[np.ndarray, "N"] | None] = dataclasses.field(init=False, default_factory=dict)
    _distinct: dict[str, set[str]] = dataclasses.field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.keep = np.ones(len(self.piece.numbers), bool)

    def __len__(self) -> int:
        return len(self.piece.numbers)

    def has(self, field: str) -> bool:
        """Whether the log has such a column."""
        return field in self.piece.columns

    def text(self, field: str) -> Sequence[str]:
        """The cells of a column without surrounding blanks; '' everywhere if there is none."""
        if field not in self._texts:
            column = self.piece.columns.get(field)
            if column is None:
                column = [""] * len(self)
            elif _may_have_blanks("".join(column)):
                column = [cell.strip() for cell in column]
            self._texts[field] = column
        return self._texts[field]

    def where(self, field: str, true: Callable[[str], bool]) -> Bool[np.ndarray, "N"]:
        """Whether `true` of each cell; it is asked once about cells that are alike."""
        column = self.text(field)
        if field not in self._distinct:
            self._distinct[field] = set(column)
        some = {cell for cell in self._distinct[field] if true(cell)}
        if len(some) in (0, len(self._distinct[field])):
            return np.full(len(self), bool(some))
        return np.fromiter((cell in some for cell in column), bool, len(self))

    def absent(self, field: str) -> Bool[np.ndarray, "N"]:
        """Whether a cell is empty or says that there is no value."""
        column = self.text(field)
        if ABSENT.isdisjoint(column):
            return np.zeros(len(self), bool)
        return np.fromiter(map(ABSENT.__contains__, column), bool, len(self))

    def zero(self, field: str) -> Bool[np.ndarray, "N"]:
        """Whether a cell is the number 0."""
        numbers = self._plain(field)
        if numbers is not None:
            return numbers == 0
        return self.where(field, lambda cell: _ZERO.fullmatch(cell) is not None)

    @contextlib.contextmanager
    def only(self, rows: Bool[np.ndarray, "N"]) -> Iterator[None]:
        """What is read meanwhile is read of these rows alone."""
        kept, self.keep = self.keep, self.keep & rows
        yield
        self.keep = kept

    def leave_out(self, rows: Bool[np.ndarray, "N"], reason: str, field: str, wanted: str) -> None:
        """Rows that are no jobs: counted by `reason`; where reading is strict, a mistake of `field`."""
        rows = rows & self.keep
        if not rows.any():
            return
        if self.found.strict:
            self.wrong(rows, field, wanted)
        else:
            self.found.skipped[reason] += int(rows.sum())
        self.keep &= ~rows

    def wrong(self, rows: Bool[np.ndarray, "N"], field: str, wanted: str | Callable[[int], str]) -> None:
        """Mistakes of `field` in those of the `rows` that are kept; `wanted` may depend on the row's place."""
        for i in np.flatnonzero(rows & self.keep).tolist():
            text = wanted if isinstance(wanted, str) else wanted(i)
            self.found.wrong(self.piece.numbers[i], self._row(field, i).fail(field, text))

    def broken(self, i: int, error: UserError) -> None:
        """A mistake of the row at a place, of several of its cells."""
        line = self.piece.numbers[i]
        self.found.wrong(line, UserError(f"{self.found.path}, {self.found.unit} {line}, {error}"))

    def note(self, rows: Bool[np.ndarray, "N"], text: str) -> None:
        """Something to tell about those of the `rows` that are kept."""
        if count := int((rows & self.keep).sum()):
            self.found.notes[text] += count

    def number(self, field: str, *, minimum: float = -math.inf, maximum: float = math.inf) -> Float64[np.ndarray, "N"]:
        """Finite numbers from `minimum` to `maximum`."""
        return self._numbers(field, minimum, maximum, lambda row: row.number(field, minimum=minimum, maximum=maximum))

    def whole(self, field: str, *, minimum: int, maximum: int = 2**31 - 1) -> Int64[np.ndarray, "N"]:
        """Whole numbers from `minimum` to `maximum`."""
        judge = lambda row: float(row.whole(field, minimum=minimum, maximum=maximum))
        values = self._numbers(field, minimum, maximum, judge, whole=True)
        return np.where(np.isfinite(values), values, minimum).astype(np.int64)

    def given(self, field: str, *, minimum: int, maximum: int = 2**31 - 1) -> Int64[np.ndarray, "N"]:
        """As `whole`; -1 where the cell is empty."""
        empty = self.where(field, lambda cell: not cell)
        with self.only(~empty):
            values = self.whole(field, minimum=minimum, maximum=maximum)
        return np.where(empty, -1, values)

    def seconds(self, field: str, *, per_second: int = 1) -> Float64[np.ndarray, "N"]:
        """Run times, in cells that have so many units per second."""
        judge = lambda row: row.seconds(field, per_second=per_second) * per_second
        return self._numbers(field, SHORTEST_S * per_second, LONGEST_S * per_second, judge) / per_second

    def gpus(self, field: str) -> Int64[np.ndarray, "N"]:
        """GPUs of each job; a row without any is left out."""
        self.leave_out(self.absent(field) | self.zero(field), "no GPU", field, "a whole number >= 1")
        return self.whole(field, minimum=1)

    def run_s(self, field: str, ended: Int64[np.ndarray, "N"], *, per_second: int = 1) -> Float64[np.ndarray, "N"]:
        """Run times; a row that has none, and so was no job that ran, is left out."""
        self.leave_out(self.absent(field), "no run time", field, "a finite number > 0")
        zero = self.zero(field)
        self.leave_out(zero & (ended == CANCELLED), "cancelled after 0 s", field, "a finite number > 0")
        self.leave_out(zero, "run time of 0 s", field, "a finite number > 0")
        return self.seconds(field, per_second=per_second)

    def between(
        self, start: Float64[np.ndarray, "N"], end: Float64[np.ndarray, "N"], ended: Int64[np.ndarray, "N"], field: str
    ) -> Float64[np.ndarray, "N"]:
        """Run times from `start` to `end`, the moments of the column `field`; a job that took no time is left out."""
        took = end - start
        self.wrong(took < 0, field, "not before the start")
        self.leave_out((took == 0) & (ended == CANCELLED), "cancelled after 0 s", field, "after the start")
        self.leave_out(took == 0, "run time of 0 s", field, "after the start")
        return np.where(self.keep & (took > 0), took, 1.0)

    def moments(self, field: str) -> Float64[np.ndarray, "N"]:
        """Dates and times as seconds since 1970, UTC where they name no zone."""
        values, kept = np.full(len(self), math.nan), np.flatnonzero(self.keep)
        column = self._kept(field, kept)
        plain = _plain_moments(column)
        if plain is None:
            plain = np.array([self._judged(field, i, lambda row: row.timestamp_s(field)) for i in kept], np.float64)
        values[kept] = plain
        return values

    def submitted(self, field: str, *, per_second: int = 1) -> Float64[np.ndarray, "N"]:
        """Submit times, all seconds (or parts of them) from any start, or all dates and times."""
        column = self.text(field)
        if self.found.dated is None and self.keep.any():
            first = next((cell for cell, keep in zip(column, self.keep) if keep), "")
            self.found.dated = not math.isfinite(plain_number(first)) and "-" in first.lstrip("-")
        if self.found.dated:
            return self.moments(field)
        return self.number(field, minimum=0, maximum=per_second * LONGEST_S) / per_second

    def names(self, field: str) -> Sequence[str]:
        """Names: not empty, and not too long."""
        column = self.text(field)
        length = np.fromiter(map(len, column), np.int64, len(self))
        bad = (length == 0) | (length > LONGEST_NAME)
        for i in np.flatnonzero(bad & self.keep):
            self._judged(field, i, lambda row: float(len(row.name(field))))
        return column

    def labels(self, field: str) -> Sequence[str]:
        """Names of tenants, users, types and models; '' where there is none."""
        column = self.text(field)
        self.wrong(
            self.where(field, lambda cell: len(cell) > LONGEST_NAME), field, f"at most {LONGEST_NAME} characters"
        )
        return column

    def gpu_types(self, field: str) -> Sequence[str]:
        """GPU types with bars between them, such as A100|H100; '' where any will do."""
        absent = self.absent(field)
        bad = self.where(field, lambda cell: bool(cell) and not all(name.strip() for name in cell.split("|")))
        self.wrong(bad & ~absent, field, "GPU types such as A100 or A100|H100")
        column = self.labels(field)
        return ["" if none else cell for cell, none in zip(column, absent.tolist())] if absent.any() else column

    def ends(self, field: str, *, strictly: bool = True) -> Int64[np.ndarray, "N"]:
        """How jobs ended, as places in `ENDS`; an empty cell is a completed one. Jobs that did not are left out.

        `strictly`: a word that is not known is a mistake; otherwise it stands for a completed job.
        """
        column = self.text(field)
        word = {cell: cell.partition(" by ")[0].rstrip("+ ").casefold().replace(" ", "_") for cell in set(column)}
        wanted = f"one of {', '.join(ENDS)}"
        if strictly:
            self.leave_out(self.where(field, lambda cell: word[cell] in UNSTARTED), "never started", field, wanted)
            self.leave_out(self.where(field, lambda cell: word[cell] in UNENDED), "no end", field, wanted)
            self.wrong(self.where(field, lambda cell: bool(cell) and word[cell] not in WORDS), field, wanted)
        code = {cell: WORDS.get(text, COMPLETED) for cell, text in word.items()}
        return np.fromiter(map(code.__getitem__, column), np.int64, len(self))

    def _plain(self, field: str) -> Float64[np.ndarray, "N"] | None:
        if field not in self._numeric:
            self._numeric[field] = _plain_numbers(self.text(field))
        return self._numeric[field]

    def _row(self, field: str, i: Any) -> Row:
        cells = {field: str(self.text(field)[i])}
        return Row(self.found.path, int(self.piece.numbers[i]), cells, self.found.unit)

    def _judged(self, field: str, i: Any, judge: Callable[[Row], float]) -> float:
        try:
            return judge(self._row(field, i))
        except UserError as error:
            self.found.wrong(self.piece.numbers[i], error)
            return math.nan

    def _kept(self, field: str, kept: np.ndarray) -> Sequence[str]:
        column = self.text(field)
        return column if len(kept) == len(column) else [str(column[i]) for i in kept]

    def _numbers(
        self, field: str, minimum: float, maximum: float, judge: Callable[[Row], float], whole: bool = False
    ) -> Float64[np.ndarray, "N"]:
        values, kept = np.full(len(self), math.nan), np.flatnonzero(self.keep)
        if not len(kept):
            return values
        plain = self._plain(field)
        if plain is None:
            plain = np.array([plain_number(cell) for cell in self.text(field)], np.float64)
        some = plain[kept]
        bad = ~((some >= minimum) & (some <= maximum))
        if whole:
            bad |= some != np.floor(some)
        for place in np.flatnonzero(bad):
            some[place] = self._judged(field, kept[place], judge)
        values[kept] = some
        return values


def estimates(asked_s: Float64[np.ndarray, "N"]) -> Float64[np.ndarray, "N"]:
    """Run times that were asked for; NaN for what can be none, such as a limit that is no limit."""
    return np.where((asked_s >= SHORTEST_S) & (asked_s <= LONGEST_S), asked_s, math.nan)


def needs_column(path: Path, wanted: str, how: str) -> NoReturn:
    """UserError for a log that lacks a column which no other can stand for."""
    raise UserError(f"{path}: has no column {wanted}; {how}")


def _may_have_blanks(text: str) -> bool:
    """Whether cells may need to be stripped; far quicker than to strip them all."""
    return " " in text or "\t" in text or not text.isascii()


def _plain_numbers(column: Sequence[str]) -> Float64[np.ndarray, "N"] | None:
    """The numbers of a column that has digits, points and signs alone; None for any other."""
    if set("".join(column)) - _PLAIN or max(map(len, column), default=0) > _LONGEST_PLAIN:
        return None
    try:
        return np.array([float(cell) for cell in column], np.float64)
    except ValueError:
        return None


def _plain_moments(column: Sequence[str]) -> Float64[np.ndarray, "N"] | None:
    """Seconds since 1970 of a column in which every cell is like 2017-10-03 12:00:00; None for any other."""
    cells = np.array(column)
    if cells.dtype.itemsize != 4 * 19 or not len(cells):
        return None
    codes = cells.view(np.uint32).reshape(-1, 19)
    digits = codes[:, _DIGITS]
    fits = (digits >= 48) & (digits <= 57)
    marks = (codes[:, [4, 7, 13, 16]] == [45, 45, 58, 58]).all() and np.isin(codes[:, 10], (32, 84)).all()
    if not (fits.all() and marks) or (codes[:, :4] == 48).all(1).any():  # the year 0
        return None
    try:
        return cells.astype("datetime64[s]").astype(np.float64)
    except ValueError:
        return None


# What a reader may say of jobs, and what it means where it does not: -1, NaN and '' are "the log does not say".
COLUMNS: dict[str, Any] = {
    "job_id": "",
    "submit_s": 0.0,
    "duration_s": 1.0,
    "workers": 1,  # of the gang
    "gpus_per_worker": 1,
    "ps": -1,
    "model": "",
    "tenant": "",
    "user": "",
    "home": -1,
    "milli": WHOLE,  # thousandths of a GPU, below `WHOLE` for a job that shares its only one
    "gpu_type": "",  # that run times are on
    "allowed": "",  # GPU types that it may use, with bars between them
    "cpu_milli": 0,  # thousandths of a core that each worker reserves
    "memory_mib": 0,  # likewise
    "ended": 0,
    "estimate_s": float("nan"),  # what its user said it would take
    "due_s": float("inf"),  # from its submission to its deadline
}
# Of our own format: how a job is cut up, as fields of `workload.plans.Plan`.
PLAN_COLUMNS = ("tensor", "data", "pipeline", "expert", "micro_batch", "global_batch", "all_reduce")
Columns = Mapping[str, Any]  # some of `COLUMNS`: an array or a sequence of one entry per row


@dataclasses.dataclass(frozen=True)
class Source:
    """A format of job logs.

    A file is told by all its columns: it must have those in `needs`. Where that holds for several sources, the one
    counts whose `marks` are there, too, and which knows every column; if there is none such, the user must say.
    """

    name: str
    about: str  # whose, in a few words
    needs: tuple[str, ...]
    read: Callable[[Cells], Columns]
    uses: tuple[str, ...] = ()  # further columns that are read where they are there
    passes: tuple[str, ...] = ()  # the schema has them, and they have no effect
    marks: tuple[str, ...] = ()  # every file has them
    names: str = "job_id"  # the column of jobs' names
    closed: bool = False  # another column is a mistake; otherwise it is said to be unread
    unit: str = "seconds"  # of run times
    from_start: bool = True  # submit times count from the first job
    strict_models: str = ""  # the column of models, if the catalogue must know them
    export: str = ""  # how to get a file that has all columns
    remark: str = ""  # what a person should know who reads results
    bare: tuple[tuple[str, ...], ...] = ()  # columns of files without a header, by their number
    separator: str = ","  # of such files; a blank: any number of them
    comment: str = ""  # what lines of such files begin with that are no rows
    fits: Callable[[Sequence[str]], bool] = lambda cells: False  # whether such a file may begin with this line
    rows: Callable[[Any], Iterable[dict[str, str]] | None] | None = None  # of a JSON value; None: it is none of ours
    joined: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None  # rows of the same job, put together

    def unread(self, header: Iterable[str]) -> tuple[str, ...]:
        """Columns of a header that have no effect."""
        return tuple(name for name in header if name not in self.needs and name not in self.uses)
