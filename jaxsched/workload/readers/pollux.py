"""Workloads of Pollux and Sia: what was asked for, and no run times.

Schema: petuum/adaptdl, branch osdi21-artifact, simulator/workloads*/workload-*.csv; siasosp23/artifacts, the same
columns. The run time is that with the GPUs and the batch size that the user would have tuned (columns `num_replicas`,
`batch_size`), packed on T4 nodes of four: `RUN_S`, which we worked out from the profiles of the first repository
(Apache-2.0; simulator/traces) as its simulator does. The shortest completion times that it published (Tiresias at load
0.5) are these and 30 to 64 s, of which 30 are the start; some gangs of 8 were faster, on nodes that were not full.
"""

import numpy as np

from jaxsched.semantics import LONGEST_S
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source

RUN_S: dict[str, dict[tuple[int, int], int]] = {  # by application, GPUs and batch size
    "bert": {
        (1, 12): 13614,
        (4, 48): 3587,
        (6, 384): 3092,
        (8, 384): 2459,
        (12, 384): 1594,
        (16, 384): 1324,
    },
    "cifar10": {
        (1, 128): 4000,
        (4, 512): 1170,
        (4, 2048): 1323,
        (6, 2048): 910,
        (8, 1024): 1323,
        (8, 2048): 865,
        (8, 4096): 975,
        (10, 4096): 739,
        (12, 4096): 624,
        (16, 4096): 482,
    },
    "deepspeech2": {
        (1, 20): 19440,
        (4, 80): 6370,
        (6, 320): 4142,
        (8, 160): 6154,
        (8, 320): 3530,
        (12, 640): 2477,
    },
    "imagenet": {
        (8, 1600): 79840,
        (10, 1600): 62245,
        (12, 3200): 58231,
        (14, 3200): 50835,
        (16, 3200): 44832,
        (24, 3200): 31805,
        (32, 6400): 27431,
        (48, 6400): 19689,
    },
    "ncf": {
        (1, 256): 1440,
        (1, 32768): 47,
        (2, 512): 940,
        (4, 1024): 591,
        (8, 2048): 930,
    },
    "yolov3": {
        (1, 8): 33748,
        (2, 16): 19070,
        (4, 32): 14268,
        (4, 64): 14102,
        (8, 64): 26142,
        (16, 128): 11541,
    },
}
_MODELS = {"imagenet": "resnet50", "cifar10": "resnet18", "yolov3": ""}  # others have the catalogue's names


def _read(cells: Cells) -> Columns:
    gpus = cells.gpus("num_replicas")
    batch = cells.whole("batch_size", minimum=1)
    kinds = cells.text("application")
    run_s = np.array([RUN_S.get(kind, {}).get((int(g), int(b)), np.nan) for kind, g, b in zip(kinds, gpus, batch)])
    reason = "no run time is known for the application with such GPUs and batch size"
    cells.leave_out(np.isnan(run_s), reason, "application", "one of " + ", ".join(RUN_S))
    return {
        "job_id": cells.names("name"),
        "submit_s": cells.number("time", minimum=0, maximum=LONGEST_S),
        "duration_s": run_s,
        "workers": gpus,
        "model": [_MODELS.get(kind, kind) for kind in kinds],
        "gpu_type": np.full(len(cells), "T4"),
    }


POLLUX = Source(
    "pollux",
    "workloads of Pollux and Sia",
    ("name", "time", "application", "num_replicas", "batch_size"),
    _read,
    from_start=False,
    names="name",
    remark="run times are those with the GPUs and batch size of the file, on T4s; jobs do not adapt",
)
