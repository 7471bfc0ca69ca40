"""Readers of step times by placement: Pollux's `placements.csv` and `scalability.csv`, with a column `model`.

A placement "1143" is four nodes with 1, 1, 4 and 3 GPUs; a row of `scalability.csv` says nodes and GPUs, which are
spread evenly.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int32, Shaped

from jaxsched.calibration.tables import Format, model_name, read_table
from jaxsched.workload.rows import Row

MOST_NODES, MOST_GPUS = 65536, 65536 * 1024  # far above any measurement: a typing error must not fill the memory
_TIMES = ("local_batch_size", "step_time_s", "sync_time_s")
PLACEMENT_COLUMNS = ("model", "placement", *_TIMES)
SCALABILITY_COLUMNS = ("model", "nodes", "gpus", *_TIMES)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Measured steps."""

    model: Shaped[np.ndarray, "D"]  # names
    batch: Int32[np.ndarray, "D"]  # samples per GPU
    placement: Shaped[np.ndarray, "D"]  # GPUs per node in ascending order, joined by '+'
    step_s: Float64[np.ndarray, "D"]

    @property
    def spread(self) -> tuple[Int32[np.ndarray, "D"], Int32[np.ndarray, "D"], Int32[np.ndarray, "D"]]:
        """Nodes, GPUs, most GPUs of a node."""
        counts = [list(map(int, text.split("+"))) for text in self.placement]
        shape = [(len(nodes), sum(nodes), max(nodes)) for nodes in counts]
        nodes, gpus, most = np.array(shape, np.int32).reshape(-1, 3).T
        return nodes, gpus, most

    def pick(self, kept: Bool[np.ndarray, "D"]) -> "StepTimes":
        """Those of `kept`."""
        return StepTimes(self.model[kept], self.batch[kept], self.placement[kept], self.step_s[kept])


def read_step_times(paths: Sequence[str | Path]) -> StepTimes:
    """The rows of all files. UserError on any mistake."""
    rows = []
    for path in map(Path, paths):
        rows += read_table(path, FORMATS)[1]
    model, batch, placement, step = zip(*rows)
    return StepTimes(np.array(model), np.array(batch, np.int32), np.array(placement), np.array(step))


def _row(nodes_of: Callable[[Row], list[int]], row: Row) -> tuple[str, int, str, float]:
    nodes, name = nodes_of(row), model_name(row, "model")
    step = row.seconds("step_time_s")
    row.number("sync_time_s", minimum=0)
    placement = "+".join(map(str, sorted(nodes)))
    return name, row.whole("local_batch_size", minimum=1), placement, step


def _digits(row: Row) -> list[int]:
    text = row.text("placement")
    if not re.fullmatch("[1-9]{1,256}", text):
        raise row.fail("placement", "one digit from 1 to 9 per node, its GPUs")
    return [int(digit) for digit in text]


def _even(row: Row) -> list[int]:
    nodes, gpus = row.whole("nodes", minimum=1, maximum=MOST_NODES), row.whole("gpus", minimum=1, maximum=MOST_GPUS)
    if gpus < nodes:
        raise row.fail("gpus", f"at least the number of nodes, {nodes}")
    return [gpus // nodes + (i < gpus % nodes) for i in range(nodes)]


FORMATS = (Format(PLACEMENT_COLUMNS, partial(_row, _digits)), Format(SCALABILITY_COLUMNS, partial(_row, _even)))
