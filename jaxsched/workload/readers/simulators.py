"""Workloads of three schedulers' simulators, which look alike: Tiresias, Muri and ElasticFlow (ITP).

Schemas: SymbioticLab/Tiresias, README.md (`*_job.csv`: job_id,num_gpu,submit_time,iterations,model_name,duration,
interval; seconds); Rivendile/Muri, 4e69a78c, simulator/trace-data (the same and more; milliseconds);
microsoft/elasticflow-traces (ITP: submission_time, num_iteration, deadline; seconds).
"""

import numpy as np

from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.native import due
from jaxsched.workload.readers.source import Columns, Source


def _read(cells: Cells, submitted: str, per_second: int) -> Columns:
    gpus = cells.gpus("num_gpu")
    return {
        "job_id": cells.names("job_id"),
        "submit_s": cells.submitted(submitted, per_second=per_second),
        "duration_s": cells.run_s("duration", np.zeros(len(cells), np.int64), per_second=per_second),
        "workers": gpus,
        "model": cells.labels("model_name"),
    }


def _read_itp(cells: Cells) -> Columns:
    found = _read(cells, "submission_time", 1)
    return {**found, "due_s": due(cells, "deadline", found["submit_s"])}


_NEEDS = ("job_id", "num_gpu", "submit_time", "model_name", "duration")
TIRESIAS = Source(
    "tiresias",
    "Tiresias' simulator, seconds",
    _NEEDS,
    lambda cells: _read(cells, "submit_time", 1),
    passes=("iterations", "interval"),
    marks=("iterations", "interval"),
    from_start=False,
)
MURI = Source(
    "muri",
    "Muri's simulator, milliseconds",
    _NEEDS,
    lambda cells: _read(cells, "submit_time", 1000),
    passes=(
        *("iterations", "batch_size", "interval", "iteration_time", "resource_time_0", "resource_time_1"),
        *("resource_time_2", "priority"),
    ),
    marks=("iterations", "batch_size", "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2"),
    unit="milliseconds",
    from_start=False,
    strict_models="model_name",
)
ITP = Source(
    "itp",
    "Microsoft ITP as ElasticFlow publishes it",
    ("job_id", "submission_time", "num_gpu", "duration", "model_name"),
    _read_itp,
    uses=("deadline",),
    passes=("num_iteration", "batch_size"),
    marks=("num_iteration", "deadline"),
    remark="models, iterations and deadlines are drawn by ElasticFlow's authors, the rest is measured",
)
