"""An independent simulator: a plain NumPy event loop in float64, written from `docs/semantics.md` and nothing else.

It is slow and literal on purpose; section numbers refer to that page. A policy is a function `policy(state, p)` that
returns `("place", job, workers, ps)` (dicts group -> count), `("forward", job, partition)` or `("wait",)`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np

CHANNELS = ("cpu", "pcie", "qpi", "nic", "link", "gpu")
WHOLE = 1000  # thousandths of a GPU
TOLERANCE = 1e-6
# A resource is a tuple: ("cpu" | "pcie", p, group), ("qpi" | "nic", p, server) or ("link", global link).
Resource = tuple


class Hardware:
    """The cluster (section 1) as float64 arrays; groups of a partition are flattened to `a = n * K + k`."""

    def __init__(self, cluster):
        """Convert the pytree."""
        gpus = np.asarray(cluster.group_gpus).astype(int)
        self.P, self.N, self.K = gpus.shape
        flat = (self.P, self.N * self.K)
        self.gpus = gpus.reshape(flat)
        self.gpu_type = np.asarray(cluster.group_gpu_type).astype(int).reshape(flat)
        self.speed = np.asarray(cluster.group_speed, np.float64).reshape(flat)
        self.cores = np.asarray(cluster.group_cores, np.float64).reshape(flat)
        self.pcie = np.asarray(cluster.pcie_bytes_s, np.float64).reshape(flat)
        self.qpi = np.asarray(cluster.qpi_bytes_s, np.float64)
        self.nic = np.asarray(cluster.nic_bytes_s, np.float64)
        self.rack = np.asarray(cluster.server_rack).astype(int)
        self.link = np.asarray(cluster.link_bytes_s, np.float64)
        self.link_id = np.asarray(cluster.link_id).astype(int)
        self.route = np.asarray(cluster.route, np.float64)
        # The best hardware, for `ideal` (section 5). Padding does not count.
        real_group, real_server = self.gpus > 0, gpus.sum(-1) > 0
        self.gmax = int(self.gpus.max())
        self.smax = int(gpus.sum(-1).max())
        self.kmax = int((gpus > 0).sum(-1).max())
        self.pcie_max = float(self.pcie[real_group].max())
        self.qpi_max = float(self.qpi[real_server].max())
        self.nic_max = float(self.nic[real_server].max())

    def capacity(self, resource: Resource) -> float:
        """Bytes/s of a PCIe, QPI, NIC or link resource."""
        if resource[0] == "link":
            return self.link[resource[1]]
        return {"pcie": self.pcie, "qpi": self.qpi, "nic": self.nic}[resource[0]][resource[1], resource[2]]

    def groups_of(self, server: int) -> range:
        """The groups of a server."""
        return range(server * self.K, (server + 1) * self.K)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job together with its profile (section 2)."""

    submit_s: float
    duration_s: float
    estimate_s: float
    W: int
    g: int
    U: int
    model: int
    tenant: int
    home: int
    compute_s: float
    B: float
    cpu_cores: float
    ps_cores: float
    input_bytes: float
    sens_cpu: float
    sens_pcie: float
    milli: int = WHOLE

    @property
    def fraction(self) -> bool:
        """It shares its GPU."""
        return self.milli < WHOLE

    @property
    def ring_bytes(self) -> float:
        """`b` of section 3."""
        n = self.W * self.g
        return 2 * (n - 1) / n * self.B


def read_jobs(jobs, profiles) -> list[Job]:
    """One `Job` for each row of the list, which must be in order of submission."""
    prof = {
        k: np.asarray(getattr(profiles, k), np.float64)
        for k in ("compute_s", "gradient_bytes", "cpu_cores", "ps_cores", "input_bytes", "sens_cpu", "sens_pcie")
    }
    out = []
    for j in range(len(jobs)):
        m = int(jobs.model[j])
        out.append(
            Job(
                submit_s=float(jobs.submit_s[j]),
                duration_s=float(jobs.duration_s[j]),
                estimate_s=float(jobs.duration_s[j] * jobs.estimate_ratio[j]),
                W=int(jobs.workers[j]),
                g=int(jobs.gpus_per_worker[j]),
                U=int(jobs.ps[j]),
                model=m,
                tenant=int(jobs.tenant[j]),
                home=int(jobs.home[j]),
                compute_s=prof["compute_s"][m],
                B=prof["gradient_bytes"][m],
                cpu_cores=prof["cpu_cores"][m],
                ps_cores=prof["ps_cores"][m],
                input_bytes=prof["input_bytes"][m],
                sens_cpu=prof["sens_cpu"][m],
                sens_pcie=prof["sens_pcie"][m],
                milli=int(jobs.milli[j]),
            )
        )
    if any(a.submit_s > b.submit_s for a, b in itertools.pairwise(out)):
        raise ValueError("the jobs are not in order of submission")
    return out


# ------------------------------------------------------------------------------------------------- section 3: traffic


def traffic(hw: Hardware, p: int, job: Job, w: dict, u: dict) -> dict[Resource, float]:
    """Bytes per step on each resource that the placement uses. `w`, `u`: workers and PS, group -> count."""
    out: dict[Resource, float] = {}

    def add(resource: Resource, nbytes: float) -> None:
        if nbytes > 0:
            out[resource] = out.get(resource, 0.0) + nbytes

    groups = sorted(set(w) | set(u))
    servers = sorted({a // hw.K for a in groups})
    racks = sorted({int(hw.rack[p, s]) for s in servers})
    w_s = {s: sum(w.get(a, 0) for a in hw.groups_of(s)) for s in servers}
    u_s = {s: sum(u.get(a, 0) for a in hw.groups_of(s)) for s in servers}
    w_r = {r: sum(w_s[s] for s in servers if hw.rack[p, s] == r) for r in racks}
    u_r = {r: sum(u_s[s] for s in servers if hw.rack[p, s] == r) for r in racks}

    def add_route(r: int, q: int, nbytes: float) -> None:
        for e in range(hw.route.shape[-1]):
            add(("link", int(hw.link_id[p, e])), nbytes * hw.route[p, r, q, e])

    if job.U == 0:
        b = job.ring_bytes
        for a in groups:
            if w.get(a, 0) > 0 and job.W * job.g > 1:
                add(("pcie", p, a), b)
        for s in servers:
            if sum(w.get(a, 0) > 0 for a in hw.groups_of(s)) >= 2:
                add(("qpi", p, s), b)
            if w_s[s] > 0 and sum(x > 0 for x in w_s.values()) >= 2:
                add(("nic", p, s), b)
        ring = [r for r in racks if w_r[r] > 0]
        if len(ring) >= 2:
            for i, r in enumerate(ring):
                add_route(r, ring[(i + 1) % len(ring)], b)
    else:
        per = job.B / job.U
        for a in groups:
            add(("pcie", p, a), w.get(a, 0) * job.B)
        for s in servers:
            inside = sum(w.get(a, 0) * u.get(a, 0) for a in hw.groups_of(s))
            add(("qpi", p, s), (w_s[s] * u_s[s] - inside) * per)
            add(("nic", p, s), (w_s[s] * (job.U - u_s[s]) + u_s[s] * (job.W - w_s[s])) * per)
        for r in racks:
            for q in racks:
                if r != q:
                    add_route(r, q, (w_r[r] * u_r[q] + u_r[r] * w_r[q]) * per)
    return out


# ----------------------------------------------------------------------------------------- section 4: solo, utilisation


@dataclasses.dataclass
class Demand:
    """What a placed job asks of the hardware, whoever else runs."""

    own_cpu: dict[int, float]  # group -> own CPU use
    compute: dict[int, float]  # group with workers -> compute_a
    base: dict[Resource, float]  # seconds per step on each communication resource
    use: dict[Resource, float]  # utilisation of every resource
    solo: float


def demand(hw: Hardware, p: int, job: Job, w: dict, u: dict) -> Demand:
    """Section 4 for one placement."""
    nbytes = traffic(hw, p, job, w, u)
    base = {m: x / hw.capacity(m) for m, x in nbytes.items()}
    own_cpu = {
        a: (w.get(a, 0) * job.g * job.cpu_cores + u.get(a, 0) * job.ps_cores) / hw.cores[p, a]
        for a in sorted(set(w) | set(u))
    }
    compute = {a: job.compute_s / hw.speed[p, a] for a in sorted(w) if w[a] > 0}
    solo = max(x * (1 + job.sens_cpu * (max(1.0, own_cpu[a]) - 1)) for a, x in compute.items())
    solo += max(base.values(), default=0.0)
    use: dict[Resource, float] = {}
    for a, x in own_cpu.items():
        use["cpu", p, a] = x
        total = nbytes.get(("pcie", p, a), 0.0) + w.get(a, 0) * job.g * job.input_bytes
        use["pcie", p, a] = total / (hw.pcie[p, a] * solo)
    for m, x in base.items():
        if m[0] != "pcie":
            use[m] = x / solo
    return Demand(own_cpu=own_cpu, compute=compute, base=base, use=use, solo=solo)


# ----------------------------------------------------------------------------------------------- section 5: contention

Stretch = Callable[[str, int, float, float], float]
# (GPU type, model, models of the others on the same GPU) -> stretch, or None where the GPU type is not covered
Law = Callable[[int, int, list[int]], float | None]


def make_interference(interference, strengths=(1, 1, 1, 1, 1, 1)) -> Stretch:
    """The map (channel, model, own, others) -> stretch; any function of that signature may be given instead."""
    if callable(interference):
        return interference
    if interference == "none":
        return lambda channel, model, own, others: 1.0
    if interference != "analytic":
        raise ValueError(interference)
    kappa = dict(zip(CHANNELS, (float(x) for x in strengths)))  # without the last one there can be no fractions

    def analytic(channel: str, model: int, own: float, others: float) -> float:
        if channel == "cpu":
            return 1 + kappa["cpu"] * (max(1.0, own + others) / max(1.0, own) - 1)
        return 1 + kappa[channel] * others

    return analytic


def ideal_step(hw: Hardware, job: Job) -> float:
    """The step time on the ideal placement."""
    gpus = job.W * job.g
    m_g, m_s = math.ceil(gpus / hw.gmax), math.ceil(gpus / hw.smax)
    if job.U == 0:
        b = job.ring_bytes
        pcie = b / hw.pcie_max if gpus > 1 else 0.0
        qpi = b / hw.qpi_max if m_g > m_s else 0.0
        nic = b / hw.nic_max if m_s > 1 else 0.0
    else:
        k = min(m_g, hw.kmax)
        pcie = job.W * job.B / m_g / hw.pcie_max
        qpi = job.B * job.W / m_s**2 * (1 - 1 / k) / hw.qpi_max
        nic = 2 * job.B * job.W / m_s * (1 - 1 / m_s) / hw.nic_max
    return job.compute_s + max(pcie, qpi, nic)


def slowdown(
    hw: Hardware, p: int, job: Job, d: Demand, total_use: dict[Resource, float], stretch: Stretch, on_gpu: float = 1.0
) -> float:
    """The slowdown of a job; `total_use` sums over all running jobs, this one included; `on_gpu` is stretch_gpu."""

    def stretch_of(m: Resource) -> float:
        own = d.use.get(m, 0.0)
        others = max(0.0, total_use.get(m, 0.0) - own)
        return stretch(m[0], job.model, own, others)

    compute = 0.0
    for a, compute_a in d.compute.items():
        cpu = job.sens_cpu * (max(1.0, d.own_cpu[a]) * stretch_of(("cpu", p, a)) - 1)
        pcie = job.sens_pcie * (stretch_of(("pcie", p, a)) - 1)
        compute = max(compute, compute_a * (1 + cpu + pcie))
    comm = max((x * stretch_of(m) for m, x in d.base.items()), default=0.0)
    return max(1.0, (on_gpu * compute + comm) / ideal_step(hw, job))


# ------------------------------------------------------------------------------------------------------ the simulation


@dataclasses.dataclass
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

    @property
    def group(self) -> int:
        """Where a fraction lies."""
        (a,) = self.w
        return a


@dataclasses.dataclass
class Result:
    """What became of each job."""

    start_s: np.ndarray  # float64[J], nan if it never started
    finish_s: np.ndarray  # float64[J], nan if it did not finish
    status: list[str]  # finished, running, queued, backlog (not in a queue yet) or rejected
    partition: np.ndarray  # int[J], where it ran or is queued, else -1
    workers: list[dict[int, int]]  # group -> count, empty if it never started
    ps: list[dict[int, int]]


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
    ):
        """An empty cluster at time 0."""
        self.hw, self.jobs, self.stretch, self.law = hw, jobs, stretch, law
        self.queue_slots, self.running_slots, self.max_forwards = queue_slots, running_slots, max_forwards
        self.now, self.interval_s = 0.0, interval_s
        self.queue: list[list[int]] = [[] for _ in range(hw.P)]
        self.running: list[list[Running]] = [[] for _ in range(hw.P)]
        self.finished: list[tuple[Running, float]] = []
        self.forwards = [0] * len(jobs)

    def free(self, p: int) -> np.ndarray:
        """Free, that is whole, GPUs of each group of a partition."""
        free = self.hw.gpus[p].copy()
        for r in self.running[p]:
            if r.gpu is None:
                for a, count in r.w.items():
                    free[a] -= count * self.jobs[r.job].g
        for a in range(len(free)):
            free[a] -= len(self.shared(p, a))
        return free

    def shared(self, p: int, a: int) -> dict[int, int]:
        """The shared GPUs of a group: index -> thousandths in use."""
        used: dict[int, int] = {}
        for r in self.running[p]:
            if r.gpu is not None and r.group == a:
                used[r.gpu] = used.get(r.gpu, 0) + self.jobs[r.job].milli
        return used

    def capacity(self, p: int, j: int) -> list[int]:
        """`cap_a` of section 7 for every group."""
        job, free = self.jobs[j], [int(x) for x in self.free(p)]
        if not job.fraction:
            return [x // job.g for x in free]
        return [
            int(free[a] > 0 or any(used + job.milli <= WHOLE for used in self.shared(p, a).values()))
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
        return next(s for s in itertools.count() if s not in used)

    def gpu_stretch(self, p: int, a: int, model: int, others: list[int]) -> float:
        """stretch_gpu (section 5) of a job on a shared GPU of group `a`, by the models of its co-runners there."""
        if not others:
            return 1.0
        by_law = None if self.law is None else self.law(int(self.hw.gpu_type[p, a]), model, others)
        return self.stretch("gpu", model, 1.0, float(len(others))) if by_law is None else by_law

    def beside(self, p: int, a: int, gpu: int | None) -> list[Running]:
        """The fractions on a shared GPU."""
        return [] if gpu is None else [r for r in self.running[p] if r.gpu == gpu and r.group == a]

    def on_gpu(self, r: Running, more: tuple[int, ...] = ()) -> float:
        """stretch_gpu of a running job, with `more` models on its GPU than there are."""
        if r.gpu is None:
            return 1.0
        others = [self.jobs[x.job].model for x in self.beside(r.partition, r.group, r.gpu) if x is not r]
        return self.gpu_stretch(r.partition, r.group, self.jobs[r.job].model, [*others, *more])

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
        done = self.jobs[r.job].duration_s - r.remaining_s
        left = self.jobs[r.job].estimate_s - done
        return left if left > 0 else 0.1 * done

    def slowdowns(self) -> dict[int, float]:
        """Slowdown of every running job."""
        total = self.total_use()
        return {
            r.job: slowdown(self.hw, p, self.jobs[r.job], r.demand, total, self.stretch, self.on_gpu(r))
            for p in range(self.hw.P)
            for r in self.running[p]
        }

    def could_hold(self, p: int, j: int) -> bool:
        """Whether the gang fits the empty partition."""
        return sum(int(x) // self.jobs[j].g for x in self.hw.gpus[p]) >= self.jobs[j].W

    def feasible(self, p: int, j: int) -> bool:
        """Whether the gang fits the partition now (section 7)."""
        fits = sum(self.capacity(p, j)) >= self.jobs[j].W
        return fits and len(self.running[p]) < self.running_slots


def simulate(
    cluster,
    jobs,
    profiles,
    policy,
    *,
    interval_s,
    rounds,
    max_forwards=2,
    interference="none",
    strengths=(1, 1, 1, 1, 1, 1),
    law=None,
    queue_slots=10**9,
    running_slots=10**9,
    horizon_s=None,
) -> Result:
    """Run the jobs. `running_slots` and `queue_slots` are per partition.

    With a horizon, boundaries before it are simulated and completions up to it count; without one, the run also ends
    when nothing can change any more (jobs are queued that the policy will never place).
    """
    hw, table = Hardware(cluster), read_jobs(jobs, profiles)
    stretch = make_interference(interference, strengths)
    state = State(hw, table, stretch, queue_slots, running_slots, max_forwards, interval_s, law)
    result = Result(
        start_s=np.full(len(table), np.nan),
        finish_s=np.full(len(table), np.nan),
        status=["backlog"] * len(table),
        partition=np.full(len(table), -1),
        workers=[{} for _ in table],
        ps=[{} for _ in table],
    )

    backlog: list[int] = []  # in order of submission
    home: dict[int, int] = {}
    for j, job in enumerate(table):
        able = [p for p in ((job.home + d) % hw.P for d in range(hw.P)) if state.could_hold(p, j)]
        if able:
            home[j] = able[0]
            backlog.append(j)
        else:
            result.status[j] = "rejected"

    i = 0
    while horizon_s is None or i * interval_s < horizon_s:
        state.now = i * interval_s
        while backlog and table[backlog[0]].submit_s <= state.now:
            if len(state.queue[home[backlog[0]]]) >= queue_slots:
                break
            j = backlog.pop(0)
            state.queue[home[j]].append(j)

        acted = _decide(state, policy, rounds)

        anything_queued = any(state.queue)
        anything_running = any(state.running)
        later = [j for j in backlog if table[j].submit_s > state.now]
        if not anything_queued and not anything_running and not backlog:
            break
        if horizon_s is None and not anything_running and not acted and not later:
            break  # nothing will ever change
        if anything_queued:
            i += 1
            end = i * interval_s
        elif backlog:  # skip to the boundary at which the next job arrives
            i = max(i + 1, math.floor(table[backlog[0]].submit_s / interval_s) - 1)
            while i * interval_s < table[backlog[0]].submit_s:
                i += 1
            end = i * interval_s
        else:
            end = math.inf
        _advance(state, end if horizon_s is None else min(end, horizon_s))
        if end == math.inf:
            break

    for r, finish in state.finished:
        result.finish_s[r.job] = finish
    for status, runs in (
        ("running", [r for rs in state.running for r in rs]),
        ("finished", [r for r, _ in state.finished]),
    ):
        for r in runs:
            result.status[r.job], result.start_s[r.job], result.partition[r.job] = status, r.start_s, r.partition
            result.workers[r.job], result.ps[r.job] = r.w, r.u
    for p in range(hw.P):
        for j in state.queue[p]:
            result.status[j], result.partition[j] = "queued", p
    return result


def _decide(state: State, policy, rounds: int) -> bool:
    """The decisions of one boundary (section 6, step 2). Returns whether anything was placed or forwarded."""
    hw = state.hw
    waited: set[int] = set()
    acted = False
    for _ in range(rounds):
        if len(waited) == hw.P:
            break
        actions = {p: policy(state, p) for p in range(hw.P) if p not in waited}  # all on the state before the round
        slots = [state.queue_slots - len(q) for q in state.queue]
        legal = {p: _legal(state, p, action) for p, action in actions.items()}
        for p, action in actions.items():  # in order of the scheduler's number
            if not legal[p] or action[0] == "wait":
                waited.add(p)
            elif action[0] == "forward":
                _, j, target = action
                if slots[target] <= 0:
                    waited.add(p)
                    continue
                slots[target] -= 1
                state.queue[p].remove(j)
                state.queue[target].append(j)
                state.forwards[j] += 1
                acted = True
            else:
                _, j, w, u = action
                w = {int(a): int(x) for a, x in sorted(w.items()) if x > 0}
                u = {int(a): int(x) for a, x in sorted(u.items()) if x > 0}
                state.queue[p].remove(j)
                state.running[p].append(
                    Running(
                        gpu=state.gpu_for(p, j, min(w)),
                        job=j,
                        partition=p,
                        w=w,
                        u=u,
                        demand=demand(hw, p, state.jobs[j], w, u),
                        start_s=state.now,
                        remaining_s=state.jobs[j].duration_s,
                    )
                )
                acted = True
    return acted


def _legal(state: State, p: int, action) -> bool:
    """Whether scheduler `p` may do this on the present state (free slots of the target: see the caller)."""
    if action[0] == "wait":
        return True
    j = action[1]
    if j not in state.queue[p]:
        return False
    if action[0] == "forward":
        target = action[2]
        return (
            target != p
            and 0 <= target < state.hw.P
            and state.forwards[j] < state.max_forwards
            and state.could_hold(target, j)
        )
    job, (_, _, w, u), cap = state.jobs[j], action, state.capacity(p, j)
    return (
        len(state.running[p]) < state.running_slots
        and sum(w.values()) == job.W
        and sum(u.values()) == job.U
        and all(0 <= x <= cap[a] for a, x in w.items())
        and all(0 <= x and state.hw.gpus[p, a] > 0 for a, x in u.items() if x)
    )


def _advance(state: State, end: float) -> None:
    """Run until `end` (section 6, step 3): slowdowns are constant between completions."""
    while any(state.running):
        slow = state.slowdowns()
        runs = [r for rs in state.running for r in rs]
        next_s = min(state.now + r.remaining_s * slow[r.job] for r in runs)
        until = min(next_s, end)
        for r in runs:
            r.remaining_s -= (until - state.now) / slow[r.job]
        state.now = until
        for p in range(state.hw.P):
            for r in list(state.running[p]):
                # The second test: next_s is this job's own completion, however float64 rounds a large time.
                if r.remaining_s <= TOLERANCE * state.jobs[r.job].duration_s or (
                    until == next_s and r.remaining_s * slow[r.job] <= np.spacing(until)
                ):
                    state.running[p].remove(r)
                    state.finished.append((r, state.now))
        if until == end:
            return
    if end != math.inf:
        state.now = end
