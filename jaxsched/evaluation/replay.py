"""A run once more, from its attempts alone: who ran beside whom, and for how long.

Engines keep no account of what slowed a job: that would cost time in every run. What they do keep is where every
attempt at a job lay, when it started and when it ended. So what everything was used for at every moment can be found
again, in the order of the events, and only the attempts that an event touches are looked at.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.hardware import Cluster, one_partition
from jaxsched.dynamics.footprint import Footprint, JobSpec, best_hardware, footprint
from jaxsched.dynamics.gpu_sharing import Sharers, pressure_of
from jaxsched.dynamics.resources import CPU, Layout, layout_of
from jaxsched.env.state import EnvParams
from jaxsched.policies.filling import place_ps
from jaxsched.simulation.outcome import Attempts
from jaxsched.workload.jobs import JobList

CHUNK = 2048  # attempts whose footprints are worked out together
BLOCK = 1 << 20  # entries of readings that are looked at together


@dataclasses.dataclass(frozen=True)
class Footprints:
    """What placed jobs look at, as entries: of an attempt its groups' CPUs, their PCIe, then all else in its way.

    Attempt `i` has the entries `first[i]` to `first[i + 1]`, of which the first `groups[i]` are CPUs.
    """

    first: Int[np.ndarray, "A1"]
    groups: Int[np.ndarray, "A"]
    resource: Int[np.ndarray, "X"]  # of the whole cluster
    channel: Int[np.ndarray, "X"]
    own: Float[np.ndarray, "X"]
    base: Float[np.ndarray, "X"]  # uncontended seconds of communication per step
    compute: Float[np.ndarray, "X"]  # seconds of computing per step; of CPU entries
    model: Int[np.ndarray, "A"]
    ideal: Float[np.ndarray, "A"]
    least: Float[np.ndarray, "A"]
    used: list[tuple[Int[np.ndarray, "U"], Float[np.ndarray, "U"]]]  # resources of each, and how much of them
    pressure: Float[np.ndarray, "A pressures"]  # on its shared GPU
    gpu: Int[np.ndarray, "A"]  # which one, of the whole cluster; -1: none
    gpu_type: Int[np.ndarray, "A"]


@dataclasses.dataclass(frozen=True)
class Readings:
    """Stretches of time of single attempts in which nothing changed for them, restarts left out."""

    attempt: Int[np.ndarray, "E"]
    seconds: Float[np.ndarray, "E"]
    pressure: Float[np.ndarray, "E pressures"]  # of the co-runners on its GPU
    first: Int[np.ndarray, "E"]  # entry that a reading starts with
    entry: Int[np.ndarray, "X"]  # in `Footprints`
    others: Float[np.ndarray, "X"]  # use by all others


def footprints_of(attempts: Attempts, jobs: JobList, cluster: Cluster, params: EnvParams) -> Footprints:
    """The footprints of all attempts of a run."""
    count = len(attempts.job)
    of = [_NOTHING] * count
    ideal, least = np.zeros(count), np.zeros(count)
    layout = layout_of(cluster)
    wires = _channels(layout)
    for p, chunk in _chunks(attempts.partition):
        rows = _dense(attempts, jobs, cluster, params, p, chunk)
        ideal[chunk], least[chunk] = rows.ideal, rows.least
        for column, i in enumerate(chunk):
            of[i] = _entries(rows, column, cluster, layout, wires, p)
    gpu, gpu_type = _gpus(attempts, cluster)
    model = np.asarray(jobs.model)[attempts.job]
    sharers = Sharers(gpu=jnp.asarray(gpu), model=jnp.asarray(model), gpu_type=jnp.asarray(gpu_type))

    def joined(name: str, kind: type) -> np.ndarray:
        return np.concatenate([getattr(_NOTHING, name), *(getattr(one, name) for one in of)]).astype(kind)

    return Footprints(
        first=np.cumsum([0, *(len(one.resource) for one in of)]),
        groups=np.array([one.groups for one in of], np.int64),
        resource=joined("resource", np.int64),
        channel=joined("channel", np.int64),
        own=joined("own", np.float64),
        base=joined("base", np.float64),
        compute=joined("compute", np.float64),
        model=model.astype(np.int64),
        ideal=ideal,
        least=least,
        used=[one.used for one in of],
        pressure=np.asarray(pressure_of(params.interference, sharers)),
        gpu=gpu,
        gpu_type=gpu_type.astype(np.int64),
    )


class _Entries(NamedTuple):
    """The entries of one attempt, as in `Footprints`."""

    resource: np.ndarray
    channel: np.ndarray
    own: np.ndarray
    base: np.ndarray
    compute: np.ndarray
    groups: int
    used: tuple[np.ndarray, np.ndarray]


_NOTHING = _Entries(*(np.zeros(0) for _ in range(5)), groups=0, used=(np.zeros(0, np.int64), np.zeros(0)))


def _entries(
    rows: Footprint, column: int, cluster: Cluster, layout: Layout, wires: Int[np.ndarray, "M"], p: int
) -> _Entries:
    use, compute = np.asarray(rows.use)[:, column], np.asarray(rows.compute)[:, column]
    base = np.concatenate([np.zeros(layout.nk, np.float32), np.asarray(rows.base)[:, column]])
    groups = np.flatnonzero(compute)
    rest = np.flatnonzero(base)
    rest = rest[~np.isin(rest, groups + layout.nk)]
    at = np.concatenate([groups, groups + layout.nk, rest])
    seconds = np.zeros(len(at))
    seconds[: len(groups)] = compute[groups]
    some = np.flatnonzero(use)
    used = _everywhere(cluster, layout, p, some), use[some].astype(np.float64)
    return _Entries(_everywhere(cluster, layout, p, at), wires[at], use[at], base[at], seconds, len(groups), used)


def _gpus(attempts: Attempts, cluster: Cluster) -> tuple[Int[np.ndarray, "A"], Int[np.ndarray, "A"]]:
    """Which shared GPU of the whole cluster each attempt is on, -1: none; and of which type its first GPU is."""
    kinds = np.asarray(cluster.group_gpu_type).reshape(cluster.shape[0], -1)
    gpu = np.full(len(attempts.job), -1)
    if attempts.gpu is not None:
        most = int(attempts.gpu.max(initial=0)) + 1
        gpu = np.where(attempts.gpu >= 0, attempts.partition * most + attempts.gpu, -1)
    return gpu, kinds[attempts.partition, attempts.workers.argmax(1)]


def _chunks(partition: Int[np.ndarray, "A"]) -> Iterator[tuple[int, Int[np.ndarray, "C"]]]:
    """Partitions and attempts in them, at most `CHUNK` at once."""
    for p in np.unique(partition).tolist():
        here = np.flatnonzero(partition == p)
        yield from ((p, here[at : at + CHUNK]) for at in range(0, len(here), CHUNK))


def _dense(
    attempts: Attempts, jobs: JobList, cluster: Cluster, params: EnvParams, p: int, chunk: Int[np.ndarray, "C"]
) -> Footprint:
    """The footprints of some attempts in one partition, attempts last."""
    padded = np.resize(chunk, min(CHUNK, 1 << (len(chunk) - 1).bit_length()))  # few shapes, each a program
    place = lambda values: jnp.asarray(np.asarray(values)[padded], jnp.int32)
    column = lambda values: jnp.asarray(np.asarray(values)[attempts.job[padded]], jnp.int32)
    spec = JobSpec(
        workers=column(jobs.workers),
        gpus_per_worker=column(jobs.gpus_per_worker),
        ps=column(jobs.ps),
        model=column(jobs.model),
    )
    workers = place(attempts.workers)
    ps = jax.vmap(place_ps)(workers, spec.ps) if attempts.ps is None else place(attempts.ps)
    found = _footprints(cluster, jnp.int32(p), params.profiles, spec, workers, ps)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[..., : len(chunk)], found)


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


def readings(attempts: Attempts, cluster: Cluster, prints: Footprints) -> Iterator[Readings]:
    """All readings of a run, in blocks."""
    some = np.flatnonzero(attempts.end_s > attempts.start_s)
    when = np.concatenate([attempts.start_s[some], attempts.end_s[some]])
    sign = np.repeat([1, -1], len(some))
    order = np.lexsort((sign, when))
    resources = int(cluster.shape[0] * layout_of(cluster).link.start + cluster.link_bytes_s.shape[0])
    walk = _Walk(prints, attempts.start_s + attempts.restart_s, resources)
    at, events = 0, np.concatenate([some, some])[order].tolist()
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

    def __init__(self, prints: Footprints, works_from_s: Float[np.ndarray, "A"], resources: int) -> None:
        self.prints, self.works_from_s = prints, works_from_s.tolist()
        self.total = np.zeros(resources)
        self.readers: list[set[int]] = [set() for _ in range(resources)]
        self.entries = [np.arange(a, b) for a, b in zip(prints.first[:-1], prints.first[1:])]
        self.on_gpu: dict[int, set[int]] = {}
        self.open: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}  # since when, others, pressure
        self._clear()

    def _clear(self) -> None:
        self.attempt: list[int] = []
        self.seconds: list[float] = []
        self.others: list[np.ndarray] = []
        self.pressure: list[np.ndarray] = []
        self.size = 0

    def go(self, now_s: float, attempts: list[int], signs: list[int]) -> None:
        """Some attempts start or end at the same moment."""
        touched: set[int] = set()
        for one, sign in zip(attempts, signs):
            where, use = self.prints.used[one]
            self.total[where] += sign * use
            gpu = int(self.prints.gpu[one])
            if gpu >= 0:
                touched |= self.on_gpu.setdefault(gpu, set())
                (self.on_gpu[gpu].add if sign > 0 else self.on_gpu[gpu].discard)(one)
            for resource in where.tolist():
                touched |= self.readers[resource]
            mine = self.prints.resource[self.entries[one]].tolist()
            for resource in mine:
                (self.readers[resource].add if sign > 0 else self.readers[resource].discard)(one)
            touched.add(one)
        ended = {one for one, sign in zip(attempts, signs) if sign < 0}
        for one in touched:
            self._close(one, now_s)
            if one not in ended:
                entry = self.entries[one]
                others = np.maximum(self.total[self.prints.resource[entry]] - self.prints.own[entry], 0.0)
                self.open[one] = now_s, others, self._press_beside(one)

    def _press_beside(self, one: int) -> np.ndarray:
        gpu = int(self.prints.gpu[one])
        beside = [other for other in self.on_gpu.get(gpu, ()) if other != one] if gpu >= 0 else []
        return self.prints.pressure[beside].sum(0)

    def _close(self, one: int, now_s: float) -> None:
        since_s, others, pressure = self.open.pop(one, (now_s, None, None))
        since_s = max(since_s, self.works_from_s[one])
        if others is None or pressure is None or since_s >= now_s:
            return
        self.attempt.append(one)
        self.seconds.append(now_s - since_s)
        self.others.append(others)
        self.pressure.append(pressure)
        self.size += len(others)

    def block(self) -> Readings:
        """What has been read since the last block."""
        sizes = np.array([len(others) for others in self.others])
        found = Readings(
            attempt=np.array(self.attempt),
            seconds=np.array(self.seconds),
            pressure=np.array(self.pressure, np.float32),
            first=np.cumsum(sizes) - sizes,
            entry=np.concatenate([self.entries[one] for one in self.attempt]),
            others=np.concatenate(self.others),
        )
        self._clear()
        return found
