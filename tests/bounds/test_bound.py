"""The lower bound of docs/bound.md: by hand, against every schedule of tiny cases, and under every policy."""

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.bounds import (
    Slotted,
    answer,
    jct_lower_bound_s,
    kinds_of,
    least_starts,
    one_machine,
    priced_starts,
    simpler,
)
from jaxsched.cluster.presets import get_cluster
from jaxsched.evaluation.compare import compare
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.load import WorkloadOptions, get_workload
from tests.support import strategies


def slotted(release, length, gpus, capacity) -> Slotted:
    order = np.argsort(release, kind="stable")
    columns = (np.asarray(values, float)[order] for values in (release, length, gpus))
    return Slotted(*columns, capacity=float(capacity))


def best_starts(jobs: Slotted) -> float:
    """The least sum of starts of any schedule: some order, in which every job starts as early as it can, is optimal."""
    orders = itertools.permutations(range(len(jobs.release)))
    named = ("release", "length", "gpus")
    return min(
        in_this_order(dataclasses.replace(jobs, **{name: getattr(jobs, name)[list(order)] for name in named}))
        for order in orders
    )


def in_this_order(jobs: Slotted) -> float:
    """The sum of starts if each job starts as early as those before it allow."""
    free, total = np.full(int(jobs.release.max(initial=0) + jobs.length.sum()) + 1, jobs.capacity), 0
    for j in range(len(jobs.release)):
        start, length = int(jobs.release[j]), int(jobs.length[j])
        while (free[start : start + length] < jobs.gpus[j]).any():
            start += 1
        free[start : start + length] -= jobs.gpus[j]
        total += start
    return total


@st.composite
def tiny(draw, gangs=(1, 2, 3, 4)) -> Slotted:
    count = draw(st.integers(1, 5))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    return slotted(column(st.integers(0, 6)), column(st.integers(1, 6)), column(st.sampled_from(gangs)), 4)


def test_one_machine_by_hand():
    # Two GPU-slots per slot. Areas 8 at 0, 2 at 1, 2 at 1: the first has 6 left at 1, and waits for the others, which
    # end at 2 and 3; it ends at 6. Mean busy times: first 1/4 * 0.5 + 3/4 * 4.5, others 1.5 and 2.5.
    release, area = np.array([0.0, 1.0, 1.0]), np.array([8.0, 2.0, 2.0])
    for by_remaining in (True, False):
        completions, busy, end = one_machine(release, area, 2.0, by_remaining=by_remaining)
        assert (completions, end) == (2 + 3 + 6, 6)
        assert busy == pytest.approx(0.125 + 3.375 + 1.5 + 2.5)


def test_the_two_machines_differ_where_little_of_a_large_job_is_left():
    # Area 4 at 0 has 1 left when area 2 comes at 3: by remaining it ends first (4, 6), by whole area last (5, 6).
    release, area = np.array([0.0, 3.0]), np.array([4.0, 2.0])
    assert one_machine(release, area, 1.0, by_remaining=True)[0] == 4 + 6
    completions, busy, _ = one_machine(release, area, 1.0, by_remaining=False)
    assert completions == 6 + 5
    assert busy == pytest.approx(3 / 4 * 1.5 + 1 / 4 * 5.5 + 4)


def test_jobs_in_single_file_are_bounded_exactly():
    # Gangs of the whole cluster, all there at 0: shortest first is optimal, and is what the first machine does.
    assert least_starts([slotted([0, 0, 0], [3, 1, 2], [4, 4, 4], 4)]) == 0 + 1 + 3
    # Alike and released one by one, faster than they can run.
    assert least_starts([slotted([0, 1, 2], [5, 5, 5], [4, 4, 4], 4)]) == 0 + 5 + 10


@pytest.mark.slow
def test_prices_see_what_one_machine_cannot():
    # One machine of 16 GPUs ends a gang of one within a sixteenth of its length: no use at a load of 0.9.
    rng = np.random.default_rng(0)
    length, gpus = np.ceil(rng.exponential(30, 400)), rng.choice([1, 2, 4, 8], 400)
    span = (length * gpus).sum() / 16 / 0.9
    jobs = slotted(np.floor(np.sort(rng.uniform(0, span, 400))), length, gpus, 16)
    area, released = jobs.gpus * jobs.length, jobs.release.sum()
    completions, _, end = one_machine(jobs.release, area, 16.0, by_remaining=True)
    _, busy, _ = one_machine(jobs.release, area, 16.0, by_remaining=False)
    assert max(completions - length.sum(), busy - length.sum() / 2) < released
    assert (priced_starts([jobs], end, released) - released) / 400 > 0.5


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(tiny())
def test_never_above_the_best_schedule(jobs):
    assert jobs.release.sum() <= least_starts([jobs]) <= best_starts(jobs) + 1e-9


@settings(max_examples=200, deadline=None)
@given(tiny(), st.lists(st.floats(0, 3), min_size=1, max_size=8), st.integers(1, 4))
def test_any_prices_bound_the_best_schedule(jobs, price, width):
    bound, excess = answer([jobs], [kinds_of(jobs)], width, np.array([price]))
    assert bound <= best_starts(jobs) + 1e-9
    # The answer of every job, by trying every slot.
    per_slot = np.concatenate([np.repeat(price, width), np.zeros(60)])
    total, asked = 0.0, np.zeros(len(per_slot))
    for release, length, gpus in zip(jobs.release.astype(int), jobs.length.astype(int), jobs.gpus, strict=True):
        costs = [start + gpus * per_slot[start : start + length].sum() for start in range(release, 50)]
        total += min(costs)
        start = release + int(np.argmin(costs))
        asked[start : start + length] += gpus
    assert bound == pytest.approx(total - jobs.capacity * per_slot.sum())
    assert excess.shape == (1, len(price)) and (excess >= -jobs.capacity * width).all()


@st.composite
def tiny_of_two_types(draw) -> list[Slotted]:
    """The same jobs on GPUs of two types, of which one is faster for each job."""
    first = draw(tiny(gangs=(1, 2)))
    count = len(first.release)
    other = np.array(draw(st.lists(st.integers(1, 6), min_size=count, max_size=count)), float)
    least = np.minimum(first.length, other)
    return [
        dataclasses.replace(first, capacity=draw(st.sampled_from((2.0, 4.0))), length=length, later=length - least)
        for length in (first.length, other)
    ]


def best_on_two_types(types: list[Slotted]) -> float:
    """The least sum of starts and of `later`: some order and choice of types, each job as early as it can."""
    count, best = len(types[0].release), math.inf
    for order in itertools.permutations(range(count)):
        for chosen in itertools.product((0, 1), repeat=count):
            total, own = 0.0, list[Slotted]()
            for k, jobs in enumerate(types):
                mine = [j for j in order if chosen[j] == k]
                total += float(np.asarray(jobs.later)[mine].sum())
                own.append(
                    dataclasses.replace(jobs, **{n: getattr(jobs, n)[mine] for n in ("release", "length", "gpus")})
                )
            best = min(best, total + sum(in_this_order(jobs) for jobs in own))
    return best


@settings(max_examples=40, deadline=None)
@given(tiny_of_two_types(), st.lists(st.floats(0, 3), min_size=2, max_size=8), st.integers(1, 4))
def test_prices_by_gpu_type_bound_the_best_schedule(types, price, width):
    types = [
        dataclasses.replace(one, **{n: getattr(one, n)[:4] for n in ("release", "length", "gpus", "later")})
        for one in types
    ]
    best, half = best_on_two_types(types), len(price) // 2
    prices = np.array([price[:half], price[-half:]])
    assert answer(types, [kinds_of(one) for one in types], width, prices)[0] <= best + 1e-9
    assert types[0].release.sum() <= least_starts(types) <= best + 1e-9


def test_slow_gpus_are_worth_their_time():
    """As many slow GPUs as fast ones, on which jobs take four times as long: better than none, and worse than fast."""
    rng = np.random.default_rng(0)
    jobs = slotted(np.sort(rng.integers(0, 1500, 400)), np.ceil(rng.lognormal(3, 1, 400)), [1] * 400, 4)
    fast = dataclasses.replace(jobs, later=np.zeros(400))
    slow = dataclasses.replace(jobs, length=4 * jobs.length, later=3 * jobs.length)
    waits = lambda *types: least_starts(types) - jobs.release.sum()
    assert 4 * waits(dataclasses.replace(fast, capacity=8.0)) < waits(fast, slow) < waits(fast)


def test_a_rise_in_price_where_too_many_ask():
    jobs = slotted([0, 0], [2, 2], [4, 4], 4)
    bound, excess = answer([jobs], [kinds_of(jobs)], 1, np.zeros((1, 4)))
    assert bound == 0 and excess.tolist() == [[4, 4, -4, -4]]
    # At 1/4 per GPU in slots 0 and 1 both are indifferent between starting at 0, 1 and 2: 2 + 2 - 4 * 2/4.
    assert answer([jobs], [kinds_of(jobs)], 1, np.array([[0.25, 0.25, 0, 0]]))[0] == pytest.approx(2)


@settings(max_examples=30, deadline=None)
@given(tiny(gangs=(0.25, 0.5, 1.5, 3.0)))
def test_shares_of_a_gpu(jobs):
    assert least_starts([jobs]) <= best_starts(jobs) + 1e-9


def test_prices_are_found_with_few_lengths_and_answered_with_all():
    rng = np.random.default_rng(0)
    jobs = slotted(rng.integers(0, 3000, 2000), np.ceil(rng.lognormal(4, 2, 2000)), rng.integers(1, 9, 2000), 64)
    [few], kinds = simpler([jobs], 64, 50), kinds_of(jobs)
    assert len(np.unique(jobs.length)) > 64 >= len(np.unique(few.length))
    assert len(few.release) < 2000 and np.sum(few.count) == 2000
    for part in ("length", "release", "gpus"):  # in all as much as before
        assert (few.count * getattr(few, part)).sum() == pytest.approx(getattr(jobs, part).sum(), rel=0.01)
    assert sorted(kinds.jobs) == list(range(2000))
    for kind, (first, last) in enumerate(itertools.pairwise(kinds.first)):
        own = kinds.jobs[first:last]
        assert (jobs.length[own] == kinds.length[kind]).all() and (jobs.gpus[own] == kinds.gpus[kind]).all()


def test_blocks_of_kinds_change_nothing(monkeypatch):
    rng = np.random.default_rng(1)
    jobs = slotted(rng.integers(0, 40, 60), rng.integers(1, 30, 60), rng.integers(1, 9, 60), 16)
    price = rng.uniform(0, 0.2, 50)
    bound, excess = answer([jobs], [kinds_of(jobs)], 2, price[None])
    monkeypatch.setattr("jaxsched.bounds.BLOCK", 120)
    again, excess_again = answer([jobs], [kinds_of(jobs)], 2, price[None])
    assert again == pytest.approx(bound)
    np.testing.assert_allclose(excess_again, excess, atol=1e-6)


def test_a_thousand_jobs_are_bounded_in_less_than_two_cpu_seconds():
    """Once the bound was 99% of a comparison. The limit is ten times what it takes."""
    rng = np.random.default_rng(0)
    length, gpus = np.ceil(rng.lognormal(5, 2, 1000)), rng.choice([1, 2, 4, 8], 1000)
    jobs = slotted(np.sort(rng.integers(0, 9000, 1000)), length, gpus, 64)
    begin = time.process_time()
    least_starts([jobs])
    assert time.process_time() - begin < 2


def test_seconds_by_hand():
    cluster = get_cluster("leaf-spine-2", 1)  # 16 GPUs
    # Submitted at 61 s and 100 s, first started at 120 s; the gangs of 16 run one after the other, the first holds the
    # GPUs for two intervals. The one of 17 is rejected.
    jobs = make_job_list([61, 100, 0], [90, 100, 1e6], [16, 16, 17])
    expected = ((120 + 90 - 61) + (240 + 100 - 100)) / 2
    assert jct_lower_bound_s(cluster, jobs, 60.0) == pytest.approx(expected, rel=1e-5)
    assert math.isnan(jct_lower_bound_s(cluster, make_job_list([0], [10], [17]), 60.0))


def test_one_job_reaches_its_bound():
    cluster = get_cluster("leaf-spine-2", 1)
    comparison = compare(cluster, [make_job_list([61.5], [1234.5], [1])], ["pack"])
    assert comparison.rows[0].gap == pytest.approx(1, abs=1e-5) and comparison.rows[0].gap >= 1


def test_jobs_that_share_a_gpu_run_at_the_same_time():
    """Sixteen halves of eight GPUs: all end after 100 s, as eight jobs with a whole GPU each do."""
    cluster = get_cluster("leaf-spine-1", 1)
    wide = make_job_list([0] * 8, [100] * 8, [1] * 8)
    halves = make_job_list([0] * 16, [100] * 16, [1] * 16, milli=[500] * 16)
    assert jct_lower_bound_s(cluster, halves, 50.0) == pytest.approx(100, rel=1e-4)
    assert jct_lower_bound_s(cluster, wide, 50.0) == pytest.approx(100, rel=1e-4)


SPECS = ("first-fit:sjf+backfill", "pack:area+backfill+forward", "load-balance:tenants+backfill", "greedy-wait:p1")


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(case=strategies.cases("two"), spec=st.sampled_from(SPECS), strength=st.sampled_from([0.0, 1.0]))
def test_no_policy_is_under_it(case, spec, strength):
    """With contention and without, in the programs of other tests."""
    case = dataclasses.replace(case, kappa=(strength,) * 6)
    state = strategies.run(case, spec, case.shape.config())
    found = strategies.outcome(case, state)
    bound = jct_lower_bound_s(case.cluster, case.jobs, case.interval_s)
    done = [status == "finished" for status in found.status]
    if math.isnan(bound):
        assert not any(done)
    else:
        assert bound <= (found.finish_s - case.jobs.submit_s)[done].mean()


@settings(max_examples=100, deadline=None)
@given(tiny())
def test_where_jobs_may_be_stopped_less_is_promised(jobs):
    assert jobs.release.sum() <= least_starts([jobs], stops=True) <= least_starts([jobs]) + 1e-9


def test_no_run_with_stops_is_under_its_bound():
    """Jobs that do not slow each other, restarts for nothing: as good as stopping can be."""
    cluster = get_cluster("leaf-spine-2", 1)
    jobs, _ = get_workload("philly-like", WorkloadOptions(num_jobs=150, load=1.1, total_gpus=16, seed=1))
    of = Settings(preemption=True, restart_s=0.0, interference="none", engine="compiled")
    [row] = compare(cluster, [jobs], ["pack:srsf+backfill+preempt"], of).rows
    assert row.outcomes[0].interruptions.stops.sum() > 10
    assert 1.0 <= row.gap < 1.5
