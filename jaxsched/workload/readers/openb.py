"""Alibaba's openb pods of 2023.

Schema: hkust-adsl/kubernetes-scheduler-simulator, 8f3d6417, data/csv/openb_pod_list_*.csv; alibaba/clusterdata,
cluster-trace-gpu-v2023, README.md. Times are seconds. A pod of one GPU may ask for a share of it. `gpu_spec` names
the types of GPUs that it may run on, as the list of nodes names them in `model`; G1, G2 and G3 are such types, too.
CPUs and memory are reserved; a pod of several GPUs is a gang of one for each, and each reserves its part.
"""

import numpy as np
from jaxtyping import Int64

from jaxsched.semantics import LONGEST_S, SHORTEST_S
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.native import shared
from jaxsched.workload.readers.source import Columns, Source


def _read(cells: Cells) -> Columns:
    gpus = cells.gpus("num_gpu")
    milli = shared(cells, "gpu_milli", cells.whole("gpu_milli", minimum=1), gpus)
    unscheduled = cells.absent("scheduled_time")
    pending = cells.where("pod_phase", lambda phase: phase in ("Pending", ""))
    cells.leave_out(unscheduled & pending, "never scheduled", "scheduled_time", "a time")
    cells.leave_out(cells.absent("deletion_time"), "never deleted", "deletion_time", "a time")
    created = cells.number("creation_time", minimum=0, maximum=LONGEST_S)
    with cells.only(~unscheduled):
        scheduled = cells.number("scheduled_time", minimum=0, maximum=LONGEST_S)
    started = np.where(unscheduled, created, scheduled)
    took = cells.number("deletion_time", minimum=0, maximum=LONGEST_S) - started
    cells.leave_out(took <= 0, "no positive duration", "deletion_time", "after the start")
    return {
        "job_id": cells.names("name"),
        "submit_s": created,
        "duration_s": np.maximum(np.where(took > 0, took, 1.0), SHORTEST_S),
        "workers": gpus,
        "milli": milli,
        "cpu_milli": _of_each(cells, "cpu_milli", gpus),
        "memory_mib": _of_each(cells, "memory_mib", gpus),
        "allowed": cells.gpu_types("gpu_spec"),
        "ended": cells.ends("pod_phase", strictly=False),
    }


def _of_each(cells: Cells, field: str, gpus: Int64[np.ndarray, "N"]) -> Int64[np.ndarray, "N"]:
    """What a pod reserves, in equal parts for its GPUs, rounded up; nothing where the file does not say."""
    most = np.maximum(cells.given(field, minimum=0), 0)
    return -(-most // np.maximum(gpus, 1))


OPENB = Source(
    "openb",
    "Alibaba's pods of 2023",
    ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    _read,
    uses=("pod_phase", "gpu_spec", "cpu_milli", "memory_mib"),
    passes=("qos",),
    names="name",
    remark="pods without GPUs are left out, and so is what they took of CPUs and memory",
)
