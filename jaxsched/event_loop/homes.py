"""Where jobs are queued first, and their ideal step times: as the environment has them, without a JAX program."""

import numpy as np
from jaxtyping import ArrayLike, Bool, Float64, Int64

from jaxsched.cluster.hardware import Cluster
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.models import Profiles


def home_of(cluster: Cluster, jobs: JobTable) -> Int64[np.ndarray, "J"]:
    """As `env.state.assign_homes`: the next partition from the job's own on that could hold it, -1 if there is none."""
    fits = _could_hold(cluster, jobs)
    p = fits.shape[1]
    real = np.flatnonzero((np.asarray(cluster.server_id) >= 0).any(-1)).max(initial=0) + 1
    first = np.asarray(jobs.home, np.int64) % real
    distance = np.where(fits, (np.arange(p) - first[:, None]) % p, p)
    return np.where(fits.any(-1), distance.argmin(-1), -1)


def _could_hold(cluster: Cluster, jobs: JobTable) -> Bool[np.ndarray, "J P"]:
    """Whether the gang fits a partition that is empty. Of many jobs few sizes of workers differ."""
    sizes, size = np.unique(np.maximum(jobs.gpus_per_worker, 1), return_inverse=True)
    capacity = (np.asarray(cluster.group_gpus) // sizes[:, None, None, None]).sum((-1, -2))
    return capacity[size] >= np.asarray(jobs.workers)[:, None]


def ideal_s_of(
    cluster: Cluster, profiles: Profiles, jobs: JobTable
) -> tuple[Float64[np.ndarray, "J"], Float64[np.ndarray, "J"]]:
    """Seconds of computation and of communication per step on the ideal placement (docs/semantics.md, section 5).

    As `dynamics.footprint.ideal_step_s`, their sum.
    """
    of_reference = np.asarray(cluster.group_gpu_type) == np.asarray(cluster.reference)
    group_gpus = np.where(of_reference, np.asarray(cluster.group_gpus), 0)
    workers, ps = np.asarray(jobs.workers, np.int64), np.asarray(jobs.ps)
    model = np.asarray(jobs.model)
    gradient, compute_s = (np.asarray(leaf, float)[model] for leaf in (profiles.gradient_bytes, profiles.compute_s))
    gpus = np.maximum(workers * np.asarray(jobs.gpus_per_worker), 1)
    groups, servers = -(-gpus // group_gpus.max()), -(-gpus // group_gpus.sum(-1).max())
    pcie_bytes_s = _best(cluster.pcie_bytes_s, group_gpus > 0)
    qpi_bytes_s, nic_bytes_s = (
        _best(leaf, group_gpus.sum(-1) > 0) for leaf in (cluster.qpi_bytes_s, cluster.nic_bytes_s)
    )

    ring = 2.0 * (gpus - 1) / gpus * gradient
    ring_s = np.maximum(ring / pcie_bytes_s, np.where(groups > servers, ring / qpi_bytes_s, 0.0))
    ring_s = np.maximum(ring_s, np.where(servers > 1, ring / nic_bytes_s, 0.0))

    spread = np.minimum(groups, (group_gpus > 0).sum(-1).max())
    pcie = workers * gradient / groups / pcie_bytes_s
    qpi = gradient * workers / servers**2 * (1.0 - 1.0 / spread) / qpi_bytes_s
    nic = 2.0 * gradient * workers / servers * (1.0 - 1.0 / servers) / nic_bytes_s
    return compute_s, np.where(ps > 0, np.maximum(np.maximum(pcie, qpi), nic), ring_s)


def _best(bytes_s: ArrayLike, real: Bool[np.ndarray, "..."]) -> float:
    """The largest where something is."""
    return float(np.where(real, np.asarray(bytes_s), 0.0).max())
