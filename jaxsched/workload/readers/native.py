"""Our own format: a CSV file with a line per job; docs/howto/trace.md says what its columns mean."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from jaxsched.errors import UserError
from jaxsched.workload.jobs import MOST_ASKED, MOST_PS, WHOLE
from jaxsched.workload.readers.cells import PLAN_COLUMNS, Cells, Columns, Source
from jaxsched.workload.readers.table import read_log_table


def _read(cells: Cells) -> Columns:
    gpus = cells.gpus("num_gpus")
    ended = cells.ends("ended")
    duration_s = cells.run_s("duration_s", ended)
    workers, per_worker = cells.given("num_workers", minimum=1), cells.given("gpus_per_worker", minimum=1)
    per_worker = np.where(per_worker >= 0, per_worker, np.where(workers < 0, 1, gpus // np.maximum(workers, 1)))
    workers = np.where(workers >= 0, workers, gpus // np.maximum(per_worker, 1))
    product = workers * per_worker
    wanted = lambda i: f"num_workers * gpus_per_worker = {workers[i]} * {per_worker[i]} = {product[i]}"
    cells.wrong(product != gpus, "num_gpus", wanted)
    ps = cells.given("num_ps", minimum=0, maximum=MOST_PS)
    milli = shared(cells, "gpu_milli", cells.given("gpu_milli", minimum=1), gpus)
    cells.wrong((milli < WHOLE) & (ps > 0), "num_ps", "0, a job that shares its GPU has no parameter servers")
    with cells.only(cells.where("estimate_s", bool)):
        estimate_s = cells.seconds("estimate_s")
    submit_s = cells.submitted("submit_time_s")
    return {
        "job_id": cells.names("job_id"),
        "submit_s": submit_s,
        "duration_s": duration_s,
        "workers": workers,
        "gpus_per_worker": per_worker,
        "ps": ps,
        "model": _models(cells, gpus),
        "tenant": cells.labels("tenant"),
        "user": cells.labels("user"),
        "home": cells.given("home", minimum=0),
        "milli": milli,
        "gpu_type": cells.labels("gpu_type"),
        "cpu_milli": np.maximum(cells.given("cpu_milli", minimum=0, maximum=MOST_ASKED), 0),
        "memory_mib": np.maximum(cells.given("memory_mib", minimum=0, maximum=MOST_ASKED), 0),
        "allowed": cells.gpu_types("allowed_gpu_types"),
        "ended": ended,
        "estimate_s": estimate_s,
        "due_s": due(cells, "deadline_s", submit_s),
    }


def _models(cells: Cells, gpus: Int64[np.ndarray, "N"]) -> Sequence[str]:
    """Names of models, and of plans where rows have one."""
    models = cells.labels("model")
    if not any(map(cells.has, PLAN_COLUMNS)):
        return models
    from jaxsched.workload.llm import plan_names  # a fifth of a second, which other traces do not need

    return plan_names(cells, models, gpus)


def read_plans(path: str | Path) -> tuple[str, ...]:
    """Names of the plans that the rows of a trace have, in their order. UserError as of any trace."""
    table = read_log_table(Path(path), (NATIVE,), None, False)
    names: dict[str, None] = {}
    for piece in table.pieces:
        cells = Cells(piece, table.found)
        for name, plain in zip(_read(cells)["model"], cells.labels("model")):
            if name != plain:
                names[name] = None
    table.found.check()
    if not names:
        raise UserError(f"{path}: no row has a plan; it should have some of the columns {', '.join(PLAN_COLUMNS)}")
    return tuple(names)


def due(cells: Cells, field: str, submit_s: Float64[np.ndarray, "N"]) -> Float64[np.ndarray, "N"]:
    """Seconds from the submission to the deadline, which is on the same clock; inf where the cell is empty."""
    there = cells.where(field, bool)
    with cells.only(there):
        deadline_s = cells.submitted(field)
        cells.wrong(deadline_s <= submit_s, field, lambda i: f"after the submission at {submit_s[i]:.12g}")
    return np.where(there, deadline_s - submit_s, np.inf)


def shared(
    cells: Cells, field: str, milli: Int64[np.ndarray, "N"], gpus: Int64[np.ndarray, "N"]
) -> Int64[np.ndarray, "N"]:
    """Thousandths of each GPU; only a job of one GPU may have fewer than all. Where `milli` is -1 it is all of them."""
    wanted = f"{WHOLE} thousandths, or fewer for a job of one GPU"
    cells.wrong((milli > WHOLE) | ((milli >= 0) & (milli < WHOLE) & (gpus != 1)), field, wanted)
    return np.where(milli < 0, WHOLE, milli)


NATIVE = Source(
    "native",
    "jaxsched's own",
    ("job_id", "submit_time_s", "num_gpus", "duration_s"),
    _read,
    uses=(
        *("model", "num_workers", "num_ps", "gpus_per_worker", "tenant", "user", "home", "gpu_milli", "gpu_type"),
        *("ended", "estimate_s", "deadline_s", "allowed_gpu_types", "cpu_milli", "memory_mib"),
        *PLAN_COLUMNS,
    ),
    closed=True,
    from_start=False,
    strict_models="model",
)
