"""What was measured of an application: a folder with step times by placement, and runs to the end by batch size.

The layout is that of Pollux' and Sia's profiles (`petuum/adaptdl`, branch osdi21-artifact; `siasosp23/artifacts`):

    placements.csv      placement,local_bsz,step_time,sync_time; "1143" is four nodes with 1, 1, 4 and 3 GPUs
    scalability.csv     num_nodes,num_replicas,local_bsz,step_time,sync_time
    validation-B.csv    progress,iteration,grad_sqr,grad_var; one line per epoch of a run at batch size B

With GPU types the first two are `placements-TYPE.csv` and `scalability-TYPE.csv`. On a cluster of one type those
without a type are read if it has none of its own.
"""

import dataclasses
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.csv_file import Table, read_table
from jaxsched.workload.rows import Row

Placement = tuple[int, ...]
Values = NDArray[np.float64]
STEP = ("step_time", "sync_time")
_PLACEMENT = re.compile("[1-9]+")
_VALIDATION = re.compile(r"validation-([1-9][0-9]{0,8})\.csv")
_LEAST_RISE = 100 * np.finfo(float).eps  # by which a point may lie outside of a simplex, as in SciPy's interpolator


class ProfileLimits(NamedTuple):
    """What an application is held to beyond its profile. None: the profile's own."""

    local_batch: int | None = None  # the most of a GPU
    gpus: int | None = None  # the most of a job
    batch: int | None = None  # its only batch size
    slower: float = 1.0  # a step takes so many times what was measured


# As the published simulators have it.
PUBLISHED_LIMITS: Mapping[str, ProfileLimits] = {
    "yolov3": ProfileLimits(local_batch=8),
    "ncf": ProfileLimits(gpus=1, batch=32768),
}
NO_LIMITS = ProfileLimits()


def rotated(placement: Placement) -> Placement:
    """The lexicographically least of its rotations."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Step times of one application on one GPU type.

    Attributes:
        listed: of a placement, rotated to the lexicographically least: local batches (rising), seconds of a step, and
            of its synchronisation. Shape [3, B].
        points: nodes, GPUs, local batch, seconds of a step and of its synchronisation. Shape [P, 5].
    """

    where: str
    listed: Mapping[Placement, Values]
    points: Values

    @property
    def local_batches(self) -> tuple[int, int]:
        """The smallest and the largest measured batch of a GPU."""
        return (
            int(min(rows[0, 0] for rows in self.listed.values())),
            int(max(rows[0, -1] for rows in self.listed.values())),
        )

    @cached_property
    def _mesh(self) -> Delaunay | None:
        try:
            return Delaunay(self.points[:, :3])
        except (QhullError, ValueError):
            return None  # all points in one plane: there is nothing between placements

    @property
    def most_nodes(self) -> int:
        """Nodes of the widest measured placement."""
        return int(self.points[:, 0].max())

    def at(self, placement: Placement, local: NDArray[np.int64]) -> Values:
        """Seconds of a step and of its synchronisation, [2, B], at local batches [B]. NaN where nothing covers it."""
        known = self.listed.get(rotated(placement))
        if known is not None:
            return np.stack([np.interp(local, known[0], known[1]), np.interp(local, known[0], known[2])])
        nodes = min(len(placement), self.most_nodes)
        return self._between(nodes, sum(placement), local)

    def _between(self, nodes: int, gpus: int, local: NDArray[np.int64]) -> Values:
        """Linear in the simplex that holds the point.

        Simplices of a grid overlap, so which one is found depends on where the search begins: every point is asked for
        by itself, as the published simulators do.
        """
        sought, back = np.unique(local, return_inverse=True)
        mesh = self._mesh
        if mesh is None:
            return np.full((2, len(local)), np.nan)
        points = np.array([(nodes, gpus, batch) for batch in sought], float)
        simplex = np.array([mesh.find_simplex(point[None], tol=_LEAST_RISE)[0] for point in points])
        transform = mesh.transform[simplex]
        first = (transform[:, :3] * (points - transform[:, 3])[:, None]).sum(-1)
        weights = np.concatenate([first, 1.0 - first.sum(-1, keepdims=True)], axis=1)
        found = (weights[..., None] * self.points[mesh.simplices[simplex], 3:]).sum(1)
        return np.where(simplex[:, None] < 0, np.nan, found)[back].T


@dataclasses.dataclass(frozen=True)
class Application:
    """One application.

    Attributes:
        step_times: by GPU type ("" where the profile knows of none).
        batches: validated batch sizes, rising. int64[V].
        progress: at the end of an epoch, the least of all runs. [E].
        iterations: at the end of an epoch. [V, E].
        grad_sqr, grad_var: squared norm and variance of the gradient in an epoch. [V, E].
    """

    name: str
    step_times: Mapping[str, StepTimes]
    batches: NDArray[np.int64]
    progress: Values
    iterations: Values
    grad_sqr: Values
    grad_var: Values
    limits: ProfileLimits

    @property
    def epochs(self) -> int:
        """After so many a job is done."""
        return len(self.progress)

    def local_batches(self, kind: str) -> tuple[int, int]:
        """The smallest and the largest batch of a GPU of a type: memories differ."""
        low, high = self.step_times[kind].local_batches
        return low, min(high, self.limits.local_batch or high)

    def most_gpus(self, batch: int | None = None) -> int:
        """How many GPUs a job can use, at a batch size or at the largest, on the type where that is most."""
        smallest = min(self.local_batches(kind)[0] for kind in self.step_times)
        most = (int(self.batches[-1]) if batch is None else batch) // smallest
        return most if self.limits.gpus is None else min(most, self.limits.gpus)


def read_applications(
    folder: str | Path,
    types: tuple[str, ...] = ("",),
    limits: Mapping[str, ProfileLimits] = PUBLISHED_LIMITS,
    names: Collection[str] | None = None,
) -> dict[str, Application]:
    """The applications of a folder of profiles, by the name of their folders: all, or those of `names` that are there.

    UserError with file and line on what is missing, is no number, or has a hole.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, should hold a folder of profiles for every application")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    if not found:
        raise UserError(f"{folder}: holds no folder, should hold one for every application")
    wanted = [path for path in found if names is None or path.name in names]
    return {path.name: _application(path, types, limits.get(path.name, NO_LIMITS)) for path in wanted}


def _application(folder: Path, types: tuple[str, ...], limits: ProfileLimits) -> Application:
    suffixes = {kind: f"-{kind}" for kind in types if kind and (folder / f"placements-{kind}.csv").exists()}
    if len(types) == 1:
        suffixes = suffixes or dict.fromkeys(types, "")
    if not suffixes:
        raise UserError(f"{folder}: no placements-TYPE.csv for any of {', '.join(types)}")
    runs = sorted(
        (int(match[1]), path) for path in folder.iterdir() if (match := _VALIDATION.fullmatch(path.name)) is not None
    )
    if not runs:
        raise UserError(f"{folder}: no validation-B.csv, should hold a run to the end at one batch size at least")
    tables = [_validation(path) for _, path in runs]
    lengths = {path: len(table) for table, (_, path) in zip(tables, runs, strict=True)}
    short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
    epochs = lengths[short]
    if epochs < lengths[long]:
        text = f"{short}: has {epochs} epochs, {long.name} has {lengths[long]}: jobs are done after {epochs}"
        warnings.warn(f"{text}; if the file was cut off, it is too few", DoubtfulFile, stacklevel=2)
    columns = np.stack([table[:epochs] for table in tables])  # V, E, 4
    if limits.local_batch is not None and limits.local_batch < 1:
        raise UserError(f"{folder}: a largest local batch of {limits.local_batch}, should be at least 1")
    return Application(
        name=folder.name,
        step_times={kind: _step_times(folder, suffix) for kind, suffix in suffixes.items()},
        batches=np.array([batch for batch, _ in runs]),
        progress=columns[:, :, 0].min(axis=0),
        iterations=columns[:, :, 1],
        grad_sqr=columns[:, :, 2],
        grad_var=columns[:, :, 3],
        limits=limits,
    )


def _rows(path: Path, columns: tuple[str, ...]) -> list[Row]:
    table: Table = read_table(path)
    for name in columns:
        if name not in table.header:
            raise UserError(f"{path}: no column {name}, should have {','.join(columns)}")
    if not table.rows:
        raise UserError(f"{path}: no rows, should have one at least")
    return [Row(path, line, dict(zip(table.header, cells, strict=True))) for line, cells in table.rows]


def _validation(path: Path) -> Values:
    names = ("progress", "iteration", "grad_sqr", "grad_var")
    rows = _rows(path, names)
    values = np.array([[row.number(name, minimum=0.0) for name in names] for row in rows])
    for row, before, after in zip(rows[1:], values[:-1, 0], values[1:, 0], strict=True):
        if after <= before:
            raise row.fail("progress", f"more than the {before:g} of the epoch before")
    for row, square, variance in zip(rows, values[:, 2], values[:, 3], strict=True):
        if square == variance == 0.0:
            raise row.fail("grad_var", "above 0 where grad_sqr is 0")
    return values


def _step_times(folder: Path, suffix: str) -> StepTimes:
    path = folder / f"placements{suffix}.csv"
    listed: dict[Placement, dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in _rows(path, ("placement", "local_bsz", *STEP)):
        text = row.text("placement")
        if not _PLACEMENT.fullmatch(text):
            raise row.fail("placement", "digits from 1 to 9, the GPUs on each node")
        placement, local = rotated(tuple(map(int, text))), row.whole("local_bsz", minimum=1)
        if local in listed[placement]:
            raise row.fail("local_bsz", "one that this placement has no line for yet")
        listed[placement][local] = _step(row)
    sums: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for placement, rows in listed.items():
        for local, times in rows.items():
            sums[len(placement), sum(placement), local].append(times)
    points = [(*key, *np.mean(values, axis=0)) for key, values in sorted(sums.items())]
    path = folder / f"scalability{suffix}.csv"
    for row in _rows(path, ("num_nodes", "num_replicas", "local_bsz", *STEP)):
        nodes = row.whole("num_nodes", minimum=1)
        gpus = row.whole("num_replicas", minimum=nodes)
        points.append((nodes, gpus, row.whole("local_bsz", minimum=1), *_step(row)))
    made = {name: np.array([(b, *rows[b]) for b in sorted(rows)]).T for name, rows in listed.items()}
    return StepTimes(str(folder / f"placements{suffix}.csv"), made, np.array(points))


def _step(row: Row) -> tuple[float, float]:
    step = row.number("step_time", minimum=0.0, exclusive=True)
    sync = row.number("sync_time", minimum=0.0)
    if sync > step:
        raise row.fail("sync_time", f"at most the step_time, {step:g}")
    return step, sync
