"""Our own format: a CSV file with a line per job; docs/howto/trace.md says what its columns mean."""

import numpy as np

from jaxsched.workload.jobs import MOST_PS, WHOLE
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source


def _read(cells: Cells) -> Columns:
    gpus = cells.gpus("num_gpus")
    ended = cells.ends("ended")
    duration_s = cells.run_s("duration_s", ended)
    workers, per_worker = cells.given("num_workers", minimum=1), cells.given("gpus_per_worker", minimum=1)
    per_worker = np.where(per_worker >= 0, per_worker, np.where(workers < 0, 1, gpus // np.maximum(workers, 1)))
    workers = np.where(workers >= 0, workers, gpus // np.maximum(per_worker, 1))
    for bad in np.unique(np.stack([workers, per_worker])[:, cells.keep & (workers * per_worker != gpus)], axis=1).T:
        product = f"{bad[0]} * {bad[1]} = {bad[0] * bad[1]}"
        rows = (workers == bad[0]) & (per_worker == bad[1]) & (workers * per_worker != gpus)
        cells.wrong(rows, "num_gpus", f"num_workers * gpus_per_worker = {product}")
    ps, milli = cells.given("num_ps", minimum=0, maximum=MOST_PS), shared(cells, "gpu_milli", gpus)
    cells.wrong((milli < WHOLE) & (ps > 0), "num_ps", "0, a job that shares its GPU has no parameter servers")
    estimate = cells.where("estimate_s", lambda cell: not cell)
    kept, cells.keep = cells.keep, cells.keep & ~estimate
    estimate_s = cells.seconds("estimate_s") if not estimate.all() else np.full(len(cells), np.nan)
    cells.keep = kept
    return {
        "job_id": cells.names("job_id"),
        "submit_s": cells.submitted("submit_time_s"),
        "duration_s": duration_s,
        "workers": workers,
        "gpus_per_worker": per_worker,
        "ps": ps,
        "model": cells.labels("model"),
        "tenant": cells.labels("tenant"),
        "user": cells.labels("user"),
        "home": cells.given("home", minimum=0),
        "milli": milli,
        "gpu_type": cells.labels("gpu_type"),
        "ended": ended,
        "estimate_s": estimate_s,
    }


def shared(cells: Cells, field: str, gpus: np.ndarray) -> np.ndarray:
    """Thousandths of each GPU; only a job of one GPU may have fewer than all. An empty cell is all of them."""
    milli = cells.given(field, minimum=1)
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
        *("ended", "estimate_s"),
    ),
    closed=True,
    from_start=False,
    strict_models="model",
)
