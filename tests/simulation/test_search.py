"""Search: never worse than its rule where all is known, blind to what is hidden, and what it says it did holds."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.event_loop import Run
from jaxsched.event_loop.search import BelievedState, Choice, SearchedRun, believe_estimates, find_waiting_jobs
from jaxsched.kube.policy import GuardedPolicy
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.workload.jobs import JobList, make_job_list, to_table
from jaxsched.workload.load import WorkloadOptions, get_workload
from tests.oracle import policies as oracle_policies
from tests.oracle import simulator
from tests.support.random_cases import random_case

RULE = "greedy-wait:sjf+spread+lifetime+reserve+p1"
CLUSTER = get_cluster("leaf-spine-4", 2)


def jobs_for(seed: int = 0, count: int = 80, load: float = 1.1) -> JobList:
    """All of them fit a partition of two servers."""
    options = WorkloadOptions(num_jobs=2 * count, load=load, total_gpus=32, schedulers=2, seed=seed)
    jobs = get_workload("distributed", options)[0]
    return of(jobs, np.flatnonzero(jobs.num_gpus <= 16)[:count])


def of(jobs: JobList, rows: np.ndarray) -> JobList:
    return JobList(**{field.name: getattr(jobs, field.name)[rows] for field in dataclasses.fields(jobs)})


def all_there(jobs: JobList) -> JobList:
    return dataclasses.replace(jobs, submit_s=np.zeros(len(jobs)))


def played(spec: str, jobs: JobList, **changes) -> Outcome:
    settings = Settings(engine="compiled", record_placements=True, **changes)
    return compare(CLUSTER, [jobs], [spec], settings).rows[0].outcomes[0]


def run_of(spec: str, jobs: JobList) -> SearchedRun:
    policy, settings = parse(spec), Settings(record_placements=True)
    player = CompiledEngine().prepare(policy, PlayedWorld(CLUSTER, [jobs], settings))
    config = dataclasses.replace(player.config, queue_slots=len(jobs), running_slots=32)
    return SearchedRun(config, player.params, to_table(jobs, 60.0), policy, 60.0)


def scene_of(run: SearchedRun) -> BelievedState:
    return believe_estimates(run.world, run.tables, find_waiting_jobs(run.world, run.tables)[0])


def as_it_is(scene: BelievedState) -> Choice:
    jobs = scene.world.jobs[scene.waiting]
    return Choice(jobs["key"], jobs["held"])


def same(one: Outcome, other: Outcome) -> bool:
    columns = ("start_s", "finish_s", "partition", "workers", "forwards")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


# ------------------------------------------------------------------------------------------------------------- the name


def test_a_name_says_the_rule_and_how_many_orders():
    for spec, rule, count in (
        (f"search:{RULE}+n16", RULE, 16),
        (f"search:{RULE}", RULE, 64),
        ("search:pack+n3", "pack", 3),
        ("search:pack:n3+sjf+backfill", "pack:sjf+backfill", 3),
    ):
        found, base = parse(spec), parse(rule)
        assert found.searches and not base.searches and found.name == spec
        assert found.spec == dataclasses.replace(base.spec, search=count)
        assert found.requires == "estimates" and found.asks_at == base.asks_at


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("search", ("searches under one of", "greedy-wait")),
        ("search:random:sjf+n4", ("searches under one of",)),
        ("search:quickstart+n4", ("searches under one of",)),
        (f"search:search:{RULE}", ("searches under one of",)),
        (f"search:{RULE}+n0", ("'n0' should be nN", "from 1 to 4096")),
        (f"search:{RULE}+n1.5", ("'n1.5' should be nN",)),
        (f"search:{RULE}+n5000", ("'n5000' should be nN",)),
        (f"search:{RULE}+nine", ("unknown option 'nine'",)),
        ("search:pack:sjf+lifetime+n4", ("unknown option 'lifetime'",)),
        ("search:pack:tenants+backfill+n4", ("orders fifo, sjf, area only, not in tenants",)),
        ("search:pack:las+backfill+preempt", ("orders fifo, sjf, area only, not in las",)),
        (f"{RULE}+n16", ("unknown option 'n16'",)),
    ],
)
def test_names_that_are_refused(spec, words):
    with pytest.raises(UserError) as refusal:
        parse(spec)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_where_it_cannot_search_is_said(capsys):
    jobs, spec = jobs_for(), f"search:{RULE}+n4"
    for changes, reason in (
        ({"knows": "history"}, "not by those of the history"),
        ({"failures": "100,1"}, "where servers fail"),
        ({"engine": "jax"}, "a search, which only the compiled event loop plays"),
        ({"debug_checks": True}, "a search, which only the compiled event loop plays"),
        ({"knows": "nothing"}, "needs run times or estimates"),
    ):
        with pytest.raises(UserError, match=reason) as refusal:
            compare(CLUSTER, [jobs], [spec], Settings(**changes))
        assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="a search is for the event loop only"):
        parse(spec)(jax.random.key(0), None, None)  # pyright: ignore
    with pytest.raises(UserError, match="searches in simulations only"):
        GuardedPolicy(spec, PlanSettings())


# ----------------------------------------------------------------------------------------------- what it is compared to


@pytest.mark.parametrize("rule", [RULE, "greedy-wait:area+t1.5", "pack:fifo+backfill", "tetris:sjf+spread"])
def test_one_order_alone_is_the_rule(rule):
    jobs = jobs_for(1)
    assert same(played(rule, jobs), played(f"search:{rule}+n1", jobs))


@pytest.mark.parametrize("rule", [RULE, "pack:fifo+backfill"])
def test_it_is_never_worse_where_all_jobs_are_there(rule):
    gains = []
    for seed in range(4):
        jobs = all_there(jobs_for(seed, 40))
        by_rule, searched = played(rule, jobs), played(f"search:{rule}+n24", jobs)
        gains.append(by_rule.jct_s.mean() - searched.jct_s.mean())
        assert gains[-1] >= 0
    assert max(gains) > 60.0  # and it moves something


def test_what_it_foresees_comes_true():
    jobs = all_there(jobs_for(3, 40))
    run = run_of(f"search:{RULE}+n1", jobs)
    scene = scene_of(run)
    foreseen = scene.cost(as_it_is(scene))
    for _ in range(3):  # and again from later boundaries, with jobs that run
        run.go_on(1)
    scene = scene_of(run)
    later = scene.cost(as_it_is(scene))
    done = np.nansum(run.tables.records["finish_s"])
    assert run.go_on()
    assert foreseen == run.tables.records["finish_s"].sum() and 0 < len(scene.waiting) < 40
    assert later + done == pytest.approx(foreseen, rel=1e-12)


def test_all_jobs_finish_and_no_gpu_is_held_twice():
    jobs = jobs_for(2)
    found = played(f"search:{RULE}+n16", jobs)
    assert found.finished.all() and not same(found, played(RULE, jobs))
    for at in np.concatenate([found.start_s, found.finish_s - 1e-3]):
        runs = (found.start_s <= at) & (at < found.finish_s)
        held = np.zeros((2, found.workers.shape[1]), int)
        np.add.at(held, found.partition[runs], found.workers[runs] * jobs.gpus_per_worker[runs, None])
        assert (held <= np.asarray(CLUSTER.group_gpus).reshape(2, -1)).all()
    np.testing.assert_array_equal(found.workers.sum(-1), jobs.workers)
    assert (found.start_s >= jobs.submit_s).all()


def test_the_seed_says_which_jobs_are_moved():
    jobs = jobs_for(4, load=3.0)
    first, again, other = (played(f"search:{RULE}+n4", jobs, seed=seed) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)


def test_it_is_no_hand_written_rule_that_others_are_compared_to():
    rows = compare(CLUSTER, [jobs_for()], ["pack", f"search:{RULE}+n8"], Settings()).rows
    assert [row.baseline for row in rows] == [True, False]
    assert rows[0].ratio == 1.0 and rows[1].ratio < 1.0


def test_a_long_job_is_held_back_where_a_wide_one_can_start_soon():
    """Four of eight GPUs are taken for 10 minutes; 10 hours on the others would keep 8 GPUs from 30 minutes of work."""
    cluster = get_cluster("leaf-spine-1", 1)
    jobs = make_job_list([0.0, 60.0, 60.0], [600.0, 36_000.0, 1800.0], [4, 4, 8])
    rows = compare(
        cluster, [jobs], ["pack:sjf+backfill", "search:pack:sjf+backfill"], Settings(interference="none")
    ).rows
    by_rule, searched = (row.outcomes[0] for row in rows)
    np.testing.assert_array_equal(by_rule.start_s, [0.0, 60.0, 36_060.0])
    np.testing.assert_array_equal(searched.start_s, [0.0, 2400.0, 600.0])


# ------------------------------------------------------------------------------------------------- what it does not see


def hidden(jobs: JobList, run_s: np.ndarray) -> JobList:
    """The same jobs and estimates, but other run times."""
    return dataclasses.replace(jobs, duration_s=run_s, estimate_ratio=jobs.estimate_s / run_s)


def test_true_run_times_do_not_leak():
    """Two runs differ in nothing else, and no job ends before all have come: both choose the same orders."""
    jobs, draw = jobs_for(5, load=3.0), np.random.default_rng(0)
    much_s = [jobs.submit_s[-1] + jobs.estimate_s + draw.uniform(1e4, 1e6, len(jobs)) for _ in range(2)]
    one, other = (run_of(f"search:{RULE}+n16", hidden(jobs, run_s)) for run_s in much_s)
    moved = held = 0
    while True:
        before = one.world.jobs.copy()
        one.go_on(1)
        other.go_on(1)
        if one.finished or other.finished:
            break
        for name in ("key", "held"):
            np.testing.assert_array_equal(one.world.jobs[name], other.world.jobs[name])
        np.testing.assert_array_equal(one.tables.records["start"], other.tables.records["start"])
        moved += (one.world.jobs["key"] != before["key"]).any()
        held += (one.world.jobs["held"] != before["held"]).any()
    assert one.arrived == len(jobs) and (one.tables.records["start"] >= 0).sum() >= 5
    assert moved >= 5 and held >= 1


def test_jobs_that_come_later_do_not_matter():
    jobs = jobs_for(6, load=3.0)
    all_jobs, some = (played(f"search:{RULE}+n64", one) for one in (jobs, of(jobs, np.arange(60))))
    early = all_jobs.start_s < jobs.submit_s[60]
    assert early.sum() > 10 and early[60:].sum() == 0
    np.testing.assert_array_equal(all_jobs.start_s[early], some.start_s[early[:60]])
    np.testing.assert_array_equal(all_jobs.workers[early], some.workers[early[:60]])


def test_a_job_that_has_outlived_its_estimate_is_taken_to_need_a_tenth_more():
    jobs = make_job_list([0.0, 0.0, 0.0, 3000.0], [10_000.0, 10_000.0, 500.0, 60.0], [4, 4, 16, 1], home=0)
    jobs = dataclasses.replace(jobs, estimate_ratio=np.array([0.1, 0.5, 2.0, 1.0]))
    run = run_of("search:pack:fifo+n1", jobs)
    while run.boundary < 50:
        run.go_on(1)
    assert run.boundary == 50 and run.finished == 0
    alone, begin, rows, _ = scene_of(run)
    np.testing.assert_array_equal(rows, [0, 1, 2, 3])
    runs = begin.running[0, :2]
    np.testing.assert_array_equal(runs["job"], [0, 1])
    done_s = 3000.0 / runs["slowdown"]
    left_s = (runs["finish_s"] - 3000.0) / runs["slowdown"]
    assert done_s[0] > 1000.0  # its estimate
    np.testing.assert_allclose(left_s, [0.1 * done_s[0], 5000.0 - done_s[1]], rtol=1e-6)
    np.testing.assert_allclose(alone.jobs["duration_s"], [1.1 * done_s[0], 5000.0, 1000.0, 60.0], rtol=1e-6)
    np.testing.assert_array_equal(begin.service["left_s"][2:], [1000.0, 60.0])


# ------------------------------------------------------------------------------------------- an independent second look


@pytest.mark.parametrize("seed", [7, 15])
def test_the_oracle_finds_the_same_run_from_what_was_chosen(seed, monkeypatch):
    case = random_case(seed, "two", interval_s=60.0, error=0.4, fractions=0.0)
    policy = parse(f"search:{RULE}+n16")
    run = SearchedRun(case.config(shared_gpus=0), case.params, case.table, policy, case.interval_s)
    chosen, over = {}, False
    while not over:
        run.look()
        chosen[run.boundary] = Choice(run.world.jobs["key"].copy(), run.world.jobs["held"].copy())
        over = Run.go_on(run, 1)
    steps = list(zip(list(chosen.values())[1:], chosen.values()))
    assert sum((one.keys != other.keys).any() for one, other in steps) >= 5
    assert sum((one.held != other.held).any() for one, other in steps) >= 5

    def at(state) -> Choice:
        return chosen[max(boundary for boundary in chosen if boundary <= state.boundary)]

    def order_key(state, order, j, levels=None):
        if order != "sjf":
            return by_rule(state, order, j, levels)
        return float(at(state).keys[j])

    def held(state, j):
        return at(state).held[j] > state.boundary

    by_rule = oracle_policies.order_key
    monkeypatch.setattr(oracle_policies, "order_key", order_key)
    rule = oracle_policies.make_policy("greedy-wait", "sjf", True, "spread", lifetime=True, reserve=True, held=held)
    theirs = simulator.simulate(
        case.cluster,
        case.jobs,
        case.params.profiles,
        rule,
        interval_s=case.interval_s,
        rounds=case.shape.rounds,
        max_forwards=case.max_forwards,
        interference=case.law,
        strengths=case.kappa,
        queue_slots=case.shape.queue_slots,
        running_slots=case.shape.running_slots,
    )
    ours = run.tables.records[: len(case.jobs)]
    start_s = np.where(ours["start"] < 0, np.nan, ours["start"] * case.interval_s)
    np.testing.assert_allclose(start_s, theirs.start_s, rtol=1e-9)
    np.testing.assert_array_equal(ours["partition"], theirs.partition)
    placed = [{int(a): int(row[a]) for a in np.flatnonzero(row)} for row in run.tables.placement[: len(case.jobs)]]
    assert placed == theirs.workers
    np.testing.assert_allclose(ours["finish_s"] - start_s, theirs.finish_s - theirs.start_s, rtol=5e-6)
