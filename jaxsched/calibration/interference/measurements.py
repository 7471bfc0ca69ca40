"""Readers of measured interference: Gavel's pairs on one GPU (CSV, upstream JSON) and DeepShare's network cells (CSV).

Every measurement is a *throughput ratio*: the victim's throughput beside the aggressor over its throughput alone.
"""

import dataclasses
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int, Int32, Shaped

from jaxsched.calibration.data import Format, read_table, some
from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.files import shorten
from jaxsched.io.json_file import read_json
from jaxsched.workload.rows import Row

GPU, NETWORK = "gpu", "network"
GPU_TYPES = ("k80", "p100", "v100")  # those that Gavel measured
NETWORK_NAME = "network"  # stands where a GPU type would
WITH_BATCH = "a model, with its batch size as in 'ResNet-18 (batch size 16)' or without one"
GPU_COLUMNS = ("gpu_type", "model_a", "model_b", "solo_a", "solo_b", "shared_a", "shared_b")
NETWORK_COLUMNS = (
    *("victim", "victim_gpus", "victim_gpus_per_node"),
    *("aggressor", "aggressor_gpus", "aggressor_gpus_per_node"),
    "throughput_ratio",
)
_BATCH = re.compile(r"(?P<family>.*?)(?: \(batch size (?P<batch>[1-9][0-9]{0,8})\))?$")
_JSON_JOB = re.compile(r"^\(['\"](?P<name>.{1,256})['\"], (?P<gpus>[0-9]{1,9})\)$")
LEAST, MOST = 1e-9, 1e9  # of throughputs, and of their ratios: what float32 and its logarithms can tell apart
MOST_RATIO = 2.0  # nobody is much faster beside others: percents are above it
MOST_TIMES = 10.0  # the throughput alone; beyond, units differ


@dataclasses.dataclass(frozen=True)
class Item:
    """A job as it was measured: what runs, at what scale, on what hardware."""

    hardware: str  # a GPU type, or `NETWORK_NAME`
    name: str
    family: str  # the model without its scale
    scale: tuple[float, ...]  # log2 of the batch size; of GPUs and GPUs per node
    profile: tuple[float, ...]  # what is known without any co-runner: log2 batch size and step time; the scale

    @property
    def key(self) -> tuple[str, str]:
        """What names it."""
        return self.hardware, self.name


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Directed throughput ratios between `items`. The two directions of a pair share their `row`."""

    kind: str  # GPU or NETWORK
    items: tuple[Item, ...]
    victim: Int[np.ndarray, "D"]  # index into items
    aggressor: Int[np.ndarray, "D"]
    ratio: Float64[np.ndarray, "D"]
    row: Int32[np.ndarray, "D"]  # 0, 1, 2, ...

    @property
    def rows(self) -> int:
        """Pairs, or cells."""
        return int(self.row.max()) + 1

    @property
    def hardware(self) -> Shaped[np.ndarray, "D"]:
        """Its name, of every ratio."""
        return np.array([item.hardware for item in self.items])[self.victim]

    def pick(self, kept: Bool[np.ndarray, "D"]) -> "Measurements":
        """Those of `kept`, with the same items; rows are renumbered."""
        row = np.unique(self.row[kept], return_inverse=True)[1].astype(np.int32)
        return dataclasses.replace(
            self, victim=self.victim[kept], aggressor=self.aggressor[kept], ratio=self.ratio[kept], row=row
        )


def gpu_item(gpu: str, name: str, solo_steps_s: float) -> Item:
    """A Gavel job such as `ResNet-18 (batch size 16)` that makes `solo_steps_s` steps a second alone."""
    found = _BATCH.match(name)
    assert found is not None
    batch = math.log2(int(found["batch"] or 1))
    return Item(gpu, name, found["family"], (batch,), (batch, -math.log2(solo_steps_s)))


def network_item(family: str, gpus: int, per_node: int) -> Item:
    """A DeepShare job of `gpus` GPUs, `per_node` a node; its name is like `DLRM 8x2`."""
    scale = (math.log2(gpus), math.log2(per_node))
    return Item(NETWORK_NAME, f"{family} {gpus}x{per_node}", family, scale, scale)


def read_measurements(paths: Sequence[str | Path]) -> list[Measurements]:
    """The measurements of all files, one `Measurements` per kind (GPU first). UserError on any mistake."""
    cells: dict[str, list[list[tuple[Item, Item, float]]]] = {GPU: [], NETWORK: []}
    for path in map(Path, paths):
        kind, rows = _read(path)
        cells[kind].extend(rows)
    return [_gather(kind, rows) for kind, rows in cells.items() if rows]


def _read(path: Path) -> tuple[str, list[list[tuple[Item, Item, float]]]]:
    """Kind and rows of a file, each row a list of (victim, aggressor, ratio)."""
    if path.suffix.lower() == ".json":
        return GPU, some(path, _gavel_json(path))
    gpus = Format(GPU_COLUMNS, _gpu_row, "jobs on one GPU")
    found, rows = read_table(path, (gpus, Format(NETWORK_COLUMNS, _network_row, "jobs on one network")))
    return GPU if found == gpus else NETWORK, rows


def _gpu_row(row: Row) -> list[tuple[Item, Item, float]]:
    gpu = row.text("gpu_type").lower()
    if gpu not in GPU_TYPES:
        raise row.fail("gpu_type", f"one of {', '.join(GPU_TYPES)}")
    names = row.name("model_a"), row.name("model_b")
    for field, name in zip(("model_a", "model_b"), names):
        if _wrong_batch(name):
            raise row.fail(field, WITH_BATCH)
    numbers = [_throughput(row, field) for field in GPU_COLUMNS[3:]]
    for alone, shared in ((0, 2), (1, 3)):
        if numbers[shared] > MOST_TIMES * numbers[alone]:
            field = GPU_COLUMNS[3 + shared]
            text = f"at most {MOST_TIMES:g} times {GPU_COLUMNS[3 + alone]}, in the same unit; it is used as it stands"
            warnings.warn(str(row.fail(field, text)), DoubtfulFile, stacklevel=2)
    return _pair(gpu, *names, *numbers)


def _pair(gpu: str, a: str, b: str, solo_a: float, solo_b: float, shared_a: float, shared_b: float):
    """Both directions of a pair; a model beside itself is one measurement, not two."""
    first, second = gpu_item(gpu, a, solo_a), gpu_item(gpu, b, solo_b)
    if a == b:
        return [(first, second, (shared_a + shared_b) / (solo_a + solo_b))]
    return [(first, second, shared_a / solo_a), (second, first, shared_b / solo_b)]


def _network_row(row: Row) -> list[tuple[Item, Item, float]]:
    jobs = []
    for role in ("victim", "aggressor"):
        gpus, per_node = (row.whole(f"{role}_{field}", minimum=1) for field in ("gpus", "gpus_per_node"))
        jobs.append(network_item(row.name(role), gpus, per_node))
    if (ratio := _throughput(row, "throughput_ratio")) > MOST_RATIO:
        raise row.fail("throughput_ratio", f"at most {MOST_RATIO:g}: a share of the throughput alone, 0.9 and not 90")
    return [(*jobs, ratio)]


def _throughput(row: Row, field: str) -> float:
    value = row.number(field, minimum=0, exclusive=True)
    if not LEAST <= value <= MOST:
        raise row.fail(field, f"a number from {LEAST:g} to {MOST:g}")
    return value


def _wrong_batch(name: str) -> bool:
    """The name says a batch size that is none."""
    found = _BATCH.match(name)
    return found is None or "(batch size" in found["family"]


def _gavel_json(path: Path) -> Iterator[list[tuple[Item, Item, float]]]:
    """Gavel's `simulation_throughputs.json`: GPU type -> job -> {"null": alone, other job: [own, other's]}, steps/s.

    A job is `('MODEL', GPUS)`. Left out: jobs of several GPUs, `*_unconsolidated` (for pairs a copy of the others) and
    pairs of two zeros (they did not fit the GPU together).
    """
    tables = read_json(path, "Gavel's simulation_throughputs.json")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError(f"{path}: should map GPU types to tables of jobs, as Gavel's simulation_throughputs.json does")
    for gpu, table in tables.items():
        if gpu.endswith("_unconsolidated"):
            continue
        if gpu not in GPU_TYPES:
            raise UserError(f"{path}: unknown GPU {shorten(gpu)!r}, should be one of {', '.join(GPU_TYPES)}")
        jobs = {key: found["name"] for key in table if (found := _JSON_JOB.match(key)) and found["gpus"] == "1"}
        for key, name in jobs.items():
            if not isinstance(table[key], dict):
                raise UserError(f"{path}, {gpu}, {key}: {shorten(repr(table[key]))} should map jobs to throughputs")
            if _wrong_batch(name):
                raise UserError(f"{path}, {gpu}, {key}: should be {WITH_BATCH}")
        alone = {key: _json_number(path, gpu, key, "null", table[key].get("null")) for key in jobs}
        seen = set()
        for key, name in jobs.items():
            for other in sorted(set(table[key]) & set(jobs)):
                both = table[key][other]
                if frozenset((key, other)) in seen or both == [0.0, 0.0]:
                    continue
                seen.add(frozenset((key, other)))
                if not isinstance(both, list) or len(both) != 2:
                    found = shorten(repr(both))
                    raise UserError(f"{path}, {gpu}, {key}, {other}: {found} should be two throughputs")
                shared = [_json_number(path, gpu, key, other, value) for value in both]
                yield _pair(gpu, name, jobs[other], alone[key], alone[other], *shared)


def _json_number(path: Path, gpu: str, key: str, field: str, value: object) -> float:
    place = f"{path}, {gpu}, {key}, {field}: {shorten(repr(value))}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"{place} should be a finite number > 0")
    if not LEAST <= value <= MOST:
        raise UserError(f"{place} should be a number from {LEAST:g} to {MOST:g}")
    return float(value)


def _gather(kind: str, rows: list[list[tuple[Item, Item, float]]]) -> Measurements:
    """Arrays of the rows; an item's profile is the mean over its rows."""
    directed = [(number, *cell) for number, row in enumerate(rows) for cell in row]
    profiles: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    known: dict[tuple[str, str], Item] = {}
    for _, victim, _, _ in directed:
        known[victim.key] = victim
        profiles.setdefault(victim.key, []).append(victim.profile)
    for _, _, aggressor, _ in directed:
        known.setdefault(aggressor.key, aggressor)
        profiles.setdefault(aggressor.key, [aggressor.profile])
    keys = sorted(known)
    items = tuple(
        dataclasses.replace(known[key], profile=tuple(map(float, np.mean(profiles[key], axis=0)))) for key in keys
    )
    index = {key: i for i, key in enumerate(keys)}
    return Measurements(
        kind=kind,
        items=items,
        victim=np.array([index[victim.key] for _, victim, _, _ in directed], np.int32),
        aggressor=np.array([index[aggressor.key] for _, _, aggressor, _ in directed], np.int32),
        ratio=np.array([ratio for *_, ratio in directed]),
        row=np.array([number for number, *_ in directed], np.int32),
    )
