"""The oracle's traffic, contention and durations, against numbers worked out with a pencil."""

import numpy as np

from tests.oracle.cases import (
    FIFO,
    RACKS,
    RING,
    SPREAD,
    TWO,
    close,
    make_cluster,
    make_jobs,
    make_profiles,
    run,
    scripted,
)
from tests.oracle.cluster import Hardware, read_jobs
from tests.oracle.contention import ideal_step, traffic
from tests.oracle.filling import ps_of


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
    r = run(make_cluster([[[4], [4]]], speed=[[[0.5], [1]]]), make_jobs({}), RING, scripted({0: {0: 1}}))
    close(r.finish_s, [200])


def test_ideal_of_a_job_larger_than_a_server():
    # n = 8, b = 2 * 7/8 * 10 = 17.5; m_g = 2 = m_s: no QPI, slow as it is; max(PCIe 1.75, NIC 3.5): ideal 4.5 s.
    hw = Hardware(make_cluster([[[4], [4]]], qpi=1))
    close(ideal_step(hw, read_jobs(make_jobs({"W": 8}), RING)[0]), 4.5)
    # With 2 groups of 2 per server and QPI 4: W = 4: m_g = 2, m_s = 1: b = 15, max(1.5, 15/4) = 3.75.
    hw = Hardware(make_cluster([[[2, 2], [2, 2]]], qpi=4))
    close(ideal_step(hw, read_jobs(make_jobs({"W": 4}), RING)[0]), 4.75)
    # PS, W = 8: m_g = 4, m_s = 2, k = min(4, 2): PCIe 80/4/10 = 2; QPI 80/4 * 1/2 / 4 = 2.5;
    # NIC 2 * 80/2 * 1/2 / 5 = 8: ideal 9.
    job = read_jobs(make_jobs({"W": 8, "U": 3}), RING)[0]
    close(ideal_step(hw, job), 9)
    # And with a fast NIC: 1 + 2.5.
    close(ideal_step(Hardware(make_cluster([[[2, 2], [2, 2]]], qpi=4, nic=1000)), job), 3.5)


# ------------------------------------------------------------------------------------------------------------ traffic


def test_ps_bytes():
    # Three servers of one group, W = 4 as (2, 1, 1), U = 2. C U/W = 1, 1.5, 2: u = (1, 0, 1).
    # NIC: (2*1 + 1*2) B/2 = 2B; (1*2 + 0) B/2 = B; (1*1 + 1*3) B/2 = 2B. PCIe: w B.
    cluster = make_cluster([[[4], [4], [4]]])
    job = read_jobs(make_jobs({"W": 4, "U": 2}), RING)[0]
    w = {0: 2, 1: 1, 2: 1}
    assert ps_of(job, w) == {0: 1, 2: 1}
    assert traffic(Hardware(cluster), 0, job, w, {0: 1, 2: 1}) == {
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
    hw = Hardware(make_cluster([[[2, 2], [2, 2]]]))
    # PS: server 0 has w = (2, 1), u = (1, 0): (3*1 - 2) B/2 = 5; server 1 has w = (1, 0), u = (0, 1): (1 - 0) B/2 = 5.
    job = read_jobs(make_jobs({"W": 4, "U": 2}), RING)[0]
    x = traffic(hw, 0, job, {0: 2, 1: 1, 2: 1}, {0: 1, 3: 1})
    assert (x["qpi", 0, 0], x["qpi", 0, 1]) == (5, 5) and ("pcie", 0, 3) not in x
    # Ring of 4: b = 15; server 0 uses two sockets, server 1 one.
    job = read_jobs(make_jobs({"W": 4}), RING)[0]
    x = traffic(hw, 0, job, {0: 2, 1: 1, 2: 1}, {})
    assert x["qpi", 0, 0] == 15 and ("qpi", 0, 1) not in x and x["nic", 0, 1] == 15


def test_link_bytes():
    # A server of 2 GPUs in each of 3 racks.
    cluster = make_cluster(
        [[[2], [2], [2]]] * 2, racks=[[0, 1, 2]] * 2, links=[4.0] * 6, link_id=[list(range(6))] * 2, route=RACKS
    )
    hw = Hardware(cluster)
    # Ring over racks 0 and 2, n = 2, b = 10: 0 -> 2 and 2 -> 0: up0, down2, up2, down0.
    job = read_jobs(make_jobs({"W": 2}), RING)[0]
    x = traffic(hw, 1, job, {0: 1, 2: 1}, {})
    assert {m: v for m, v in x.items() if m[0] == "link"} == {("link", e): 10 for e in (0, 1, 4, 5)}
    # Ring over 3 racks, n = 3, b = 40/3: each link once.
    job = read_jobs(make_jobs({"W": 3}), RING)[0]
    x = traffic(hw, 0, job, {0: 1, 1: 1, 2: 1}, {})
    close([x["link", e] for e in range(6)], [40 / 3] * 6)
    # It goes round in ascending order: of one-way links 0 -> 1 and 0 -> 2, the ring takes the first.
    one_way = np.zeros((1, 3, 3, 2))
    one_way[0, 0, 1, 0] = one_way[0, 0, 2, 1] = 1
    one = make_cluster([[[2], [2], [2]]], racks=[[0, 1, 2]], links=[4.0] * 2, link_id=[[0, 1]], route=one_way)
    x = traffic(Hardware(one), 0, job, {0: 1, 1: 1, 2: 1}, {})
    assert [m for m in x if m[0] == "link"] == [("link", 0)]
    # PS: w = (2, 1, 0), u = (1, 0, 0): each way between racks 0 and 1: (2*0 + 1*1) B = B.
    job = read_jobs(make_jobs({"W": 3, "U": 1}), RING)[0]
    x = traffic(hw, 0, job, {0: 2, 1: 1}, {0: 1})
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


# --------------------------------------------------------------------------------------------------------- shared GPUs


def test_fractions_on_one_gpu():
    # Two GPUs, kappa_gpu 1. 600 opens GPU 0, 500 does not fit there and opens GPU 1, 400 fits both; GPU 0 has less left
    # (400 < 500). Together 2 s a step: jobs 0 and 2 run at half speed, 100 s each; job 1 is alone.
    jobs = make_jobs({"milli": 600}, {"milli": 500}, {"milli": 400, "duration": 50})
    r = run(make_cluster([[[2]]]), jobs, make_profiles({}), FIFO, interference="analytic", rounds=9)
    assert r.workers == [{0: 1}] * 3
    # Job 2 is done after 100 s; job 0 has 50 s left and then runs alone.
    close(r.finish_s, [150, 100, 100])


def test_a_shared_gpu_is_not_free():
    # A whole job waits until the last fraction has left, and the law takes the place of the strength where it covers.
    jobs = make_jobs({"milli": 10}, {"milli": 10}, {})
    law = lambda gpu_type, model, others: 1 + 3 * len(others)
    r = run(make_cluster([[[1]]]), jobs, make_profiles({}), FIFO, interference="analytic", law=law)
    close(r.start_s, [0, 0, 420])
    close(r.finish_s, [400, 400, 520])
