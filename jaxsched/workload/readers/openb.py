"""Alibaba's openb pods of 2023.

Schema: hkust-adsl/kubernetes-scheduler-simulator, 8f3d6417, data/csv/openb_pod_list_*.csv; alibaba/clusterdata,
cluster-trace-gpu-v2023, README.md. Times are seconds. A pod of one GPU may ask for a share of it. `gpu_spec` names the
types of GPUs that it may run on, as the list of nodes names them in `model`; G1, G2 and G3 are such types, too.
"""

import numpy as np

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
        "allowed": cells.gpu_types("gpu_spec"),
        "ended": cells.ends("pod_phase", strictly=False),
    }


OPENB = Source(
    "openb",
    "Alibaba's pods of 2023",
    ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    _read,
    uses=("pod_phase", "gpu_spec"),
    passes=("cpu_milli", "memory_mib", "qos"),
    names="name",
    remark="CPUs and memory have no end here, whatever a pod asks for",
)
