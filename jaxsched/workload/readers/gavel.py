"""Gavel's traces: lines of cells with tabs between, without a header; jobs are steps to do, not seconds.

Schema: stanford-futuredata/gavel, c4fa4009, scheduler/utils.py (`parse_trace`), and the shorter lines of its earlier
traces. A job's run time is its steps over those per second that Gavel measured on V100s, consolidated, which is how its
generator made steps of run times. `RATES`: scheduler/simulation_throughputs.json of the same commit (MIT), six digits.
"""

from collections.abc import Sequence

import numpy as np

from jaxsched.io.files import plain_number
from jaxsched.semantics import LONGEST_S
from jaxsched.workload.readers.cells import Cells
from jaxsched.workload.readers.source import Columns, Source

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
_MODELS = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "LM": "lstm_lm", "Recommendation": "ncf", "A3C": "a2c"}
_TEN = ("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor")
_SEVEN = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
BARE = (
    (*_TEN, "priority_weight", "SLO", "arrival_time"),
    (*_TEN, "mode", "priority_weight", "SLO", "arrival_time"),  # as Shockwave writes it
    _SEVEN,
    tuple(name for name in _SEVEN if name != "needs_data_dir"),
)


def _read(cells: Cells) -> Columns:
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
        "model": [_MODELS.get(kind.partition(" (")[0], "") for kind in kinds],
        "gpu_type": np.full(len(cells), "V100"),
    }


def _fits(cells: Sequence[str]) -> bool:
    names = next(names for names in BARE if len(names) == len(cells))
    numbers = ("total_steps", "scale_factor", "arrival_time")
    return all(np.isfinite(plain_number(cells[names.index(name)].strip())) for name in numbers)


GAVEL = Source(
    "gavel",
    "Gavel's traces",
    (),
    _read,
    uses=("job_type", "total_steps", "scale_factor", "arrival_time"),
    passes=("command", "working_directory", "num_steps_arg", "needs_data_dir", "mode", "priority_weight", "SLO"),
    unit="steps",
    bare=BARE,
    separator="\t",
    fits=_fits,
    from_start=False,
    remark="run times are steps over Gavel's steps per second on V100s; a job has the number of its line",
)
