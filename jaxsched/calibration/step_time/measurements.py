"""Readers of step times by placement: Pollux's `placements.csv` and `scalability.csv`, with a column `model`.

A placement "1143" is four nodes with 1, 1, 4 and 3 GPUs; a row of `scalability.csv` says nodes and GPUs, which are
spread evenly.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxsched.errors import UserError
from jaxsched.workload.rows import Row, read_header, read_rows

_TIMES = ("local_batch_size", "step_time_s", "sync_time_s")
PLACEMENT_COLUMNS = ("model", "placement", *_TIMES)
SCALABILITY_COLUMNS = ("model", "nodes", "gpus", *_TIMES)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Measured steps; axis D."""

    model: np.ndarray  # str[D]
    batch: np.ndarray  # int32[D], samples per GPU
    placement: np.ndarray  # str[D], GPUs per node in ascending order, joined by '+'
    step_s: np.ndarray  # float64[D]

    @property
    def spread(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int32[D] each: nodes, GPUs, most GPUs of a node."""
        counts = [list(map(int, text.split("+"))) for text in self.placement]
        shape = [(len(nodes), sum(nodes), max(nodes)) for nodes in counts]
        nodes, gpus, most = np.array(shape, np.int32).reshape(-1, 3).T
        return nodes, gpus, most

    def pick(self, kept: np.ndarray) -> "StepTimes":
        """Those of `kept: bool[D]`."""
        return StepTimes(self.model[kept], self.batch[kept], self.placement[kept], self.step_s[kept])


def read_step_times(paths: Sequence[str | Path]) -> StepTimes:
    """The rows of all files. UserError on any mistake."""
    rows = []
    for path in map(Path, paths):
        header = read_header(path)
        parse = next((parse for columns, parse in FORMATS.items() if sorted(columns) == sorted(header)), None)
        if parse is None:
            known = " or ".join(",".join(columns) for columns in FORMATS)
            raise UserError(f"{path}, line 1: the header {','.join(header)!r} should be {known}")
        before = len(rows)
        rows.extend(_row(row, parse(row)) for row in read_rows(path))
        if len(rows) == before:
            raise UserError(f"{path}: no measurement in the file, should have at least one")
    model, batch, placement, step = zip(*rows)
    return StepTimes(np.array(model), np.array(batch, np.int32), np.array(placement), np.array(step))


def _row(row: Row, nodes: list[int]) -> tuple[str, int, str, float]:
    if not row.text("model"):
        raise row.fail("model", "the name of a model")
    step = row.number("step_time_s", minimum=0, exclusive=True)
    row.number("sync_time_s", minimum=0)
    placement = "+".join(map(str, sorted(nodes)))
    return row.text("model"), row.whole("local_batch_size", minimum=1), placement, step


def _digits(row: Row) -> list[int]:
    text = row.text("placement")
    if not text.isdecimal() or "0" in text:
        raise row.fail("placement", "one digit from 1 to 9 per node, its GPUs")
    return [int(digit) for digit in text]


def _even(row: Row) -> list[int]:
    nodes, gpus = row.whole("nodes", minimum=1), row.whole("gpus", minimum=1)
    if gpus < nodes:
        raise row.fail("gpus", f"at least the number of nodes, {nodes}")
    return [gpus // nodes + (i < gpus % nodes) for i in range(nodes)]


FORMATS = {PLACEMENT_COLUMNS: _digits, SCALABILITY_COLUMNS: _even}
