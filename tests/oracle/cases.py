"""Small clusters, jobs and schedules for the oracle's own tests, of round numbers."""

import numpy as np

from jaxsched.cluster.build import list_paths
from jaxsched.cluster.hardware import Cluster
from jaxsched.workload.jobs import JobList
from jaxsched.workload.models import Profiles
from tests.oracle import simulator
from tests.oracle.filling import ps_of
from tests.oracle.policies import make_policy


def make_cluster(
    gpus,
    *,
    speed=1.0,
    cores=8.0,
    pcie=10.0,
    qpi=10.0,
    nic=5.0,
    racks=None,
    links=(),
    link_id=None,
    route=None,
    has=(10**6, 10**6),
    blocks=None,
) -> Cluster:
    """`gpus[P][N][K]`; scalars are broadcast; no links and, as `blocks` of racks, no NVLink domains unless given."""
    gpus = np.asarray(gpus, np.int32)
    P, N, _ = gpus.shape
    racks = np.zeros((P, N), np.int32) if racks is None else np.asarray(racks, np.int32)
    T = int(racks.max()) + 1
    link_id = np.full((P, 1), len(links), np.int32) if link_id is None else np.asarray(link_id, np.int32)
    route = np.zeros((P, T, T, link_id.shape[1])) if route is None else np.asarray(route)

    def full(x, shape):
        return np.broadcast_to(np.asarray(x, np.float32), shape).copy()

    return Cluster(
        group_gpus=gpus,
        group_gpu_type=np.where(gpus > 0, 0, -1).astype(np.int32),
        group_speed=full(speed, gpus.shape),
        group_cores=full(cores, gpus.shape),
        pcie_bytes_s=full(pcie, gpus.shape),
        qpi_bytes_s=full(qpi, (P, N)),
        nic_bytes_s=full(nic, (P, N)),
        reservable=np.broadcast_to(np.asarray(has, np.int32), (P, N, 2)).copy(),
        server_id=np.arange(P * N, dtype=np.int32).reshape(P, N),
        server_rack=racks,
        rack_id=np.arange(P * T, dtype=np.int32).reshape(P, T),
        domain_block=np.asarray(np.zeros((P, 0)) if blocks is None else blocks, np.int32),
        link_bytes_s=np.asarray([*links, 1.0], np.float32),
        link_id=link_id,
        route=route.astype(np.float32),
        **list_paths(route.astype(np.float32)),
        reference=np.int32(0),
    )


def make_profiles(*models) -> Profiles:
    """One dict per model; anything not given is 0, but `compute_s` is 1."""
    names = ("compute_s", "gradient_bytes", "cpu_cores", "ps_cores", "input_bytes", "sens_cpu", "sens_pcie")
    return Profiles(**{k: np.asarray([m.get(k, float(k == "compute_s")) for m in models], np.float32) for k in names})


def make_jobs(*rows) -> JobList:
    """One dict per job."""

    def column(name, default, dtype):
        return np.asarray([r.get(name, default) for r in rows], dtype)

    return JobList(
        job_id=np.asarray([str(i) for i in range(len(rows))]),
        submit_s=column("submit", 0, float),
        duration_s=column("duration", 100, float),
        workers=column("W", 1, np.int32),
        gpus_per_worker=column("g", 1, np.int32),
        ps=column("U", 0, np.int32),
        model=column("model", 0, np.int32),
        tenant=column("tenant", 0, np.int32),
        home=column("home", 0, np.int32),
        estimate_ratio=column("ratio", 1, float),
        milli=column("milli", 1000, np.int32),
        gpu_type=column("gpu_type", "", str),
        ended=column("ended", 0, np.int32),
        given_s=column("submit", 0, float),
        tenant_name=column("tenant", 0, str),
        user=column("user", "", str),
        allowed=column("allowed", "", str),
        cpu_milli=column("cpu", 0, np.int64),
        memory_mib=column("memory", 0, np.int64),
        due_s=column("due", np.inf, float),
    )


def scripted(placements):
    """Places the first job of the queue on the groups given: job -> {group: workers}, PS follow."""

    def policy(state, p):
        for j in sorted(state.queue[p]):
            w = placements[j]
            free = state.free(p)
            if all(x * state.jobs[j].g <= free[a] for a, x in w.items()):
                return "place", j, w, ps_of(state.jobs[j], w)
        return ("wait",)

    return policy


def run(cluster, jobs, profiles, policy, **kw):
    """`simulate` with a boundary each minute."""
    return simulator.simulate(cluster, jobs, profiles, policy, **{"interval_s": 60.0, "rounds": 8, **kw})


def close(actual, desired):
    """Exact, but for the last bits."""
    np.testing.assert_allclose(actual, desired, rtol=1e-12)


# Two servers of one group of 4 GPUs; PCIe 10, NIC 5 bytes/s.
TWO = make_cluster([[[4], [4]]])
RING = make_profiles({"gradient_bytes": 10})  # compute 1 s; n = 2 ranks: b = 2 * 1/2 * 10 = 10 bytes
FIFO = make_policy("first-fit", "fifo")
SPREAD = make_policy("load-balance", "fifo")

RACKS = np.zeros((2, 3, 3, 6))  # local link 2 r is the way up from rack r, 2 r + 1 the way down to it
for _r in range(3):
    for _q in range(3):
        if _r != _q:
            RACKS[:, _r, _q, 2 * _r] = RACKS[:, _r, _q, 2 * _q + 1] = 1
