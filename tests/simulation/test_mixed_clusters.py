"""What a cluster with several GPU types must give: a server more is no loss, greedy-wait is no worse than packing."""

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import DONE, STOPPED, Outcome
from jaxsched.simulation.settings import Settings, compact_tenants
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import JobList, make_job_list
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.workload.models import MODEL_NAMES

TYPES = ("K80", "T4", "P100", "V100", "A100", "H100", "B200")


def cluster_of(kinds: list[str], schedulers: int) -> Cluster:
    return build([Server(gpu_type=kind) for kind in kinds], leaf_spine(len(kinds)), schedulers)


def lists_of(workload: str, count: int, jobs: int, load: float, gpus: int, schedulers: int, seed: int) -> list[JobList]:
    options = {"num_jobs": jobs, "load": load, "total_gpus": gpus, "schedulers": schedulers}
    return [get_workload(workload, WorkloadOptions(seed=seed + i, **options))[0] for i in range(count)]


def mean_jct_s(cluster: Cluster, lists: list[JobList], specs: list[str]) -> dict[str, float]:
    found = simulate(parse_all(specs), cluster, compact_tenants(lists), Settings(engine="compiled"))
    return {spec: float(np.mean([run.jct_s[run.finished].mean() for run in found[spec]])) for spec in specs}


def played(cluster: Cluster, jobs: JobList, specs: list[str], **settings) -> list[Outcome]:
    found = simulate(parse_all(specs), cluster, compact_tenants([jobs]), Settings(preemption=True, **settings))
    return [runs[0] for runs in found.values()]


@pytest.mark.slow
def test_a_job_moves_to_faster_gpus_once_that_makes_up_for_five_restarts():
    """The A100s become free before that; nobody is queued, and none arrives."""
    cluster, settings = cluster_of(["A100", "V100"], 2), dict(record_placements=True)
    rules = [f"pack:mlfq+spread+preempt{option}" for option in ("", "+faster")]
    alone, gangs = (
        make_job_list([0.0, 60.0], [400.0, 9000.0], [gpus, gpus], home=[0, 1], model=MODEL_NAMES.index("gpt2"))
        for gpus in (1, 8)
    )
    (by_speed,) = played(cluster, alone, rules[:1], **settings)
    stays, moves = played(cluster, gangs, rules, **settings)
    gain = by_speed.run_s[1] / 9000.0 / (by_speed.run_s[0] / 400.0)
    slowdown = stays.run_s / gangs.duration_s  # of gangs, which do not only compute
    ran_s = 60.0 * np.ceil(5 * 60.0 * gain / (gain - 1) / 60.0)
    assert gain > 1.5 and stays.attempts.partition.tolist() == [0, 1]
    assert moves.attempts.partition.tolist() == [0, 1, 0] and moves.attempts.ended.tolist() == [DONE, STOPPED, DONE]
    assert moves.attempts.end_s[1] == 60.0 + ran_s
    again_s = 60.0 + ran_s + 60.0  # the scheduler there has waited at that boundary
    assert moves.attempts.start_s[2] == again_s
    left_s = 9000.0 - ran_s / slowdown[1]
    assert moves.finish_s[1] == pytest.approx(again_s + 60.0 + left_s * slowdown[0], rel=1e-5)


def test_with_gpus_of_one_speed_nobody_moves():
    (jobs,) = lists_of("distributed", 1, 200, 0.9, 32, 2, 0)
    rules = ["pack:las+backfill+spread+preempt", "pack:las+backfill+spread+preempt+faster"]
    without, with_it = played(cluster_of(["V100"] * 4, 2), jobs, rules, engine="compiled")
    assert without.interruptions.stops.any()
    np.testing.assert_array_equal(with_it.finish_s, without.finish_s)


def test_a_job_starts_where_its_gpus_are_faster():
    """Both may start at home, on V100s. Both go to the A100s, where only one fits: the other goes on to V100s."""
    cluster = cluster_of(["A100", "V100", "V100"], 3)
    jobs = make_job_list([0.0, 0.0], [600.0, 600.0], [8, 8], home=[1, 2], model=MODEL_NAMES.index("gpt2"))
    specs = ["pack:sjf+backfill+spread", "pack:sjf+backfill+spread+faster", "greedy-wait", "pack:sjf+faster"]
    found = simulate(parse_all(specs), cluster, compact_tenants([jobs]), Settings(engine="compiled"))
    partitions = {spec: runs[0].partition.tolist() for spec, runs in found.items()}
    assert partitions[specs[0]] == [1, 2] and partitions[specs[1]] == partitions[specs[2]] == [0, 1]
    assert partitions[specs[3]] == [1, 2]  # it never forwards
    assert found[specs[1]][0].forwards.tolist() == [1, 2]
    np.testing.assert_array_equal(found[specs[1]][0].start_s, [60.0, 120.0])  # each forward takes an interval


def start_of_a_gang(spec: str, *others: list) -> tuple[int, float]:
    """Where and when a gang of 6 starts that comes last, to two V100 servers, for 100 hours. Partition 0: A100s.

    `others`: submissions, run times, GPUs and homes of the other jobs.
    """
    cluster = cluster_of(["A100", "A100", "V100", "V100"], 2)
    gang = (600.0, 360_000.0, 6, 1)
    columns = ([*column, last] for column, last in zip(others, gang, strict=True))
    submit_s, run_s, gpus, home = columns
    jobs = make_job_list(submit_s, run_s, gpus, home=home, model=MODEL_NAMES.index("gpt2"))
    found = simulate(parse_all([spec]), cluster, compact_tenants([jobs]), Settings(engine="compiled"))
    return int(found[spec][0].partition[-1]), float(found[spec][0].start_s[-1])


@pytest.mark.parametrize(("spec", "partition"), [("pack:sjf+backfill+spread+faster", 0), ("greedy-wait", 1)])
def test_who_looks_ahead_goes_to_faster_gpus_only_where_servers_are_few(spec, partition):
    """On each A100 server a job has 5 of 8 GPUs: the gang would be spread over both."""
    assert start_of_a_gang(spec, [0.0, 0.0], [180_000.0] * 2, [5, 5], [0, 0])[0] == partition


def test_who_had_better_wait_goes_to_faster_gpus():
    """On each V100 server a job has 5 of 8 GPUs until 1260 s: the gang waits for that if the A100s are not free."""
    submit_s, home = [0.0, 0.0, 60.0, 60.0], [0, 0, 1, 1]
    free, taken = (
        start_of_a_gang("greedy-wait", submit_s, [fill_s, fill_s, 1200.0, 1200.0], [8, 8, 5, 5], home)
        for fill_s in (300.0, 3e6)
    )
    assert free[0] == 0 and free[1] < 1200.0
    assert taken[0] == 1 and taken[1] >= 1260.0


@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slower)])
def test_who_looks_ahead_leaves_faster_gpus_to_those_who_come_first(engine):
    """Four gangs come while one has the A100s for an hour. The first waits for it, the others start on V100s."""
    cluster = cluster_of(["A100", "V100", "V100", "V100"], 1)
    jobs = make_job_list([0.0] + [60.0] * 4, [3600.0] + [7200.0] * 4, [8] * 5, model=MODEL_NAMES.index("gpt2"))
    found = simulate(parse_all(["greedy-wait"]), cluster, compact_tenants([jobs]), Settings(engine=engine))
    start_s = found["greedy-wait"][0].start_s
    assert start_s[1] > 1000.0
    np.testing.assert_array_equal(start_s[2:], 60.0)


@pytest.mark.slow
def test_one_fast_server_more_helps_and_leaves_no_gpu_idle():
    """4 servers of V100s and one of A100s, as where greedy-wait once waited for the A100s alone."""
    lists = lists_of("philly-like", 2, 300, 0.8, 32, 1, 0)
    specs = ["pack:sjf+backfill", "greedy-wait:sjf"]
    before, after = (
        mean_jct_s(cluster_of(kinds, 1), lists, specs) for kinds in (["V100"] * 4, ["V100"] * 4 + ["A100"])
    )
    for spec in specs:
        assert after[spec] < 0.97 * before[spec]
    assert after[specs[1]] < 1.01 * after[specs[0]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "load", "schedulers"),
    [("philly-like", 0.7, 2), ("distributed", 0.8, 2), ("philly-like", 0.7, 1), ("distributed", 0.8, 1)],
)
def test_a_server_of_any_type_never_raises_the_mean_jct_over_20_lists_by_a_hundredth(workload, load, schedulers):
    """Over all lists: of single ones a few get worse even by a server of the same type (anomalies, Graham 1966)."""
    lists = lists_of(workload, 20, 600, load, 64, schedulers, 100)
    specs = ["pack:sjf+backfill+spread", "greedy-wait"]
    before = mean_jct_s(cluster_of(["V100"] * 8, schedulers), lists, specs)
    for kind in TYPES:
        after = mean_jct_s(cluster_of(["V100"] * 8 + [kind], schedulers), lists, specs)
        for spec in specs:
            assert after[spec] <= 1.01 * before[spec], (kind, spec)


@pytest.mark.long
@pytest.mark.parametrize(("order", "forward"), [("sjf", "spread"), ("area", "forward")])
def test_greedy_wait_is_no_worse_than_packing_on_9_of_10_mixed_clusters(order, forward):
    rng, better = np.random.default_rng(7), 0
    for number in range(10):
        servers, schedulers = int(rng.integers(5, 13)), int(rng.integers(1, 3))
        kinds = rng.choice(TYPES[:-1], int(rng.integers(2, 4)), replace=False)
        cluster = cluster_of([str(kind) for kind in rng.choice(kinds, servers)], schedulers)
        gpus, load = total_gpus(cluster), float(rng.choice([0.6, 0.8, 0.9]))
        speed = float((np.asarray(cluster.group_gpus) * np.asarray(cluster.group_speed)).sum())
        lists = lists_of("distributed", 5, 500, load * speed / gpus, gpus, schedulers, 50 * number)
        specs = [f"pack:{order}+backfill+{forward}", f"greedy-wait:{order}+{forward}"]
        pack, greedy = mean_jct_s(cluster, lists, specs).values()
        better += greedy <= pack
    assert better >= 9
