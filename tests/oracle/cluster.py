"""The oracle's cluster and jobs (sections 1 and 2 of `docs/semantics.md`): the pytrees as float64 and plain Python."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable

import numpy as np

from tests.oracle.plans import Traffic, read_traffic

WHOLE = 1000  # thousandths of a GPU
UNLIMITED = 10**9  # workers, where none of them asks for CPUs or memory
# A resource is a tuple: ("cpu" | "pcie", p, group), ("qpi" | "nic", p, server) or ("link", global link).
Resource = tuple


class Hardware:
    """The cluster (section 1) as float64 arrays; groups of a partition are flattened to `a = n * K + k`."""

    def __init__(self, cluster):
        """Convert the pytree."""
        gpus = np.asarray(cluster.group_gpus).astype(int)
        self.P, self.N, self.K = gpus.shape
        self.reference = int(cluster.reference)
        flat = (self.P, self.N * self.K)
        self.gpus = gpus.reshape(flat)
        self.server_id = np.asarray(cluster.server_id)
        self.gpu_type = np.asarray(cluster.group_gpu_type).astype(int).reshape(flat)
        self.gpu_types = tuple(cluster.gpu_types)
        self.reservable = np.asarray(cluster.reservable).astype(int)
        self.speed = np.asarray(cluster.group_speed, np.float64).reshape(flat)
        self.cores = np.asarray(cluster.group_cores, np.float64).reshape(flat)
        self.pcie = np.asarray(cluster.pcie_bytes_s, np.float64).reshape(flat)
        self.qpi = np.asarray(cluster.qpi_bytes_s, np.float64)
        self.nic = np.asarray(cluster.nic_bytes_s, np.float64)
        self.rack = np.asarray(cluster.server_rack).astype(int)
        blocks = np.asarray(cluster.domain_block).astype(int)
        self.block = blocks if blocks.size else np.zeros_like(np.asarray(cluster.rack_id))
        self.link = np.asarray(cluster.link_bytes_s, np.float64)
        self.link_id = np.asarray(cluster.link_id).astype(int)
        self.route = np.asarray(cluster.route, np.float64)
        # The best hardware of the reference type, for `ideal` (section 5). Padding does not count.
        gpus = np.where(np.asarray(cluster.group_gpu_type) == self.reference, gpus, 0)
        real_group, real_server = gpus.reshape(flat) > 0, gpus.sum(-1) > 0
        self.gmax = int(gpus.max())
        self.smax = int(gpus.sum(-1).max())
        self.kmax = int((gpus > 0).sum(-1).max())
        self.pcie_max = float(self.pcie[real_group].max())
        self.qpi_max = float(self.qpi[real_server].max())
        self.nic_max = float(self.nic[real_server].max())
        domains = [
            (servers, min(servers, int(block)))
            for p in range(self.P)
            for r, block in enumerate(self.block[p])
            for servers in [int((real_server[p] & (self.rack[p] == r)).sum())]
            if block > 0
        ]
        self.domain_sizes = tuple(max(1, *sizes) for sizes in zip((1, 1), *domains))

    def capacity(self, resource: Resource) -> float:
        """Bytes/s of a PCIe, QPI, NIC or link resource."""
        if resource[0] == "link":
            return float(self.link[resource[1]])
        return float({"pcie": self.pcie, "qpi": self.qpi, "nic": self.nic}[resource[0]][resource[1], resource[2]])

    def domain(self, p: int, s: int) -> tuple:
        """Which servers NVLink joins with one of them: those of its rack, or itself only."""
        r = int(self.rack[p, s])
        return ("rack", r) if self.block[p, r] > 0 else ("server", s)

    def speed_of(self, p: int, a: int, job: "Job") -> float:
        """How fast the job's model runs on a group, over the reference type (section 4)."""
        here, there = job.speeds.get(int(self.gpu_type[p, a])), job.speeds.get(self.reference)
        if here and there:
            return here / there
        return 1 / (job.sens_cpu + (1 - job.sens_cpu) / self.speed[p, a])

    def usable(self, p: int, job: "Job") -> np.ndarray:
        """Which groups of a partition have GPUs that the job may use (section 2)."""
        return self._usable(p, job.types)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a few sets of types in each of a few clusters
    def _usable(self, p: int, types: frozenset[str] | None) -> np.ndarray:
        real = self.gpus[p] > 0
        if types is not None:
            real &= np.array([self.gpu_types[kind] in types for kind in self.gpu_type[p]])
        real.setflags(write=False)
        return real

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - as above
    def speeds_for(self, job: "Job") -> list[float]:
        """The different speeds of the cluster's GPUs that a job may use, fastest first."""
        return sorted({float(v) for p in range(self.P) for v in self.speed[p][self.usable(p, job)]}, reverse=True)

    def gpus_for(self, p: int, job: "Job") -> np.ndarray:
        """GPUs of each group of a partition as the job counts them: 0 where it may use none."""
        return np.where(self.usable(p, job), self.gpus[p], 0)

    def within(self, job: "Job", left: Iterable[int]) -> int:
        """Workers of a job for whom so much of what a server has is enough."""
        return min((int(x) // asked for x, asked in zip(left, job.asks) if asked), default=UNLIMITED)

    def empty_capacity(self, p: int, job: "Job", groups: Iterable[int]) -> list[int]:
        """Workers of a job that fit these groups of each server of an empty partition."""
        gpus = self.gpus_for(p, job)
        fits = [sum(int(gpus[a]) // job.g for a in groups if a // self.K == s) for s in range(self.N)]
        return [min(x, self.within(job, self.reservable[p, s])) for s, x in enumerate(fits)]

    def groups_of(self, server: int) -> range:
        """The groups of a server."""
        return range(server * self.K, (server + 1) * self.K)


@dataclasses.dataclass(frozen=True, eq=False)  # so that what follows from a job can be kept by it
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
    speeds: dict[int, float] = dataclasses.field(default_factory=dict)  # measured: GPU type -> speed
    types: frozenset[str] | None = None  # GPU types that it may use; None: any
    asks: tuple[int, int] = (0, 0)  # thousandths of CPU cores, and MiB, that a worker reserves
    traffic: Traffic | None = None  # of a model with a plan

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
    measured = np.zeros((len(prof["compute_s"]), 0)) if profiles.speed is None else np.asarray(profiles.speed)
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
                traffic=read_traffic(profiles, m),
                speeds={t: float(x) for t, x in enumerate(measured[m]) if x > 0},
                asks=(int(jobs.cpu_milli[j]), int(jobs.memory_mib[j])),
                types=frozenset(str(jobs.allowed[j]).split("|")) if jobs.allowed[j] else None,
            )
        )
    if any(a.submit_s > b.submit_s for a, b in itertools.pairwise(out)):
        raise ValueError("the jobs are not in order of submission")
    return out
