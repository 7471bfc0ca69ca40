"""The oracle's policies, against numbers worked out with a pencil."""

import functools

from tests.oracle.candidates import candidates
from tests.oracle.cases import RING, TWO, close, make_cluster, make_jobs, make_profiles, run
from tests.oracle.cluster import Hardware, read_jobs
from tests.oracle.contention import demand, make_interference
from tests.oracle.filling import q
from tests.oracle.policies import kept_for, make_policy, may_pass, place
from tests.oracle.state import Running, State

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
    assert starts(make_policy("pack", "tenants"), jobs) == [0, 120, 60]
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
    table = read_jobs(jobs, profiles)
    state = State(Hardware(cluster), table, make_interference("analytic"), 99, 99, 2)
    state.queue[0] = list(range(len(running), len(table)))
    for j, (w, u) in enumerate(running):
        state.running[0].append(
            Running(
                job=j,
                partition=0,
                w=w,
                u=u,
                demand=demand(state.hw, 0, table[j], w, u),
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
        policy = make_policy("greedy-wait", "area", True, "stay", threshold, patience=patience)
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
    policy = make_policy("greedy-wait", "area", True, "stay")
    jobs = make_jobs({"W": 2}, {"W": 2})
    # Two servers: the first anchor is server 0 (tighter), eff 1.5; the second is server 1, eff 1.
    assert run(TWO, jobs, RING, policy, interference="analytic").workers == [{0: 2}, {1: 2}]
    # One server of two groups: caps 4 and 2 fill group 0: eff 1.5 as above. Cap 1 splits the job over QPI: 1 s alone,
    # but PCIe of group 0 is stretched to 1.5 by job 0: step 2.5, slowdown 1.25; job 0 the same: also 1.5. The tie goes
    # to the lower candidate.
    r = run(make_cluster([[[4, 4]]]), jobs, RING, policy, interference="analytic")
    assert r.workers == [{0: 2}, {0: 2}]


def test_greedy_wait_by_lifetime():
    # No traffic: eff is 1 everywhere. Server 0 is wholly free in 50 s, server 1 in 100, server 2 now. A job of 80 s
    # keeps them 30, 0 or 80 s longer, one of 120 s 70, 20 or 120. A gang of 6 that runs 100 s keeps servers 2 and 0
    # 150 s longer, servers 2 and 1 100 s.
    cluster = make_cluster([[[4], [4], [4]]])
    running = [({0: 1}, {}), ({1: 1}, {})]

    def go(seconds, workers=1, **options):
        rows = [{"duration": 50}, {"duration": 100}, {"duration": seconds, "W": workers}]
        state = make_state(cluster, make_jobs(*rows), make_profiles({}), running)
        action = make_policy("greedy-wait", "sjf", True, "spread", **options)(state, 0)
        assert action[0] == "place"
        return action[2]

    assert go(80) == {0: 1}
    assert go(80, lifetime=True) == go(120, lifetime=True) == {1: 1}
    assert go(40, lifetime=True) == {0: 1}  # a tie
    assert go(100, 6) == {2: 4, 0: 2}
    assert go(100, 6, lifetime=True) == {1: 3, 2: 3}


def test_greedy_wait_window():
    # Job 0 fills 2 of 4 GPUs. Jobs 1 and 2 would share its PCIe (eff 1.5 at once), job 3 has one rank, no traffic.
    # By fifo it is the third feasible job: inside a window of 3; inside one of 2 once job 0 is done and job 1 has gone
    # ahead of it, at 120 (at 60 job 0 has 40 s left: eff 1.35 > 1.1).
    jobs = make_jobs({"W": 2}, {"W": 2}, {"W": 2}, {"W": 1})
    for window, start in ((2, 120), (3, 0)):
        policy = make_policy("greedy-wait", "fifo", True, "stay", 1.1, window, 0.0)
        assert run(make_cluster([[[4]]]), jobs, RING, policy, interference="analytic").start_s[3] == start


def test_policies_see_estimates_and_the_clock_does_not():
    # One GPU. Job 0 is thought longer than job 1 and is not: job 1 goes first; both take as long as they take.
    jobs = make_jobs({"duration": 60, "ratio": 4}, {"duration": 120, "ratio": 0.5})
    r = run(make_cluster([[[1]]]), jobs, make_profiles({}), make_policy("first-fit", "sjf"))
    close(r.start_s, [120, 0])
    close(r.finish_s, [180, 120])


def test_what_is_left_by_the_estimate():
    jobs = make_jobs({"duration": 100, "ratio": 0.5}, {"duration": 100, "ratio": 3})
    state = make_state(make_cluster([[[2]]]), jobs, make_profiles({}), [({0: 1}, {}), ({0: 1}, {})])
    short, long = state.running[0]
    for remaining, thought in ((100, 50), (60, 10), (50, 5), (20, 8)):  # overdue: a tenth of the 50, 80 done
        short.remaining_s = remaining
        close(state.estimated_left_s(short), thought)
    long.remaining_s = 1
    close(state.estimated_left_s(long), 201)


def test_reservation_holds_back_what_would_delay_the_gang():
    # 8 GPUs: job 0 has four until 100, job 1 one until 60. Job 2 needs six: at 100, with two to spare. Job 3 has a
    # larger area (360, not 300), would not be done by then, and takes more than two.
    cluster = make_cluster([[[8]]])
    jobs = make_jobs(
        {"duration": 100, "W": 4}, {"duration": 60, "W": 1}, {"duration": 50, "W": 6}, {"duration": 120, "W": 3}
    )
    state = make_state(cluster, jobs, make_profiles({}), [({0: 4}, {}), ({0: 1}, {})])
    assert kept_for(state, 0, [2, 3]) == (2, 100, 2)
    assert kept_for(state, 0, [3]) is None
    pack = functools.partial(make_policy, "pack", "sjf", True)
    assert pack()(state, 0)[:2] == ("place", 3)
    assert pack(reserve=True)(state, 0) == ("wait",)
    pass_gang = lambda order, *jobs, **gang: may_pass(state, order, 0, *jobs, **gang)
    assert not pass_gang("sjf", 3, 2, wait=119.8, spare=2)
    assert pass_gang("sjf", 3, 2, wait=120, spare=2)
    assert pass_gang("sjf", 3, 2, wait=119.8, spare=3)
    assert pass_gang("sjf", 1, 2, wait=10, spare=0), "a smaller area"
    assert pass_gang("fifo", 0, 2, wait=10, spare=0) and not pass_gang("sjf", 0, 2, wait=10, spare=0), "by the order"


def test_what_comes_before_the_gang_is_not_held_back():
    jobs = make_jobs({"duration": 6000, "W": 4}, {"duration": 20000, "W": 1}, {"duration": 100, "W": 8})
    state = make_state(make_cluster([[[8]]]), jobs, make_profiles({}), [({0: 4}, {})])
    assert make_policy("pack", "fifo", True, reserve=True)(state, 0)[:2] == ("place", 1)
    assert make_policy("pack", "sjf", True, reserve=True)(state, 0) == ("wait",)


def test_nothing_is_kept_for_a_gang_that_waits_for_a_shared_gpu():
    jobs = make_jobs({"duration": 50, "milli": 500}, {"duration": 10, "W": 2}, {"duration": 1000, "W": 1})
    state = make_state(make_cluster([[[2]]]), jobs, make_profiles({}), [({0: 1}, {})])
    assert kept_for(state, 0, [1, 2]) is None
    assert make_policy("pack", "sjf", True, reserve=True)(state, 0)[:2] == ("place", 2)
