"""A run once more, from its placements and times alone: who ran beside whom, and for how long.

Engines keep no account of what slowed a job: that would cost time in every run. What they do keep is where every job
lay, when it started and when it ended. So what everything was used for at every moment can be found again, in the
order of the events, and only the jobs that an event touches are looked at.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.hardware import Cluster, one_partition
from jaxsched.dynamics.gpu_sharing import Sharers, pressure_of
from jaxsched.dynamics.resources import CPU, Layout, layout_of
from jaxsched.dynamics.speed import Footprint, JobSpec, best_hardware, footprint
from jaxsched.env.state import EnvParams
from jaxsched.errors import UserError
from jaxsched.policies.filling import place_ps
from jaxsched.simulation.outcome import Outcome

CHUNK = 2048  # jobs whose footprints are worked out together
BLOCK = 1 << 20  # entries of readings that are looked at together


@dataclasses.dataclass(frozen=True)
class Footprints:
    """What placed jobs look at, as entries: of a job its groups' CPUs, then their PCIe, then all else in its way.

    Job `j` has the entries `first[j]` to `first[j + 1]`, of which the first `groups[j]` are CPUs.
    """

    first: Int[np.ndarray, "J1"]
    groups: Int[np.ndarray, "J"]
    resource: Int[np.ndarray, "X"]  # of the whole cluster
    channel: Int[np.ndarray, "X"]
    own: Float[np.ndarray, "X"]
    base: Float[np.ndarray, "X"]  # uncontended seconds of communication per step
    compute: Float[np.ndarray, "X"]  # seconds of computing per step; of CPU entries
    ideal: Float[np.ndarray, "J"]
    least: Float[np.ndarray, "J"]
    used: list[tuple[Int[np.ndarray, "U"], Float[np.ndarray, "U"]]]  # resources of each job, and how much of them
    pressure: Float[np.ndarray, "J pressures"]  # on its shared GPU
    gpu: Int[np.ndarray, "J"]  # which one, of the whole cluster; -1: none
    gpu_type: Int[np.ndarray, "J"]


@dataclasses.dataclass(frozen=True)
class Readings:
    """Stretches of time of single jobs in which nothing changed for them; entry `x` belongs to reading `reading[x]`."""

    job: Int[np.ndarray, "E"]
    seconds: Float[np.ndarray, "E"]
    pressure: Float[np.ndarray, "E pressures"]  # of the co-runners on its GPU
    first: Int[np.ndarray, "E"]  # entry that a reading starts with
    entry: Int[np.ndarray, "X"]  # in `Footprints`
    others: Float[np.ndarray, "X"]  # use by all others


def footprints_of(result: Outcome, cluster: Cluster, params: EnvParams) -> Footprints:
    """The footprints of all jobs that started. UserError unless placements were recorded."""
    if result.workers is None:
        raise UserError(f"parts of {result.policy!r}: its placements were not recorded (record_placements)")
    layout, jobs = layout_of(cluster), result.jobs
    parts = [_dense(result, cluster, params, chunk) for chunk in _chunks(np.maximum(result.partition, 0))]
    order = np.concatenate([chunk for chunk, _ in parts])
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *(dense for _, dense in parts))
    place = np.argsort(order)
    first, columns, used = [0], [], []
    wires = _channels(layout)
    for j, p in zip(place, np.maximum(result.partition, 0)):
        use, compute = rows.use[:, j], rows.compute[:, j]
        base = np.concatenate([np.zeros(layout.nk, np.float32), rows.base[:, j]])
        groups = np.flatnonzero(compute)
        rest = np.flatnonzero(base)
        rest = rest[~np.isin(rest, groups + layout.nk)]
        at = np.concatenate([groups, groups + layout.nk, rest])
        seconds = np.zeros(len(at))
        seconds[: len(groups)] = compute[groups]
        columns.append((_everywhere(cluster, layout, p, at), wires[at], use[at], base[at], seconds, len(groups)))
        first.append(first[-1] + len(at))
        some = np.flatnonzero(use)
        used.append((_everywhere(cluster, layout, p, some), use[some].astype(np.float64)))
    joined = [np.concatenate([column[i] for column in columns]) for i in range(5)]
    kinds = np.asarray(cluster.group_gpu_type).reshape(cluster.shape[0], -1)
    gpu, share = np.full(len(jobs), -1), 0
    if result.gpu is not None:
        share = int(result.gpu.max(initial=0)) + 1
        gpu = np.where(result.gpu >= 0, result.partition.astype(np.int64) * share + result.gpu, -1)
    group = result.workers.argmax(1)
    gpu_type = kinds[np.maximum(result.partition, 0), group]
    sharers = Sharers(gpu=jnp.asarray(gpu), model=jnp.asarray(jobs.model), gpu_type=jnp.asarray(gpu_type))
    return Footprints(
        first=np.array(first),
        groups=np.array([column[5] for column in columns]),
        resource=joined[0].astype(np.int64),
        channel=joined[1].astype(np.int64),
        own=joined[2].astype(np.float64),
        base=joined[3].astype(np.float64),
        compute=joined[4],
        ideal=rows.ideal[place].astype(np.float64),
        least=rows.least[place].astype(np.float64),
        used=used,
        pressure=np.asarray(pressure_of(params.interference.sharing, sharers)),
        gpu=gpu,
        gpu_type=gpu_type.astype(np.int64),
    )


def _chunks(partition: Int[np.ndarray, "J"]) -> Iterator[Int[np.ndarray, "C"]]:
    """Jobs of one partition, at most `CHUNK` at once."""
    for p in np.unique(partition):
        here = np.flatnonzero(partition == p)
        yield from (here[at : at + CHUNK] for at in range(0, len(here), CHUNK))


def _dense(
    result: Outcome, cluster: Cluster, params: EnvParams, chunk: Int[np.ndarray, "C"]
) -> tuple[Int[np.ndarray, "C"], Footprint]:
    """The footprints of some jobs of one partition, jobs last."""
    jobs = result.jobs
    assert result.workers is not None
    padded = np.resize(chunk, CHUNK)
    column = lambda values: jnp.asarray(np.asarray(values)[padded], jnp.int32)
    spec = JobSpec(
        workers=column(jobs.workers),
        gpus_per_worker=column(jobs.gpus_per_worker),
        ps=column(jobs.ps),
        model=column(jobs.model),
    )
    workers = column(result.workers)
    ps = jax.vmap(place_ps)(workers, spec.ps) if result.ps is None else column(result.ps)
    found = _footprints(cluster, jnp.int32(max(int(result.partition[chunk[0]]), 0)), params.profiles, spec, workers, ps)
    return chunk, jax.tree.map(lambda leaf: np.asarray(leaf)[..., : len(chunk)], found)


@jax.jit
def _footprints(cluster, partition, profiles, spec, workers, ps):
    shape, best = cluster.shape[1:], best_hardware(cluster)
    one = one_partition(cluster, partition)

    def of(job, workers, ps):
        return footprint(one, best, profiles, job, workers.reshape(shape), ps.reshape(shape))

    return jax.vmap(of, out_axes=-1)(spec, workers, ps)


def _channels(layout: Layout) -> Int[np.ndarray, "M"]:
    found = np.full(layout.size, CPU)
    for channel, part in layout.wires:
        found[part] = channel
    return found


def _everywhere(cluster: Cluster, layout: Layout, p: int, at: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Numbers of resources in the whole cluster: links are shared between partitions."""
    links = layout.link.start
    shared = np.asarray(cluster.link_id)[p][np.maximum(at - links, 0)]
    return np.where(at < links, p * links + at, cluster.shape[0] * links + shared)


def readings(result: Outcome, cluster: Cluster, prints: Footprints) -> Iterator[Readings]:
    """All readings of the finished jobs, in blocks. A job that never ends runs to the end of the run."""
    started = np.flatnonzero(result.partition >= 0)
    end_s = max(result.stats.simulated_s, float(np.nanmax(result.finish_s, initial=0.0)))
    finish_s = np.nan_to_num(result.finish_s, nan=end_s)
    when = np.concatenate([result.start_s[started], finish_s[started]])
    sign = np.repeat([1, -1], len(started))
    order = np.lexsort((sign, when))
    walk = _Walk(prints, int(cluster.shape[0] * layout_of(cluster).link.start + cluster.link_bytes_s.shape[0]))
    at, events = 0, np.concatenate([started, started])[order].tolist()
    times, signs = when[order].tolist(), sign[order].tolist()
    while at < len(events):
        to = at
        while to < len(events) and times[to] == times[at]:
            to += 1
        walk.go(times[at], events[at:to], signs[at:to])
        at = to
        if walk.size >= BLOCK:
            yield walk.block()
    if walk.size:
        yield walk.block()


class _Walk:
    """The cluster between two events."""

    def __init__(self, prints: Footprints, resources: int) -> None:
        self.prints = prints
        self.total = np.zeros(resources)
        self.readers: list[set[int]] = [set() for _ in range(resources)]
        self.entries = [np.arange(a, b) for a, b in zip(prints.first[:-1], prints.first[1:])]
        self.on_gpu: dict[int, set[int]] = {}
        self.open: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}  # since when, others, pressure
        self._clear()

    def _clear(self) -> None:
        self.job: list[int] = []
        self.seconds: list[float] = []
        self.others: list[np.ndarray] = []
        self.pressure: list[np.ndarray] = []
        self.size = 0

    def go(self, now_s: float, jobs: list[int], signs: list[int]) -> None:
        """Some jobs start or end at the same moment."""
        touched: set[int] = set()
        for job, sign in zip(jobs, signs):
            where, use = self.prints.used[job]
            self.total[where] += sign * use
            gpu = int(self.prints.gpu[job])
            if gpu >= 0:
                touched |= self.on_gpu.setdefault(gpu, set())
                (self.on_gpu[gpu].add if sign > 0 else self.on_gpu[gpu].discard)(job)
            for resource in where.tolist():
                touched |= self.readers[resource]
            mine = self.prints.resource[self.entries[job]].tolist()
            for resource in mine:
                (self.readers[resource].add if sign > 0 else self.readers[resource].discard)(job)
            touched.add(job)
        ended = {job for job, sign in zip(jobs, signs) if sign < 0}
        for job in touched:
            self._close(job, now_s)
            if job not in ended:
                entry = self.entries[job]
                others = np.maximum(self.total[self.prints.resource[entry]] - self.prints.own[entry], 0.0)
                self.open[job] = now_s, others, self._beside(job)

    def _beside(self, job: int) -> np.ndarray:
        gpu = int(self.prints.gpu[job])
        beside = [other for other in self.on_gpu.get(gpu, ()) if other != job] if gpu >= 0 else []
        return self.prints.pressure[beside].sum(0)

    def _close(self, job: int, now_s: float) -> None:
        since_s, others, pressure = self.open.pop(job, (now_s, None, None))
        if others is None or pressure is None or since_s == now_s:
            return
        self.job.append(job)
        self.seconds.append(now_s - since_s)
        self.others.append(others)
        self.pressure.append(pressure)
        self.size += len(others)

    def block(self) -> Readings:
        """What has been read since the last block."""
        sizes = np.array([len(others) for others in self.others])
        found = Readings(
            job=np.array(self.job),
            seconds=np.array(self.seconds),
            pressure=np.array(self.pressure, np.float32),
            first=np.cumsum(sizes) - sizes,
            entry=np.concatenate([self.entries[job] for job in self.job]),
            others=np.concatenate(self.others),
        )
        self._clear()
        return found
