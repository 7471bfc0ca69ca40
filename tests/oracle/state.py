"""The oracle's state: what runs and waits where, and what a policy may look at (section 7 of `docs/semantics.md`)."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection

import numpy as np

from jaxsched.semantics import LEAST_GAIN_S, OVERDUE
from tests.oracle import history, preemption
from tests.oracle.cluster import UNLIMITED, WHOLE, Hardware, Job, Resource
from tests.oracle.contention import Demand, Law, Stretch, slowdown
from tests.oracle.failures import Outage
from tests.oracle.pairs import Factors, Pairs, mean_factor


@dataclasses.dataclass(eq=False)
class Running:
    """A job that runs."""

    job: int
    partition: int
    w: dict[int, int]
    u: dict[int, int]
    demand: Demand
    start_s: float
    remaining_s: float  # ideal seconds
    gpu: int | None = None  # index of its shared GPU in its group
    since: int = 0  # boundary of its last start
    restart_s: float = 0.0  # what is left of its restart

    @property
    def group(self) -> int:
        """Where a fraction lies."""
        (a,) = self.w
        return a


class State:
    """All that a policy may look at."""

    def __init__(
        self,
        hw: Hardware,
        jobs: list[Job],
        stretch: Stretch,
        queue_slots,
        running_slots,
        max_forwards,
        interval_s=1.0,
        law: Law | None = None,
        costs: preemption.Preemption | None = None,
        knows_history: bool = False,
        outages: list[Outage] | None = None,
        pairs: Pairs | None = None,
    ):
        """An empty cluster at time 0."""
        self.hw, self.jobs, self.stretch, self.law = hw, jobs, stretch, law
        self.queue_slots, self.running_slots, self.max_forwards = queue_slots, running_slots, max_forwards
        self.now, self.interval_s, self.boundary = 0.0, interval_s, 0
        self.preemption, self.consolidate, self.history = costs, False, knows_history
        self.racks: Callable[[State, int, int], bool] | None = (
            None  # says whether a gang fits as few racks as it needs, if the policy asks for that
        )
        self.pairs = pairs  # None: all factors are 1
        self.out, self.outages = np.zeros((hw.P, hw.N), bool), outages  # servers that are out
        # Of a state to come, as a policy expects it: the slowest GPUs that it looks at, and what jobs have left.
        self.least_speed: float | None = None
        self.left_then_s: dict[int, float] | None = None
        # What others have cost gangs that they passed, and what those do that start in this round.
        self.owed_s: dict[int, float] = {}
        self.owed_after_round: list[tuple[int, float]] = []
        self.queue: list[list[int]] = [[] for _ in range(hw.P)]
        self.running: list[list[Running]] = [[] for _ in range(hw.P)]
        self.slowed: tuple[list[Running], dict[int, float]] = [], {}  # slowdowns of the jobs that ran then
        self.finished: list[tuple[Running, float]] = []
        self.forwards = [0] * len(jobs)
        self.first_start_s = [math.nan] * len(jobs)
        self.left_s = [job.duration_s for job in jobs]  # at the last start or stop
        self.ran = [0] * len(jobs)  # intervals, up to the last stop
        self.stops = [0] * len(jobs)
        self.restarting_s = [0.0] * len(jobs)  # seconds spent on restarts
        self.lost_s = [0.0] * len(jobs)  # ideal seconds of work that were not kept
        self.falls = [0] * len(jobs)  # times that a failure stopped the job
        self.fallen_s = [0.0] * len(jobs)  # ideal seconds of work that were lost so

    def free(self, p: int, without: Collection[int] = ()) -> np.ndarray:
        """Free, that is whole, GPUs of each group of a partition, or as they were without some jobs."""
        free = self.hw.gpus[p].tolist()
        shared = {(r.group, r.gpu) for r in self.running[p] if r.gpu is not None and r.job not in without}
        for a, _ in shared:
            free[a] -= 1
        for r in self.running[p]:
            if r.gpu is None and r.job not in without:
                for a, count in r.w.items():
                    free[a] -= count * self.jobs[r.job].g
        for s in np.flatnonzero(self.out[p]).tolist():
            free[s * self.hw.K : (s + 1) * self.hw.K] = [0] * self.hw.K
        return np.array(free)

    def shared(self, p: int, a: int, without: Collection[int] = ()) -> dict[int, int]:
        """The shared GPUs of a group: index -> thousandths in use."""
        used: dict[int, int] = {}
        for r in self.running[p]:
            if r.gpu is not None and r.group == a and r.job not in without:
                used[r.gpu] = used.get(r.gpu, 0) + self.jobs[r.job].milli
        return used

    def capacity(self, p: int, j: int, without: Collection[int] = ()) -> list[int]:
        """`cap_a` of section 7 for every group."""
        job, cap = self.jobs[j], self.gpu_capacity(p, j, without)
        for s in range(self.hw.N) if any(job.asks) else ():
            within = self.within(p, j, s, without)
            for a in self.hw.groups_of(s):
                cap[a] = min(cap[a], within)
                within -= 0 if job.fraction else cap[a]
        return cap

    def gpu_capacity(self, p: int, j: int, without: Collection[int] = ()) -> list[int]:
        """The same by GPUs alone."""
        job, usable = self.jobs[j], self.hw.usable(p, self.jobs[j]).tolist()
        cap = self._capacity(p, job, self.free(p, without).tolist(), without)
        return [x if may else 0 for x, may in zip(cap, usable, strict=True)]

    def within(self, p: int, j: int, s: int, without: Collection[int] = ()) -> int:
        """Workers of a job for whom the CPUs and the memory that are left of a server are enough."""
        if not any(self.jobs[j].asks):
            return UNLIMITED
        cpu, memory = self.hw.reservable[p, s].tolist()
        for r in self.running[p]:
            if r.job not in without:
                here = sum(x for a, x in r.w.items() if a // self.hw.K == s)
                cpu -= self.jobs[r.job].asks[0] * here
                memory -= self.jobs[r.job].asks[1] * here
        return self.hw.within(self.jobs[j], (cpu, memory))

    def seen_free(self, p: int, j: int) -> list[int]:
        """Free GPUs of groups as a job sees them: no more than CPUs and memory are enough for, if they run short."""
        free, cap, job = self.free(p).tolist(), self.capacity(p, j), self.jobs[j]
        if job.fraction:
            return [x if self.within(p, j, a // self.hw.K) > 0 else 0 for a, x in enumerate(free)]
        return [x if most == x // job.g else most * job.g for x, most in zip(free, cap, strict=True)]

    def _capacity(self, p: int, job: Job, free: list[int], without: Collection[int]) -> list[int]:
        """The same of a job that may use all GPUs."""
        if not job.fraction:
            return [x // job.g for x in free]
        return [
            int(free[a] > 0 or any(used + job.milli <= WHOLE for used in self.shared(p, a, without).values()))
            for a in range(len(free))
        ]

    def gpu_for(self, p: int, j: int, a: int) -> int | None:
        """The shared GPU of group `a` that a fraction gets; None for whole GPUs."""
        job, used = self.jobs[j], self.shared(p, a)
        if not job.fraction:
            return None
        enough = [(WHOLE - x, s) for s, x in used.items() if x + job.milli <= WHOLE]
        if enough:
            return min(enough)[1]
        return self.new_gpu(p, a)

    def new_gpu(self, p: int, a: int) -> int:
        """The index that a free GPU of a group gets when it becomes a shared one."""
        used = self.shared(p, a)
        return next(s for s in itertools.count() if s not in used)

    def may_share(self, p: int, j: int, a: int, gpu: int) -> bool:
        """Whether a fraction may lie on the GPU of group `a` that a policy names."""
        used = self.shared(p, a)
        return used[gpu] + self.jobs[j].milli <= WHOLE if gpu in used else gpu >= 0 and bool(self.free(p)[a] > 0)

    @property
    def factors(self) -> Factors | None:
        """The true factors of pairs of models."""
        return None if self.pairs is None else self.pairs.factor

    def believed(self, observe: bool) -> Factors | None:
        """Those by which a policy appraises candidates (section 9)."""
        return None if self.pairs is None else self.pairs.believed(observe)

    def gpu_stretch(self, p: int, a: int, model: int, others: list[int], factors: Factors | None) -> float:
        """stretch_gpu (section 5) of a job on a shared GPU of group `a`, by the models of its co-runners there."""
        if not others:
            return 1.0
        by_law = None if self.law is None else self.law(int(self.hw.gpu_type[p, a]), model, others)
        stretch = self.stretch("gpu", model, 1.0, float(len(others))) if by_law is None else by_law
        return 1 + mean_factor(factors, model, others) * (stretch - 1)

    def beside(self, p: int, a: int, gpu: int | None) -> list[Running]:
        """The fractions on a shared GPU."""
        return [] if gpu is None else [r for r in self.running[p] if r.gpu == gpu and r.group == a]

    def others_on_gpu(self, r: Running) -> list[int]:
        """Models of the jobs beside a running one on its shared GPU."""
        if r.gpu is None:
            return []
        return [self.jobs[x.job].model for x in self.beside(r.partition, r.group, r.gpu) if x is not r]

    def on_gpu(self, r: Running, factors: Factors | None, more: tuple[int, ...] = ()) -> float:
        """stretch_gpu of a running job under some factors, with `more` models on its GPU than there are."""
        if r.gpu is None:
            return 1.0
        others = [*self.others_on_gpu(r), *more]
        return self.gpu_stretch(r.partition, r.group, self.jobs[r.job].model, others, factors)

    def total_use(self, *, without: int | None = None) -> dict[Resource, float]:
        """Utilisation of each resource, summed over all running jobs (but not those of partition `without`)."""
        total: dict[Resource, float] = {}
        for p in range(self.hw.P):
            for r in self.running[p] if p != without else []:
                for m, x in r.demand.use.items():
                    total[m] = total.get(m, 0.0) + x
        return total

    def estimated_left_s(self, r: Running) -> float:
        """What a policy knows of a running job's remaining ideal seconds (section 7)."""
        if self.left_then_s is not None and r.job in self.left_then_s:
            return self.left_then_s[r.job]
        return self.left_by_estimate_s(r.job, r.remaining_s)

    def left_by_estimate_s(self, j: int, remaining_s: float) -> float:
        """The same for any job that has so many ideal seconds left."""
        done = self.jobs[j].duration_s - remaining_s
        left = self.estimate_s(j) - done
        return left if left > 0 else OVERDUE * done

    def estimate_s(self, j: int) -> float:
        """The run time that a policy takes a job to have."""
        if not self.history:
            return self.jobs[j].estimate_s
        return history.estimate_s(self, j, preemption.ran(self, j))

    def may_stop(self, r: Running) -> bool:
        """Whether a running job may be stopped at this boundary (section 8)."""
        world = self.preemption
        if world is None or self.boundary - r.since < world.min_run_s / self.interval_s - 1e-6:
            return False
        duration = self.jobs[r.job].duration_s
        before = duration - self.left_s[r.job]
        return world.kept_s(duration - r.remaining_s, before) - before > LEAST_GAIN_S

    def slowdowns(self) -> dict[int, float]:
        """Slowdown of every running job; reckoned again when other jobs run."""
        runs = [r for rs in self.running for r in rs]
        if runs != self.slowed[0]:
            self.slowed = runs, self.slowdowns_by(self.factors)
        return self.slowed[1]

    def slowdowns_by(self, factors: Factors | None) -> dict[int, float]:
        """The same if these were the factors of pairs of models."""
        total = self.total_use()
        return {
            r.job: slowdown(self.hw, p, self.jobs[r.job], r.demand, total, self.stretch, self.on_gpu(r, factors))
            for p in range(self.hw.P)
            for r in self.running[p]
        }

    def could_hold(self, p: int, j: int) -> bool:
        """Whether the gang fits the empty partition."""
        return sum(self.empty_capacity(p, j)) >= self.jobs[j].W

    def empty_capacity(self, p: int, j: int) -> list[int]:
        """Workers of a job that fit each server of the empty partition."""
        return self.hw.empty_capacity(p, self.jobs[j], range(self.hw.N * self.hw.K))

    def feasible(self, p: int, j: int, without: Collection[int] = ()) -> bool:
        """Whether the gang fits the partition now (section 7), or would without some running jobs."""
        fits = sum(self.capacity(p, j, without)) >= self.jobs[j].W
        if self.consolidate and fits and not self.jobs[j].fraction:
            fits = self.consolidated(p, j, without)
        if self.racks and fits and not self.jobs[j].fraction:
            fits = self.racks(self, p, j)
        return fits and len(self.running[p]) - len(without) < self.running_slots

    def consolidated(self, p: int, j: int, without: Collection[int] = ()) -> bool:
        """Whether a gang fits the fewest servers ("Consolidation"), or would without some running jobs."""
        empty = sorted(self.empty_capacity(p, j), reverse=True)
        servers = next(m for m in range(1, self.hw.N + 1) if sum(empty[:m]) >= self.jobs[j].W)
        return sum(self.roomiest(p, self.capacity(p, j, without))[:servers]) >= self.jobs[j].W

    def free_for(self, p: int, j: int) -> int:
        """Free GPUs of a partition that a job may use."""
        return int(self.free(p)[self.hw.usable(p, self.jobs[j])].sum())

    def arrival(self, j: int) -> int:
        """The first boundary at or after a job's submission."""
        i = max(math.floor(self.jobs[j].submit_s / self.interval_s) - 1, 0)
        while i * self.interval_s < self.jobs[j].submit_s:
            i += 1
        return i

    def held_for(self, r: Running, j: int) -> int:
        """GPUs that job `j` may use of those that a running one holds."""
        usable = self.hw.usable(r.partition, self.jobs[j])
        return sum(x * self.jobs[r.job].g for a, x in r.w.items() if usable[a])

    def roomiest(self, p: int, capacity: list[int]) -> list[int]:
        """`cap_s` of all servers, the largest first."""
        return sorted((sum(capacity[a] for a in self.hw.groups_of(s)) for s in range(self.hw.N)), reverse=True)
