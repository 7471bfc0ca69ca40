"""Workloads of schedulers' simulators: Tiresias, Muri and ElasticFlow (ITP), which look alike, Gavel, Pollux and Sia.

- SymbioticLab/Tiresias, README.md (`*_job.csv`: job_id,num_gpu,submit_time,iterations,model_name,duration,interval;
  seconds); Rivendile/Muri, 4e69a78c, simulator/trace-data (the same and more; milliseconds);
  microsoft/elasticflow-traces (ITP: submission_time, num_iteration, deadline; seconds).
- Gavel: lines of cells with tabs between, without a header; jobs are steps to do, not seconds.
  stanford-futuredata/gavel, c4fa4009, scheduler/utils.py (`parse_trace`), and the shorter lines of its earlier traces.
  A job's run time is its steps over those per second that Gavel measured on V100s, consolidated, which is how its
  generator made steps of run times. `RATES`: scheduler/simulation_throughputs.json of the same commit (MIT), six
  digits.
- Pollux and Sia: what was asked for, and no run times. petuum/adaptdl, branch osdi21-artifact,
  simulator/workloads*/workload-*.csv; siasosp23/artifacts, the same columns. The run time is that with the GPUs and the
  batch size that the user would have tuned (columns `num_replicas`, `batch_size`), packed on T4 nodes of four: `RUN_S`,
  which we worked out from the profiles of the first repository (Apache-2.0; simulator/traces) as its simulator does.
  The shortest completion times that it published (Tiresias at load 0.5) are these and 30 to 64 s, of which 30 are the
  start; some gangs of 8 were faster, on nodes that were not full.
"""

from collections.abc import Sequence

import numpy as np

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S
from jaxsched.workload.readers.cells import Cells, Columns, Source
from jaxsched.workload.readers.native import due


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


_GPUS = (1, 2, 4, 8)
RATES: dict[str, tuple[float, ...]] = {  # steps/s on 1, 2, 4 and 8 V100s
    "ResNet-18 (batch size 16)": (32.3534, 100.142, 123.854, 382.597),
    "ResNet-18 (batch size 32)": (29.9472, 94.2489, 114.733, 340.038),
    "ResNet-18 (batch size 64)": (24.0932, 74.1359, 95.5881, 255.829),
    "ResNet-18 (batch size 128)": (17.9949, 23.9854, 69.9505, 162.092),
    "ResNet-18 (batch size 256)": (10.3003, 15.8828, 27.7821, 81.5066),
    "ResNet-50 (batch size 16)": (11.3961, 13.8598, 23.1956, 27.7991),
    "ResNet-50 (batch size 32)": (7.78726, 10.8346, 13.7632, 24.0674),
    "ResNet-50 (batch size 64)": (4.39477, 7.92205, 9.45195, 17.3032),
    "ResNet-50 (batch size 128)": (2.49677, 4.22301, 7.02929, 10.2932),
    "Transformer (batch size 16)": (11.0641, 14.1538, 20.085, 71.6517),
    "Transformer (batch size 32)": (10.6209, 13.328, 22.8225, 63.9777),
    "Transformer (batch size 64)": (8.61776, 15.8765, 19.6596, 49.6507),
    "Transformer (batch size 128)": (5.44611, 10.0692, 14.1745, 30.8835),
    "Transformer (batch size 256)": (1.59514, 2.88524, 4.76305, 9.71702),
    "A3C": (7.17577,),
    "LM (batch size 5)": (109.167, 185.724, 126.716, 698.773),
    "LM (batch size 10)": (81.6516, 163.129, 121.478, 615.093),
    "LM (batch size 20)": (64.7425, 132.174, 110.997, 497.295),
    "LM (batch size 40)": (45.2374, 91.5927, 96.0312, 359.307),
    "LM (batch size 80)": (28.24, 58.0915, 74.8073, 231.176),
    "Recommendation (batch size 512)": (23.3176,),
    "Recommendation (batch size 1024)": (13.2826,),
    "Recommendation (batch size 2048)": (7.46963,),
    "Recommendation (batch size 4096)": (3.90605,),
    "Recommendation (batch size 8192)": (2.84151,),
    "CycleGAN": (4.42609,),
}
_GAVEL_MODELS = {
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "LM": "lstm_lm",
    "Recommendation": "ncf",
    "A3C": "a2c",
}
_TEN = ("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor")
_SEVEN = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
GAVEL_LINES = (
    (*_TEN, "priority_weight", "SLO", "arrival_time"),
    (*_TEN, "mode", "priority_weight", "SLO", "arrival_time"),  # as Shockwave writes it
    _SEVEN,
    tuple(name for name in _SEVEN if name != "needs_data_dir"),
)


def _read_gavel(cells: Cells) -> Columns:
    gpus = cells.gpus("scale_factor")
    kinds = cells.text("job_type")
    known = {(kind, count): rate for kind, rates in RATES.items() for count, rate in zip(_GPUS, rates)}
    rate = np.array([known.get((kind, int(count)), np.nan) for kind, count in zip(kinds, gpus)])
    cells.leave_out(np.isnan(rate), "no rate was measured for such a job", "job_type", "a job that Gavel measured")
    cells.leave_out(cells.zero("total_steps"), "no steps", "total_steps", "a number > 0")
    return {
        "job_id": [str(line) for line in cells.piece.numbers],
        "submit_s": cells.number("arrival_time", minimum=0, maximum=LONGEST_S),
        "duration_s": cells.number("total_steps", minimum=1e-3, maximum=LONGEST_S) / rate,
        "workers": gpus,
        "model": [_GAVEL_MODELS.get(kind.partition(" (")[0], "") for kind in kinds],
        "gpu_type": np.full(len(cells), "V100"),
    }


def _fits_gavel(cells: Sequence[str]) -> bool:
    names = next(names for names in GAVEL_LINES if len(names) == len(cells))
    numbers = ("total_steps", "scale_factor", "arrival_time")
    return all(np.isfinite(plain_number(cells[names.index(name)].strip())) for name in numbers)


GAVEL = Source(
    "gavel",
    "Gavel's traces",
    (),
    _read_gavel,
    uses=("job_type", "total_steps", "scale_factor", "arrival_time"),
    passes=("command", "working_directory", "num_steps_arg", "needs_data_dir", "mode", "priority_weight", "SLO"),
    unit="steps",
    bare=GAVEL_LINES,
    separator="\t",
    fits=_fits_gavel,
    from_start=False,
    remark="run times are steps over Gavel's steps per second on V100s; a job has the number of its line",
)


RUN_S: dict[str, dict[tuple[int, int], int]] = {  # by application, GPUs and batch size
    "bert": {(1, 12): 13614, (4, 48): 3587, (6, 384): 3092, (8, 384): 2459, (12, 384): 1594, (16, 384): 1324},
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
    "deepspeech2": {(1, 20): 19440, (4, 80): 6370, (6, 320): 4142, (8, 160): 6154, (8, 320): 3530, (12, 640): 2477},
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
    "ncf": {(1, 256): 1440, (1, 32768): 47, (2, 512): 940, (4, 1024): 591, (8, 2048): 930},
    "yolov3": {(1, 8): 33748, (2, 16): 19070, (4, 32): 14268, (4, 64): 14102, (8, 64): 26142, (16, 128): 11541},
}
_POLLUX_MODELS = {"imagenet": "resnet50", "cifar10": "resnet18", "yolov3": ""}  # others have the catalogue's names


def _read_pollux(cells: Cells) -> Columns:
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
        "model": [_POLLUX_MODELS.get(kind, kind) for kind in kinds],
        "gpu_type": np.full(len(cells), "T4"),
    }


POLLUX = Source(
    "pollux",
    "workloads of Pollux and Sia",
    ("name", "time", "application", "num_replicas", "batch_size"),
    _read_pollux,
    from_start=False,
    names="name",
    remark="run times are those with the GPUs and batch size of the file, on T4s; jobs do not adapt",
)
