"""The section on jobs that adapt in docs/semantics.md, a second time: plain Python, one job at a time."""

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator

CANDIDATES = 50
NEVER = math.inf


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Application:
    """What was measured of one application."""

    def __init__(self, folder, kind="", limits=None):
        suffix = f"-{kind}" if kind else ""
        self.limits = limits or {}
        listed = defaultdict(list)
        for row in rows_of(Path(folder) / f"placements{suffix}.csv"):
            listed[row["placement"]].append(tuple(float(row[k]) for k in ("local_bsz", "step_time", "sync_time")))
        self.listed = {name: np.array(sorted(rows)).T for name, rows in listed.items()}
        sums = defaultdict(list)
        for name, rows in listed.items():
            for b, step, sync in rows:
                sums[len(name), sum(map(int, name)), b].append((step, sync))
        points = [(*key, *np.mean(values, axis=0)) for key, values in sorted(sums.items())]
        for row in rows_of(Path(folder) / f"scalability{suffix}.csv"):
            points.append(
                tuple(float(row[k]) for k in ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
            )
        points = np.array(points)
        self.between = LinearNDInterpolator(points[:, :3], points[:, 3:])
        smallest = [row[0] for rows in listed.values() for row in rows]
        self.local = (int(min(smallest)), int(min(max(smallest), self.limits.get("local", math.inf))))
        runs = {}
        for path in Path(folder).glob("validation-*.csv"):
            runs[int(path.stem.split("-")[1])] = rows_of(path)
        self.batches = sorted(runs)
        self.epochs = min(len(rows) for rows in runs.values())
        self.ends = [min(float(rows[e]["progress"]) for rows in runs.values()) for e in range(self.epochs)]
        self.iterations = {b: [float(row["iteration"]) for row in runs[b]] for b in self.batches}
        self.noise = [
            [[float(runs[b][e][key]) for b in self.batches] for key in ("grad_sqr", "grad_var")]
            for e in range(self.epochs)
        ]
        self.cache = {}

    def step_sync(self, placement, b):
        key = placement, b
        if key not in self.cache:
            self.cache[key] = self._step_sync(placement, b)
        return self.cache[key]

    def _step_sync(self, placement, b):
        turned = min(placement[i:] + placement[:i] for i in range(len(placement)))
        name = "".join(map(str, turned))
        if name in self.listed:
            known, step, sync = self.listed[name]
            return float(np.interp(b, known, step)), float(np.interp(b, known, sync))
        step, sync = self.between([[min(len(placement), 16), sum(placement), b]])[0]
        return float(step), float(sync)

    def gain(self, batch, epoch):
        square, variance = (float(np.interp(batch, self.batches, values)) for values in self.noise[epoch])
        return (variance + square) / (variance / (batch / self.batches[0]) + square)

    def split(self, batch, r):
        """Batch of a GPU, and passes without an update before each update."""
        local = math.ceil(batch / r - 1e-9)
        a = math.ceil(local / self.local[1] - 1e-9) - 1
        if r == 1 and batch > self.batches[0]:
            a = max(a, 1)
        b = math.ceil(local / (a + 1) - 1e-9)
        return min(b, int(self.batches[-1] // (r * (a + 1)))), a

    def seconds(self, placement, b, a):
        step, sync = self.step_sync(placement, b)
        return step + a * (step - sync)

    def goodput(self, placement, b, a, epoch):
        return self.gain(sum(placement) * b * (a + 1), epoch) / self.seconds(placement, b, a)

    def own(self, placement, epoch):
        """Batch of a GPU, and passes, of the largest goodput."""
        r = sum(placement)
        best, found = -1.0, (0, 0)
        for batch in np.geomspace(max(self.batches[0], self.local[0] * r), self.batches[-1], CANDIDATES):
            b, a = self.split(batch, r)
            value = self.goodput(placement, b, a, epoch)
            if value > best:
                best, found = value, (b, a)
        return found

    def most(self, batch=None):
        return min((batch or self.batches[-1]) // self.local[0], self.limits.get("gpus", 10**9))


@dataclass
class Job:
    name: str
    submit: float
    app: Application
    tuned: int
    batch: int | None  # None: chosen by the job
    place: dict = field(default_factory=dict)
    progress: float = 0.0
    saved: float = 0.0
    epoch: int = 0
    restart: float = 0.0
    service: float = 0.0
    restarts: int = 0
    widest: int = 0
    finish: float = NEVER
    using: tuple[int, int] = (0, 0)
    fallen: float | None = None  # when it came to the second queue
    stretch: float = 1.0  # of its synchronisation

    least: int = 1
    high: int = 10**9

    @property
    def gpus(self):
        return sum(self.place.values())

    @property
    def most(self):
        return self.high

    def covered(self, r, per_node):
        """Whether the profile says how long a step takes with r GPUs on the fewest nodes."""
        return not math.isnan(self.app.step_sync(full_nodes(r, per_node), self.app.local[0])[0])

    def reached(self, r, per_node):
        """Goodput with r GPUs on the fewest nodes."""
        key = r, self.epoch, self.batch, per_node
        if key not in self.app.cache:
            placement = full_nodes(r, per_node)
            self.app.cache[key] = self.app.goodput(placement, *self.best(placement), self.epoch)
        return self.app.cache[key]

    @property
    def placement(self):
        return tuple(self.place.values())

    def choose(self):
        if self.place:
            self.using = self.best(self.placement)

    def best(self, placement):
        return self.app.own(placement, self.epoch) if self.batch is None else self.app.split(self.batch, sum(placement))

    def run(self, now, seconds, slowed):
        """Play `seconds` from `now` on."""
        if not self.place:
            return
        wait = min(self.restart, seconds)
        self.restart -= wait
        now, seconds = now + wait, seconds - wait
        self.service += wait * self.gpus
        while seconds > 0 and self.finish == NEVER:
            speed = self.app.goodput(self.placement, *self.using, self.epoch) * slowed
            speed /= 1 + self.share() * (self.stretch - 1)
            end = self.app.ends[self.epoch]
            if self.progress + speed * seconds < end:
                self.progress += speed * seconds
                took = seconds
            else:
                took = min(round((end - self.progress) / speed), seconds)
                self.progress, self.epoch = end, self.epoch + 1
                if self.epoch == self.app.epochs:
                    self.finish = now + took
            now, seconds = now + took, seconds - took
            self.service += took * self.gpus
            if self.finish == NEVER:
                self.choose()

    def share(self):
        """Of synchronisation in an update."""
        return self.app.step_sync(self.placement, self.using[0])[1] / self.app.seconds(self.placement, *self.using)


def full_nodes(r, per_node):
    whole, rest = divmod(r, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def most_free(jobs, gpus, free, per_node, order):
    """Whoever keeps its count keeps its nodes; the others in `order` take the nodes with most free GPUs."""
    free, nodes, new = list(free), len(free), {}
    for job in jobs:
        if gpus.get(job.name, 0) and job.gpus == gpus[job.name]:
            new[job.name] = dict(job.place)
            for n, k in job.place.items():
                free[n] -= k
    for job in order:
        wanted = gpus.get(job.name, 0)
        if not wanted or job.name in new:
            continue
        place = {}
        while wanted:
            n = max(range(nodes), key=lambda i: free[i])
            take = min(free[n], wanted)
            if not take:
                break
            place[n] = take
            free[n] -= take
            wanted -= take
        if wanted:
            for n, k in place.items():
                free[n] += k
        else:
            new[job.name] = place
    return new


class World:
    def __init__(self, nodes=16, per_node=4, period=60, restart=30, interference=0.0, outages=(), contend=None):
        self.nodes, self.per_node, self.period = nodes, per_node, period
        self.restart, self.interference, self.total = restart, interference, nodes * per_node
        self.outages = outages  # node, from, to
        self.contend = contend or (lambda jobs: None)  # sets every job's stretch

    def play(self, jobs, policy, place):
        now = 0
        self.begin(jobs, place)
        while any(job.finish == NEVER for job in jobs):
            self.contend(jobs)
            self.run(jobs, now)
            now += self.period
            self.decide(jobs, policy, place, now)
        return {job.name: job.finish - job.submit for job in jobs}

    def begin(self, jobs, place):
        for job in jobs:
            may = self.numbers(job, place)
            job.least, job.high = min(may), max(may)

    def run(self, jobs, now):
        slowed = self.slowed(jobs)
        for job in jobs:
            if job.finish == NEVER:
                waits = job.restart >= self.period
                job.run(now, self.period, slowed[job.name])
                if job.place and job.finish == NEVER and not waits:
                    self.saw(job)
                if job.finish < NEVER:
                    job.place = {}

    def decide(self, jobs, policy, place, now):
        there = [job for job in jobs if job.submit <= now and job.finish == NEVER]
        out = self.out(now)
        for job in there:
            if out & set(job.place):
                job.place = {}
                job.progress = max(job.saved, job.app.ends[job.epoch - 1] if job.epoch else 0.0)
        free = self.free_without(out)
        gpus, order = policy(self, there, now)
        new = self.put(place, there, gpus, free, order)
        for job in there:
            to = new.get(job.name, {})
            if to != job.place:
                job.place = to
                if to:
                    job.restart = self.restart
                    job.restarts += 1
                    job.saved = job.progress
                    job.widest = max(job.widest, job.gpus)
            job.choose()

    def saw(self, job):
        """What a job does with the step time that it has seen: nothing, if it knows all of them."""

    def numbers(self, job, place):
        """GPUs that a job may have."""
        most = min(job.high, self.total, job.app.most(job.batch))
        may = [r for r in range(job.least, most + 1) if job.covered(r, self.per_node)]
        if place is whole_nodes:
            may = [r for r in may if r % self.per_node == 0 or (r < self.per_node and r & (r - 1) == 0)]
        return may

    def free_without(self, out):
        free = [0 if n in out else self.per_node for n in range(self.nodes)]
        self.total = sum(free)
        return free

    def put(self, place, there, gpus, free, order):
        return place(there, gpus, free, self.per_node, order)

    def out(self, now):
        """Nodes that are out at the end of this round: an outage is seen at one end at least."""
        before = now - self.period
        return {node for node, begin, end in self.outages if begin <= now and (now < end or before < begin)}

    def slowed(self, jobs):
        wide = [job for job in jobs if job.finish == NEVER and len(job.place) > 1]
        on = defaultdict(int)
        for job in wide:
            for n in job.place:
                on[n] += 1
        return {job.name: 1.0 - self.interference * (job in wide and any(on[n] > 1 for n in job.place)) for job in jobs}


def whole_nodes(jobs, gpus, free, per_node, order):
    order = sorted(order, key=lambda job: -gpus.get(job.name, 0))
    nodes = len(free)
    free, staying, new = list(free), [0] * nodes, {}
    stay = [job for job in order if gpus.get(job.name, 0) and gpus[job.name] == job.gpus]
    for job in stay:
        for n, k in job.place.items():
            staying[n] += k
    for job in order:
        wanted = gpus.get(job.name, 0)
        if job in stay:
            for n, k in job.place.items():
                staying[n] -= k
        if not wanted:
            continue
        if job in stay and all(free[n] >= k for n, k in job.place.items()):
            place = dict(job.place)
        else:
            each, place = min(wanted, per_node), {}
            room = [n for n in range(nodes) if free[n] >= each]
            room.sort(key=lambda n: (max(staying[n] - (free[n] - each), 0), free[n], n))
            if len(room) * each >= wanted:
                place = {n: each for n in room[: wanted // each]}
        for n, k in place.items():
            free[n] -= k
        if place:
            new[job.name] = place
    return new
