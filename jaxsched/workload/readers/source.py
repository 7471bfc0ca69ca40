"""What a source of job logs says of itself: how its files are told from others, what is read of them, and how."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxsched.workload.jobs import WHOLE
from jaxsched.workload.readers.cells import Cells

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
