"""The oracle itself, against numbers worked out with a pencil."""

import math

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_policies import NAMES, ORDERS, candidates, make_policy, place, ps_of, q

from jaxsched.cluster.hardware import Cluster
from jaxsched.workload.jobs import JobList
from jaxsched.workload.models import Profiles


def make_cluster(
    gpus, *, speed=1.0, cores=8.0, pcie=10.0, qpi=10.0, nic=5.0, racks=None, links=(), link_id=None, route=None
) -> Cluster:
    """`gpus[P][N][K]`; scalars are broadcast; no links unless given."""
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
        server_id=np.arange(P * N, dtype=np.int32).reshape(P, N),
        server_rack=racks,
        rack_id=np.arange(P * T, dtype=np.int32).reshape(P, T),
        link_bytes_s=np.asarray([*links, 1.0], np.float32),
        link_id=link_id,
        route=route.astype(np.float32),
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
        milli=column("milli", 1000, np.int32),
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
    return oracle.simulate(cluster, jobs, profiles, policy, **{"interval_s": 60.0, "rounds": 8, **kw})


def close(actual, desired):
    """Exact, but for the last bits."""
    np.testing.assert_allclose(actual, desired, rtol=1e-12)


# Two servers of one group of 4 GPUs; PCIe 10, NIC 5 bytes/s.
TWO = make_cluster([[[4], [4]]])
RING = make_profiles({"gradient_bytes": 10})  # compute 1 s; n = 2 ranks: b = 2 * 1/2 * 10 = 10 bytes
FIFO = make_policy("first-fit", "fifo")
SPREAD = make_policy("load-balance", "fifo")


# ----------------------------------------------------------------------------------------------------- one job alone


def test_one_job_alone_on_the_ideal_placement():
    # One group: PCIe 10/10 = 1 s, step 2 s. Ideal: m_g = m_s = 1: 1 + 10/10 = 2. Slowdown 1; submitted at 1, starts
    # at 60.
    r = run(TWO, make_jobs({"W": 2, "submit": 1}), RING, FIFO)
    assert r.status == ["finished"] and r.workers == [{0: 2}] and r.ps == [{}] and r.partition[0] == 0
    close([r.start_s[0], r.finish_s[0]], [60, 160])


def test_one_job_alone_over_the_nic():
    # A worker per server: NIC 10/5 = 2 s > PCIe 1 s, step 3 s; ideal 2 s. Slowdown 1.5: finish = 0 + 100 * 1.5.
    r = run(TWO, make_jobs({"W": 2}), RING, SPREAD)
    assert r.workers == [{0: 1, 1: 1}]
    close([r.start_s[0], r.finish_s[0]], [0, 150])


def test_one_gpu_has_no_traffic_and_slow_gpus_count():
    # Speed 0.5: compute 2 s, ideal 1 s (n = 1: no communication although B = 10).
    r = run(make_cluster([[[4], [4]]], speed=[[[0.5], [1]]]), make_jobs({}), RING, FIFO)
    close(r.finish_s, [200])


def test_ideal_of_a_job_larger_than_a_server():
    # n = 8, b = 2 * 7/8 * 10 = 17.5; m_g = 2 = m_s: no QPI, slow as it is; max(PCIe 1.75, NIC 3.5): ideal 4.5 s.
    hw = oracle.Hardware(make_cluster([[[4], [4]]], qpi=1))
    close(oracle.ideal_step(hw, oracle.read_jobs(make_jobs({"W": 8}), RING)[0]), 4.5)
    # With 2 groups of 2 per server and QPI 4: W = 4: m_g = 2, m_s = 1: b = 15, max(1.5, 15/4) = 3.75.
    hw = oracle.Hardware(make_cluster([[[2, 2], [2, 2]]], qpi=4))
    close(oracle.ideal_step(hw, oracle.read_jobs(make_jobs({"W": 4}), RING)[0]), 4.75)
    # PS, W = 8: m_g = 4, m_s = 2, k = min(4, 2): PCIe 80/4/10 = 2; QPI 80/4 * 1/2 / 4 = 2.5;
    # NIC 2 * 80/2 * 1/2 / 5 = 8: ideal 9.
    job = oracle.read_jobs(make_jobs({"W": 8, "U": 3}), RING)[0]
    close(oracle.ideal_step(hw, job), 9)
    # And with a fast NIC: 1 + 2.5.
    close(oracle.ideal_step(oracle.Hardware(make_cluster([[[2, 2], [2, 2]]], qpi=4, nic=1000)), job), 3.5)


# ------------------------------------------------------------------------------------------------------------ traffic


def test_ps_bytes():
    # Three servers of one group, W = 4 as (2, 1, 1), U = 2. C U/W = 1, 1.5, 2: u = (1, 0, 1).
    # NIC: (2*1 + 1*2) B/2 = 2B; (1*2 + 0) B/2 = B; (1*1 + 1*3) B/2 = 2B. PCIe: w B.
    cluster = make_cluster([[[4], [4], [4]]])
    job = oracle.read_jobs(make_jobs({"W": 4, "U": 2}), RING)[0]
    w = {0: 2, 1: 1, 2: 1}
    assert ps_of(job, w) == {0: 1, 2: 1}
    assert oracle.traffic(oracle.Hardware(cluster), 0, job, w, {0: 1, 2: 1}) == {
        ("pcie", 0, 0): 20,
        ("pcie", 0, 1): 10,
        ("pcie", 0, 2): 10,
        ("nic", 0, 0): 20,
        ("nic", 0, 1): 10,
        ("nic", 0, 2): 20,
    }
    # It runs: base NIC 20/5 = 4 > PCIe 20/10 = 2: step 5. Ideal: m_g = m_s = 1: PCIe 40/10 = 4, no NIC: 5. Slowdown 1.
    # With NIC = 2.5: base 8, step 9: slowdown 9/5.
    close(run(cluster, make_jobs({"W": 4, "U": 2}), RING, scripted({0: w})).finish_s, [100])
    slow = make_cluster([[[4], [4], [4]]], nic=2.5)
    close(run(slow, make_jobs({"W": 4, "U": 2}), RING, scripted({0: w})).finish_s, [180])


def test_qpi_bytes():
    hw = oracle.Hardware(make_cluster([[[2, 2], [2, 2]]]))
    # PS: server 0 has w = (2, 1), u = (1, 0): (3*1 - 2) B/2 = 5; server 1 has w = (1, 0), u = (0, 1): (1 - 0) B/2 = 5.
    job = oracle.read_jobs(make_jobs({"W": 4, "U": 2}), RING)[0]
    x = oracle.traffic(hw, 0, job, {0: 2, 1: 1, 2: 1}, {0: 1, 3: 1})
    assert (x["qpi", 0, 0], x["qpi", 0, 1]) == (5, 5) and ("pcie", 0, 3) not in x
    # Ring of 4: b = 15; server 0 uses two sockets, server 1 one.
    job = oracle.read_jobs(make_jobs({"W": 4}), RING)[0]
    x = oracle.traffic(hw, 0, job, {0: 2, 1: 1, 2: 1}, {})
    assert x["qpi", 0, 0] == 15 and ("qpi", 0, 1) not in x and x["nic", 0, 1] == 15


RACKS = np.zeros((2, 3, 3, 6))  # local link 2 r is the way up from rack r, 2 r + 1 the way down to it
for _r in range(3):
    for _q in range(3):
        if _r != _q:
            RACKS[:, _r, _q, 2 * _r] = RACKS[:, _r, _q, 2 * _q + 1] = 1


def test_link_bytes():
    # A server of 2 GPUs in each of 3 racks.
    cluster = make_cluster(
        [[[2], [2], [2]]] * 2, racks=[[0, 1, 2]] * 2, links=[4.0] * 6, link_id=[list(range(6))] * 2, route=RACKS
    )
    hw = oracle.Hardware(cluster)
    # Ring over racks 0 and 2, n = 2, b = 10: 0 -> 2 and 2 -> 0: up0, down2, up2, down0.
    job = oracle.read_jobs(make_jobs({"W": 2}), RING)[0]
    x = oracle.traffic(hw, 1, job, {0: 1, 2: 1}, {})
    assert {m: v for m, v in x.items() if m[0] == "link"} == {("link", e): 10 for e in (0, 1, 4, 5)}
    # Ring over 3 racks, n = 3, b = 40/3: each link once.
    job = oracle.read_jobs(make_jobs({"W": 3}), RING)[0]
    x = oracle.traffic(hw, 0, job, {0: 1, 1: 1, 2: 1}, {})
    close([x["link", e] for e in range(6)], [40 / 3] * 6)
    # It goes round in ascending order: of one-way links 0 -> 1 and 0 -> 2, the ring takes the first.
    one_way = np.zeros((1, 3, 3, 2))
    one_way[0, 0, 1, 0] = one_way[0, 0, 2, 1] = 1
    one = make_cluster([[[2], [2], [2]]], racks=[[0, 1, 2]], links=[4.0] * 2, link_id=[[0, 1]], route=one_way)
    x = oracle.traffic(oracle.Hardware(one), 0, job, {0: 1, 1: 1, 2: 1}, {})
    assert [m for m in x if m[0] == "link"] == [("link", 0)]
    # PS: w = (2, 1, 0), u = (1, 0, 0): each way between racks 0 and 1: (2*0 + 1*1) B = B.
    job = oracle.read_jobs(make_jobs({"W": 3, "U": 1}), RING)[0]
    x = oracle.traffic(hw, 0, job, {0: 2, 1: 1}, {0: 1})
    assert {m: v for m, v in x.items() if m[0] == "link"} == {("link", e): 10 for e in range(4)}


# --------------------------------------------------------------------------------------------------------- contention


def test_two_jobs_share_a_nic_and_one_finishes_in_mid_interval():
    # Both as in the NIC test above: solo 3 s, use of NIC 2/3. Together: comm = 2 (1 + 2/3) = 10/3, step 13/3,
    # slowdown 13/6. The second (40 s) ends at 40 * 13/6 = 86.67; the first then has 60 s left at slowdown 1.5:
    # 86.67 + 90 = 176.67.
    jobs = make_jobs({"W": 2}, {"W": 2, "duration": 40})
    r = run(TWO, jobs, RING, SPREAD, interference="analytic")
    close(r.start_s, [0, 0])
    close(r.finish_s, [40 * 13 / 6 + 90, 40 * 13 / 6])
    # Half the strength: comm = 2 (1 + 1/3) = 8/3, slowdown 11/6. PCIe is never the slowest.
    r = run(TWO, jobs, RING, SPREAD, interference="analytic", strengths=(1, 1, 1, 0.5, 1))
    close(r.finish_s, [40 * 11 / 6 + 90, 40 * 11 / 6])
    r = run(TWO, jobs, RING, SPREAD)
    close(r.finish_s, [150, 60])


def test_a_start_slows_the_others_from_that_boundary():
    # The second comes at 60: the first has done 60/1.5 = 40; together 13/6: 60 left take 130 s: 190. The second has
    # then done 60 too, 40 left at 1.5: 190 + 60 = 250.
    r = run(TWO, make_jobs({"W": 2}, {"W": 2, "submit": 5}), RING, SPREAD, interference="analytic")
    close(r.start_s, [0, 60])
    close(r.finish_s, [190, 250])


def test_cpu_oversubscription():
    # 4 cores. Each job has 2 GPUs of 1.5 cores: own 3/4, others 3/4: stretch 1.5: compute 1 + 0.5 * 0.5 = 1.25.
    cluster = make_cluster([[[4]]], cores=4)
    profiles = make_profiles({"cpu_cores": 1.5, "sens_cpu": 0.5}, {"cpu_cores": 3, "sens_cpu": 0.5})
    r = run(cluster, make_jobs({"g": 2}, {"g": 2}), profiles, FIFO, interference="analytic")
    close(r.finish_s, [125, 125])
    # Alone but oversubscribed by itself: own 6/4 = 1.5: also 1.25, with no interference at all.
    close(run(cluster, make_jobs({"g": 2, "model": 1}), profiles, FIFO).finish_s, [125])
    # One of each: own 1.5 and 0.75, total 2.25. Model 1: stretch 1.5: 1 + 0.5 (1.5 * 1.5 - 1) = 1.625.
    # Model 0: stretch 2.25: 1 + 0.5 * 1.25 = 1.625. Alike, but the second has 50 s: done at 81.25; the first then has
    # 50 s left at 1.25: 81.25 + 62.5.
    jobs = make_jobs({"g": 2, "model": 1}, {"g": 2, "duration": 50})
    r = run(cluster, jobs, profiles, FIFO, interference="analytic")
    close(r.finish_s, [143.75, 81.25])


def test_ps_cores_count_on_groups_without_workers():
    # Two groups of 2 GPUs and 4 cores. Job 0: a worker on group 0, its PS (6 cores) on group 1: own CPU there 1.5.
    # Job 1: a worker on group 1 with 2 cores: own 0.5, total 2: stretch 2, compute 1 + 1 * 1 = 2; ideal 1.
    cluster = make_cluster([[[2, 2]]], cores=4)
    profiles = make_profiles({"ps_cores": 6, "sens_cpu": 1}, {"cpu_cores": 2, "sens_cpu": 1})

    def policy(state, p):
        j = min(state.queue[p], default=None)
        return ("wait",) if j is None else ("place", j, *(({0: 1}, {1: 1}), ({1: 1}, {}))[j])

    r = run(cluster, make_jobs({"U": 1}, {"model": 1}), profiles, policy, interference="analytic")
    close(r.finish_s, [100, 150])  # job 1: 50 s done at 100, then alone: 50 more
    assert r.ps == [{1: 1}, {}]


def test_pcie_contention_stretches_compute_and_communication():
    # Single GPUs, 5 input bytes over PCIe 10, solo 1 s: use 0.5; sens_pcie 0.5: compute 1 + 0.5 * 0.5 = 1.25.
    profiles = make_profiles({"input_bytes": 5, "sens_pcie": 0.5})
    r = run(make_cluster([[[4]]]), make_jobs({}, {}), profiles, FIFO, interference="analytic")
    close(r.finish_s, [125, 125])
    # Rings of 2 in one group, 10 bytes and 2 * 2.5 input bytes, solo 2 s: use 15/20 = 0.75; comm 1.75, slowdown 2.75/2.
    profiles = make_profiles({"gradient_bytes": 10, "input_bytes": 2.5})
    r = run(make_cluster([[[4]]]), make_jobs({"W": 2}, {"W": 2}), profiles, FIFO, interference="analytic")
    close(r.finish_s, [137.5, 137.5])


def test_links_are_shared_between_partitions():
    # A server in each of 2 racks, in both partitions; links of 2.5 bytes/s: 4 s each, step 5 s, link use 0.8.
    # Together 1 + 4 * 1.8 = 8.2 s; ideal 2 s (links do not count): 4.1.
    route = RACKS[:, :2, :2, :4]
    cluster = make_cluster(
        [[[2], [2]]] * 2, racks=[[0, 1]] * 2, links=[2.5] * 4, link_id=[list(range(4))] * 2, route=route
    )
    jobs = make_jobs({"W": 2}, {"W": 2, "home": 3})
    r = run(cluster, jobs, RING, SPREAD, interference="analytic")
    assert list(r.partition) == [0, 1]
    close(r.finish_s, [410, 410])
    close(run(cluster, jobs, RING, SPREAD).finish_s, [250, 250])


# --------------------------------------------------------------------------------------------------------------- time


def test_boundaries():
    # 4 GPUs. Job 0 holds them until 70, so job 1 (submitted at 60 exactly) starts at 120; job 2 behind it at 240.
    jobs = make_jobs({"g": 4, "duration": 70}, {"g": 4, "submit": 60}, {"g": 4, "submit": 61, "duration": 1})
    r = run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO)
    close(r.start_s, [0, 120, 240])
    close(r.finish_s, [70, 220, 241])


def test_a_completion_on_a_boundary_frees_its_gpus_there():
    jobs = make_jobs({"g": 4, "duration": 60}, {"g": 4})
    close(run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO).start_s, [0, 60])


def test_idle_boundaries_are_skipped_to_the_right_one():
    for submit, start in ((6e6, 6e6), (6e6 + 0.5, 6e6 + 60), (6e6 - 0.5, 6e6)):
        r = run(TWO, make_jobs({}, {"submit": submit}), make_profiles({}), FIFO)
        assert r.start_s[1] == start


def test_rounds_limit_the_placements_of_a_boundary():
    jobs = make_jobs(*[{}] * 4)
    close(run(TWO, jobs, make_profiles({}), FIFO, rounds=3).start_s, [0, 0, 0, 60])


def test_slots():
    # One running slot: one after the other. Job 0 ends at 100, so the next starts at 120, the third at 240.
    jobs = make_jobs({}, {}, {"home": 1})
    cluster = make_cluster([[[4]], [[4]]])
    close(run(cluster, jobs, make_profiles({}), FIFO, running_slots=1).start_s, [0, 120, 0])
    # One queue slot: job 1 stays in the backlog until the next boundary, and job 2 of the other partition behind it.
    close(run(cluster, jobs, make_profiles({}), FIFO, queue_slots=1).start_s, [0, 60, 60])


def test_horizon():
    jobs = make_jobs({"g": 4}, {"g": 4}, {"g": 4}, {"g": 5}, {"g": 4, "submit": 1000})
    r = run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO, horizon_s=180)
    assert r.status == ["finished", "running", "queued", "rejected", "backlog"]
    close(r.start_s, [0, 120, math.nan, math.nan, math.nan])
    close(r.finish_s, [100, math.nan, math.nan, math.nan, math.nan])
    assert list(r.partition) == [0, 0, 0, -1, -1]


def test_rejection_and_the_next_partition_that_could_hold_it():
    # Partitions of 2, 4 and 8 GPUs in one group. g = 3 from home 0 -> 1; W = 6 of g = 1 from home 0 -> 2, from home 5
    # (= 2) stays; g = 3, W = 3 fits nowhere: floor(8/3) = 2.
    cluster = make_cluster([[[2]], [[4]], [[8]]])
    jobs = make_jobs({"g": 3}, {"W": 6}, {"W": 2, "home": 5}, {"g": 3, "W": 3})
    r = run(cluster, jobs, make_profiles({}), FIFO)
    assert r.status == ["finished"] * 3 + ["rejected"] and list(r.partition) == [1, 2, 2, -1]


# --------------------------------------------------------------------------------------------------------- forwarding


TWINS = make_cluster([[[2]], [[2]]])


def test_forward():
    # Round 1: 0 places job 0; 1 has nothing and waits. Round 2: job 1 goes to 1, which sees it at the next boundary.
    jobs = make_jobs({"g": 2}, {"g": 2})
    r = run(TWINS, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward=True))
    assert list(r.partition) == [0, 1]
    close(r.start_s, [0, 60])
    r = run(TWINS, jobs, make_profiles({}), FIFO)
    assert list(r.partition) == [0, 0]
    close(r.start_s, [0, 120])
    r = run(TWINS, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward=True), max_forwards=0)
    close(r.start_s, [0, 120])


def test_forward_goes_to_the_emptiest_partition_with_an_empty_queue():
    # Partition 1 has 2 free GPUs, 2 and 3 have 4: job 1 goes to 2.
    cluster = make_cluster([[[4]], [[2]], [[4]], [[4]]])
    r = run(cluster, make_jobs({"g": 4}, {"g": 2}), make_profiles({}), make_policy("pack", "fifo", forward=True))
    assert list(r.partition) == [0, 2]


def test_forwards_in_one_round_to_a_queue_with_one_slot():
    # Both schedulers forward to 2 in the first round; the lower one gets the slot, the other has waited.
    def policy(state, p):
        if p < 2 and state.now == 0 and state.queue[p]:
            return "forward", state.queue[p][0], 2
        return FIFO(state, p)

    cluster = make_cluster([[[2]], [[2]], [[2]]])
    jobs = make_jobs({"home": 0}, {"home": 1})
    r = run(cluster, jobs, make_profiles({}), policy, queue_slots=1)
    assert list(r.partition) == [2, 1]
    close(r.start_s, [60, 60])


def test_a_job_is_forwarded_at_most_max_forwards_times():
    def policy(state, p):
        return ("forward", state.queue[p][0], 1 - p) if state.queue[p] else ("wait",)

    # Round 1: 0 -> 1, but 1 has waited. Boundary 60: 1 -> 0; 0 has waited. Then nobody may move it.
    r = run(TWINS, make_jobs({}), make_profiles({}), policy)
    assert r.status == ["queued"] and r.partition[0] == 0
    r = run(TWINS, make_jobs({}), make_profiles({}), policy, max_forwards=3)
    assert r.status == ["queued"] and r.partition[0] == 1


def test_an_illegal_action_is_a_wait():
    def policy(state, p):
        return ("place", state.queue[p][0], {0: 3}, {}) if state.queue[p] else ("wait",)

    assert run(TWINS, make_jobs({"W": 3}), make_profiles({}), policy).status == ["rejected"]
    assert run(TWINS, make_jobs({"W": 2}), make_profiles({}), policy).status == ["queued"]


def test_only_a_queued_job_may_be_placed_on_free_gpus_in_a_free_slot():
    # Job 1 arrives at 120; before that its placement is a wait. Job 0 is never placed.
    def early(state, p):
        return "place", 1, {0: 1}, {}

    r = run(TWO, make_jobs({}, {"submit": 100}), make_profiles({}), early)
    assert r.status == ["queued", "finished"] and r.start_s[1] == 120
    # 2 workers of 2 GPUs do not fit a group of 2.
    r = run(
        make_cluster([[[2], [2]]]),
        make_jobs({"W": 2, "g": 2}),
        make_profiles({}),
        lambda state, p: ("place", 0, {0: 2}, {}),
    )
    assert r.status == ["queued"]
    policy = scripted({0: {0: 1}, 1: {1: 1}})
    assert list(run(TWO, make_jobs({}, {}), make_profiles({}), policy, running_slots=1).start_s) == [0, 120]


def test_forward_passes_over_a_partition_with_a_queue():
    # Partition 1 has 2 free GPUs but its own second job (4 GPUs) waits there; partition 2 has an empty queue.
    jobs = make_jobs({"g": 4}, {"g": 2}, {"g": 2, "home": 1}, {"g": 4, "home": 1})
    cluster = make_cluster([[[4]], [[4]], [[2]]])
    r = run(cluster, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward=True))
    assert r.partition[1] == 2


# ----------------------------------------------------------------------------------------------------------- policies


def test_q():
    assert [q(x) for x in (0.5, 0.0008, 0.00088, -3, 1e7, 2e6)] == [500, 0, 1, 0, 10**9, 10**9]


def starts(policy, jobs):
    """Start times on 4 GPUs in one group."""
    return list(run(make_cluster([[[4]]]), jobs, make_profiles({}), policy).start_s)


def test_orders_and_backfill():
    # Gangs of 4 GPUs; the first is alone at 0, the others are all queued when it ends at 50.
    first = {"g": 4, "duration": 50}
    jobs = make_jobs(first, {"g": 4, "submit": 1, "duration": 40}, {"g": 4, "submit": 2, "duration": 30})
    assert starts(make_policy("pack", "fifo"), jobs) == [0, 60, 120]
    assert starts(make_policy("pack", "sjf"), jobs) == [0, 120, 60]
    # area: 4 * 40 = 160 against 2 * 70 = 140.
    jobs = make_jobs(first, {"g": 4, "submit": 1, "duration": 40}, {"W": 2, "submit": 2, "duration": 70})
    assert starts(make_policy("pack", "area"), jobs) == [0, 180, 60]
    assert starts(make_policy("pack", "sjf"), jobs) == [0, 60, 120]
    # las: tenant 0 has had 4 * 50 GPU-seconds, tenant 1 none.
    jobs = make_jobs(first, {"g": 4, "submit": 1, "duration": 40}, {"g": 4, "submit": 2, "duration": 50, "tenant": 1})
    assert starts(make_policy("pack", "las"), jobs) == [0, 120, 60]
    # Backfill: 2 GPUs are free, the first in the queue needs 4.
    jobs = make_jobs({"g": 2}, {"g": 4}, {"g": 1})
    assert starts(make_policy("pack", "fifo"), jobs) == [0, 120, 240]
    assert starts(make_policy("pack", "fifo", backfill=True), jobs) == [0, 120, 0]


def placement(name, gpus, jobs, profiles=None, racks=None):
    """Where the last job goes."""
    profiles = make_profiles({}) if profiles is None else profiles
    return run(make_cluster(gpus, racks=racks), make_jobs(*jobs), profiles, make_policy(name, "fifo")).workers[-1]


def test_pack_containers():
    # A group that holds it: group 1 has 2 free, the others 4. A server: 6 workers do not fit a group of 4: server 1 (6)
    # is tighter than server 0 (8). A rack: 10 workers: rack 1 (6 + 4).
    assert placement("pack", [[[4, 2], [4, 4]]], [{"W": 2}]) == {1: 2}
    assert placement("pack", [[[4, 4], [2, 4]]], [{"W": 5}]) == {2: 2, 3: 3}
    racks = [[0, 0, 1, 1]]
    assert placement("pack", [[[4, 4], [4, 4], [4, 0], [4, 4]]], [{"W": 9}], racks=racks) == {6: 4, 7: 4, 4: 1}
    # The partition: 21 workers: servers by capacity 8, 8, 8, 4.
    assert placement("pack", [[[4, 4], [4, 0], [4, 4], [4, 4]]], [{"W": 21}], racks=racks) == {
        0: 4,
        1: 4,
        4: 4,
        5: 4,
        6: 4,
        7: 1,
    }


def test_load_balance():
    # Two servers of (2, 4) and (4, 0): server fractions 0, 0: most free group: group 1 (4, the tie with group 2 goes to
    # the lower). Then server 0 has used 1/6: group 2. Server 1 1/4: group 1 again (3 free against 2).
    assert placement("load-balance", [[[2, 4], [4, 0]]], [{"W": 3}]) == {1: 2, 2: 1}
    # (4, 4) and (3, 0): group 0; then server 0 has used 1/8, so group 2; then 1/8 < 1/3: group 1, the freer one.
    assert placement("load-balance", [[[4, 4], [3, 0]]], [{"W": 3}]) == {0: 1, 1: 1, 2: 1}


def test_tetris():
    # GPUs only (no cores, bytes): (1/G)(free/G): G = 2: 0.5; G = 4: 0.25. Then 0.25 = 0.25: lowest index, group 0.
    # Then group 0 0, so the third goes to group 1.
    assert placement("tetris", [[[2], [4]]], [{"W": 3}]) == {0: 2, 1: 1}
    # G = 2 and 3: 1/2; then 1/2 * 1/2 < 1/3.
    assert placement("tetris", [[[2], [3]]], [{"W": 2}]) == {0: 1, 1: 1}
    # Job 0 takes group 0 of 2 and 4 GPUs. For job 1 the GPU terms are equal (1/2 * 1/2, 1/4), but no CPU (8 of 8 cores)
    # or PCIe (10 bytes in 1 s) is left on group 0.
    for model in ({"cpu_cores": 8}, {"input_bytes": 10}):
        assert placement("tetris", [[[2], [4]]], [{}, {}], make_profiles(model)) == {1: 1}
    # NIC: job 0 takes a GPU on both servers of 2 and 2/3 of their NICs. Job 1 (demand min(1, 10/5)): 1/4 + 1/3 there,
    # 1/4 + 1 on the server of 4, then 3/16 + 1.
    assert placement("tetris", [[[2], [2], [4]]], [{"W": 2}, {"W": 2}], RING) == {2: 2}


def test_least_interference_and_contention_aware():
    # Job 0 (2 workers of 8 GPUs' worth: one group) loads PCIe of group 0; group 1 shares its server's NIC and QPI,
    # which are idle: pressure 0.
    jobs = [{"W": 2}, {"W": 2}]
    assert placement("least-interference", [[[4, 4], [4, 4]]], jobs, RING) == {1: 2}
    assert placement("contention-aware", [[[4, 4], [4, 4]]], jobs, RING) == {1: 2}
    assert placement("pack", [[[4, 4], [4, 4]]], jobs, RING) == {0: 2}
    # 5 workers need a server; server 0 (capacity 6) has pressure, server 1 none.
    assert placement("contention-aware", [[[4, 4], [4, 4]]], [{"W": 2}, {"W": 5}], RING) == {2: 4, 3: 1}
    # Least interference does not mind: groups 1, 2, 3 have none, group 0 has.
    assert placement("least-interference", [[[4, 4], [4, 4]]], [{"W": 2}, {"W": 5}], RING) == {1: 4, 2: 1}


def make_state(cluster, jobs, profiles, running=()):
    """A state in which the first jobs run in partition 0 as given by `running`, (w, u) each, and the others queue."""
    table = oracle.read_jobs(jobs, profiles)
    state = oracle.State(oracle.Hardware(cluster), table, oracle.make_interference("analytic"), 99, 99, 2)
    state.queue[0] = list(range(len(running), len(table)))
    for j, (w, u) in enumerate(running):
        state.running[0].append(
            oracle.Running(
                job=j,
                partition=0,
                w=w,
                u=u,
                demand=oracle.demand(state.hw, 0, table[j], w, u),
                start_s=0.0,
                remaining_s=table[j].duration_s,
            )
        )
    return state


def test_pressure_of_nic_and_server():
    # Job 0 on the first servers of both racks of two: each rack has NIC 2/3: rack 0, its idle server 1 first.
    cluster = make_cluster([[[4]] * 4], racks=[[0, 0, 1, 1]])
    jobs = make_jobs({"W": 2}, {"W": 5})
    state = make_state(cluster, jobs, RING, [({0: 1, 2: 1}, {})])
    assert place(state, 0, 1, "contention-aware") == {1: 4, 0: 1}
    # Job 0 on both servers of rack 0: rack 1.
    state = make_state(cluster, jobs, RING, [({0: 1, 1: 1}, {})])
    assert place(state, 0, 1, "contention-aware") == {2: 4, 3: 1}
    # NIC of servers 0 and 1 in use: least interference passes over their idle sockets. QPI of server 0: likewise.
    cluster = make_cluster([[[2, 2]] * 3])
    state = make_state(cluster, make_jobs({"W": 2}, {}), RING, [({0: 1, 2: 1}, {})])
    assert place(state, 0, 1, "least-interference") == {4: 1}
    state = make_state(make_cluster([[[2, 2, 2]] * 2]), make_jobs({"W": 2}, {}), RING, [({0: 1, 1: 1}, {})])
    assert place(state, 0, 1, "least-interference") == {3: 1}
    # A worker on server 0, its PS on server 1: pressure 2/3 + 1/3 (PCIe), 2/3, 0: least for server 2.
    state = make_state(cluster, make_jobs({"U": 1}, {"W": 3}), RING, [({0: 1}, {2: 1})])
    assert place(state, 0, 1, "contention-aware") == {4: 2, 5: 1}
    # Server 0 (3 GPUs left) and the last three hold it most tightly; the others come in order of pressure: 2, 1.
    cluster = make_cluster([[[2, 2]] * 3 + [[3, 0]] * 3])
    state = make_state(cluster, make_jobs({"U": 1}, {"W": 3}), RING, [({0: 1}, {2: 1})])
    first = [{0: 1, 1: 2}, {6: 3}, {8: 3}, {10: 3}]
    assert candidates(state, 0, 1)[0::3] == [*first, {4: 2, 5: 1}, {2: 2, 3: 1}, None, None]


def test_candidates():
    # Servers of 2 + 2, 4 and 1 GPUs: W = 3. Pack keys: server 0: 4, server 1: 4, server 2: 99999. Gmax = 4.
    state = make_state(make_cluster([[[2, 2], [4, 0], [1, 0]]]), make_jobs({"W": 3}), RING)
    c = candidates(state, 0, 0)
    assert len(c) == 24
    assert c[0:3] == [{0: 2, 1: 1}, {0: 2, 1: 1}, {0: 1, 1: 1, 2: 1}]  # anchor 0
    assert c[3:6] == [{2: 3}, {2: 2, 0: 1}, {2: 1, 0: 1, 1: 1}]  # anchor 1
    assert c[6:9] == [{4: 1, 0: 2}, {4: 1, 0: 2}, {4: 1, 0: 1, 1: 1}]  # anchor 2; ties 4 = 4 by index
    assert c[9:12] == [None] * 3
    assert c[12:] == [None] * 12  # the first list holds every server
    # W = 2: a cap of 2 does not bind. W = 1: neither does a cap of 1.
    state = make_state(make_cluster([[[2, 2]]]), make_jobs({"W": 2}, {"W": 1}), RING)
    assert candidates(state, 0, 0)[:3] == [{0: 2}, None, {0: 1, 1: 1}]
    assert candidates(state, 0, 1)[:3] == [{0: 1}, None, None]
    # Six servers: the second list holds the other two; no pressure anywhere: by index.
    state = make_state(make_cluster([[[3], [4], [1], [4], [2], [4]]]), make_jobs({"W": 2}), RING)
    assert candidates(state, 0, 0)[0::3] == [{4: 2}, {0: 2}, {1: 2}, {3: 2}, {2: 1, 1: 1}, {5: 2}, None, None]
    # No server holds 5: the fullest first (4, 3, 2), then the others by capacity.
    state = make_state(make_cluster([[[2], [3], [4]]]), make_jobs({"W": 5}), RING)
    assert candidates(state, 0, 0)[0:9:3] == [{2: 4, 1: 1}, {1: 3, 2: 2}, {0: 2, 2: 3}]
    # Racks (0, 1, 0): the anchor's rack goes first.
    state = make_state(make_cluster([[[2], [4], [3]]], racks=[[0, 1, 0]]), make_jobs({"W": 5}), RING)
    assert candidates(state, 0, 0)[0:9:3] == [{1: 4, 2: 1}, {2: 3, 0: 2}, {0: 2, 2: 3}]
    # W = 6: one worker per group gives only 4: the third cap is invalid.
    state = make_state(make_cluster([[[2, 2], [4, 0], [1, 0]]]), make_jobs({"W": 6}), RING)
    assert [x is None for x in candidates(state, 0, 0)[:3]] == [False, False, True]


def test_greedy_wait():
    # One group of 4 GPUs. Two rings of 2: alone slowdown 1. PCIe use 10/(10 * 2) = 0.5: together comm 1.5, step 2.5,
    # slowdown 1.25 each. eff of job 1 = 1.25 + remaining_0 * 0.25 / 100. With 100 s left: 1.5.
    cluster, jobs = make_cluster([[[4]]]), make_jobs({"W": 2}, {"W": 2})

    def go(threshold, patience=0.0):
        policy = make_policy("greedy-wait", "area", True, True, threshold, patience=patience)
        return list(run(cluster, jobs, RING, policy, interference="analytic").start_s)

    assert go(1.5) == [0, 0]
    # Below: job 1 waits. At 60 job 0 has 40 s left: 1.25 + 0.1 = 1.35.
    assert go(1.499) == [0, 60]
    assert go(1.35) == [0, 60]
    # And then until job 0 is done at 100; an empty partition takes it whatever the threshold.
    assert go(1.34) == [0, 120]
    assert go(0.0) == [0, 120]
    # Patience: at 0 the wait is until job 0 ends, 100 s, and 0.5 * 100 s would be lost. At 60 nothing can change before
    # the next boundary, 60 s, and 0.35 * 100 s would be lost: 0.583 of it.
    assert go(1.0, 0.5) == [0, 0]
    assert go(1.0, 0.499) == [0, 120]
    assert go(1.34, 0.499) == [0, 120]


def test_greedy_wait_takes_the_candidate_of_least_effect():
    policy = make_policy("greedy-wait", "area", True, True)
    jobs = make_jobs({"W": 2}, {"W": 2})
    # Two servers: the first anchor is server 0 (tighter), eff 1.5; the second is server 1, eff 1.
    assert run(TWO, jobs, RING, policy, interference="analytic").workers == [{0: 2}, {1: 2}]
    # One server of two groups: caps 4 and 2 fill group 0: eff 1.5 as above. Cap 1 splits the job over QPI: 1 s alone,
    # but PCIe of group 0 is stretched to 1.5 by job 0: step 2.5, slowdown 1.25; job 0 the same: also 1.5. The tie goes
    # to the lower candidate.
    r = run(make_cluster([[[4, 4]]]), jobs, RING, policy, interference="analytic")
    assert r.workers == [{0: 2}, {0: 2}]


def test_greedy_wait_window():
    # Job 0 fills 2 of 4 GPUs. Jobs 1 and 2 would share its PCIe (eff 1.5 at once), job 3 has one rank, no traffic.
    # By fifo it is the third feasible job: inside a window of 3; inside one of 2 once job 0 is done and job 1 has gone
    # ahead of it, at 120 (at 60 job 0 has 40 s left: eff 1.35 > 1.1).
    jobs = make_jobs({"W": 2}, {"W": 2}, {"W": 2}, {"W": 1})
    for window, start in ((2, 120), (3, 0)):
        policy = make_policy("greedy-wait", "fifo", True, False, 1.1, window, 0.0)
        assert run(make_cluster([[[4]]]), jobs, RING, policy, interference="analytic").start_s[3] == start


# --------------------------------------------------------------------------------------------------------- invariants


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    name=st.sampled_from(NAMES),
    order=st.sampled_from(ORDERS),
    backfill=st.booleans(),
    forward=st.booleans(),
)
def test_invariants(seed, name, order, backfill, forward):
    """GPUs are never overcommitted, starts are boundaries, and no job beats its ideal run time."""
    rng = np.random.default_rng(seed)
    gpus = rng.integers(0, 5, (2, 3, 2))
    gpus[:, 0, 0] = 4
    cluster = make_cluster(
        gpus, racks=[[0, 0, 1]] * 2, links=[4.0] * 4, link_id=[list(range(4))] * 2, route=RACKS[:, :2, :2, :4]
    )
    rows = [
        {
            "submit": float(x),
            "duration": float(rng.uniform(1, 300)),
            "W": int(rng.integers(1, 7)),
            "g": int(rng.choice([1, 1, 2])),
            "U": int(rng.integers(0, 3)),
            "model": int(rng.integers(2)),
            "tenant": int(rng.integers(2)),
            "home": int(rng.integers(2)),
        }
        for x in np.sort(rng.uniform(0, 400, 8))
    ]
    profiles = make_profiles(
        {"gradient_bytes": 5, "cpu_cores": 3, "sens_cpu": 0.5, "ps_cores": 2},
        {"gradient_bytes": 1, "input_bytes": 2, "sens_pcie": 0.3},
    )
    r = run(cluster, make_jobs(*rows), profiles, make_policy(name, order, backfill, forward), interference="analytic")
    flat = gpus.reshape(2, -1)
    for j, row in enumerate(rows):
        if r.status[j] == "rejected":
            assert all((flat[p] // row["g"]).sum() < row["W"] for p in range(2))
            continue
        assert r.status[j] == "finished"
        assert sum(r.workers[j].values()) == row["W"] and sum(r.ps[j].values()) == row["U"]
        assert r.start_s[j] % 60 == 0 and r.start_s[j] >= row["submit"]
        assert r.finish_s[j] - r.start_s[j] >= row["duration"] * (1 - 2e-6)
    for t in sorted(set(r.start_s[~np.isnan(r.start_s)])):
        used = np.zeros_like(flat)
        for j, row in enumerate(rows):
            if r.start_s[j] <= t < r.finish_s[j]:
                for a, count in r.workers[j].items():
                    used[r.partition[j], a] += count * row["g"]
        assert (used <= flat).all()


def test_unordered_jobs_are_refused():
    with pytest.raises(ValueError, match="order"):
        run(TWO, make_jobs({"submit": 1}, {"submit": 0}), RING, FIFO)
