import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.errors import UserError
from jaxsched.workload.jobs import (
    NEVER,
    JobTable,
    from_start,
    make_job_list,
    offered_load,
    pad_table,
    rescale_to_load,
    take,
    to_table,
)


def test_make_job_list_sorts_stably_and_fills_in():
    jobs = make_job_list([5, 1, 5, 0], [10, 20, 30, 40], [1, 2, 3, 4], gpus_per_worker=2)
    assert jobs.submit_s.tolist() == [0, 1, 5, 5]
    assert jobs.duration_s.tolist() == [40, 20, 10, 30]  # the two at 5 s keep their order
    assert jobs.num_gpus.tolist() == [8, 4, 2, 6]
    assert jobs.home.tolist() == [0, 1, 2, 3] and jobs.job_id.tolist() == ["0", "1", "2", "3"]
    assert jobs.workers.dtype == np.int32 and jobs.submit_s.dtype == np.float64


def test_ties_keep_their_order_among_many():
    submit = np.random.default_rng(0).integers(0, 5, 1000)
    jobs = make_job_list(submit, 1.0, 1, job_id=np.arange(1000).astype(str))
    for value in range(5):
        assert jobs.job_id[jobs.submit_s == value].tolist() == np.flatnonzero(submit == value).astype(str).tolist()


def test_make_job_list_keeps_ids_and_homes_with_their_jobs():
    jobs = make_job_list([5, 1], 10, 1, home=[7, 3], job_id=["late", "early"])
    assert jobs.job_id.tolist() == ["early", "late"] and jobs.home.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"submit_s": [0, np.nan]}, r"submit_s: job 1 has nan, should be a finite number >= 0"),
        ({"submit_s": [0, -1]}, r"submit_s: job 1 has -1"),
        ({"duration_s": [1, 0]}, r"duration_s: job 1 has 0, should be a finite number >= 1e-09"),
        ({"duration_s": np.inf}, r"duration_s: job 0 has inf"),
        ({"workers": [0, 1]}, r"workers: job 0 has 0, should be a whole number >= 1"),
        ({"workers": [1, 1.5]}, r"workers: job 1 has 1.5"),
        ({"workers": [1, 2.0**31]}, r"workers: job 1 has 2.14748e\+09"),
        ({"ps": [0, -1]}, r"ps: job 1 has -1"),
        ({"model": [0, 99]}, r"model: job 1 has 99, should be a whole number >= 0 and <= "),
        ({"tenant": [1, 2, 3]}, r"tenant: shape \(3,\), should be one value or one per job \(2,\)"),
        ({"job_id": ["a", "a"]}, r"job_id: 'a' stands for 2 jobs"),
        ({"job_id": ["a"]}, r"job_id: shape \(1,\)"),
    ],
)
def test_make_job_list_names_what_is_wrong(change, message):
    with pytest.raises(UserError, match=message):
        make_job_list(**({"submit_s": [0, 1], "duration_s": [1, 1], "workers": [1, 1]} | change))


def test_take_by_slice_positions_and_mask():
    jobs = make_job_list([0, 1, 2, 3], 1, [1, 2, 3, 4])
    assert take(jobs, slice(1, 3)).workers.tolist() == [2, 3]
    assert take(jobs, [3, 0]).submit_s.tolist() == [0, 3]  # back in order of submission
    assert take(jobs, jobs.workers > 2).job_id.tolist() == ["2", "3"]
    assert from_start(take(jobs, slice(1, 3))).submit_s.tolist() == [0, 1]
    assert len(from_start(take(jobs, slice(0)))) == 0


@given(
    gaps=st.lists(st.floats(0, 1e6), min_size=1, max_size=20), load=st.floats(0.01, 10), total=st.integers(1, 10_000)
)
def test_rescale_to_load_is_exact_and_keeps_proportions(gaps, load, total):
    gaps[0] += 1.0
    jobs = make_job_list(np.cumsum([3.0, *gaps]), np.arange(1, len(gaps) + 2) * 7.5, np.arange(len(gaps) + 1) % 5 + 1)
    scaled = rescale_to_load(jobs, total, load)
    assert offered_load(scaled, total) == pytest.approx(load, rel=1e-12)
    assert scaled.submit_s[0] == 0
    shifted = jobs.submit_s - jobs.submit_s[0]
    np.testing.assert_allclose(scaled.submit_s, shifted * (scaled.submit_s[-1] / shifted[-1]), rtol=1e-9)


@pytest.mark.parametrize("load", [0.0, -1.0, np.nan, np.inf])
def test_rescale_refuses_bad_loads(load):
    with pytest.raises(UserError, match="load: "):
        rescale_to_load(make_job_list([0, 1], 1, 1), 1, load)


def test_load_needs_a_span():
    with pytest.raises(UserError, match="two different times"):
        offered_load(make_job_list([4, 4], 1, 1), 8)


@settings(max_examples=300)
@given(
    interval=st.one_of(st.sampled_from([0.1, 1 / 3, 1.0, 7.7, 60.0, 300.0]), st.floats(1e-2, 1e4)),
    boundaries=st.lists(st.integers(0, 10**7), min_size=1, max_size=10),
    offsets=st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.999]), min_size=10, max_size=10),
)
def test_to_table_gives_the_first_boundary_not_before_submission(interval, boundaries, offsets):
    submit = np.sort([(i + o) * interval for i, o in zip(boundaries, offsets, strict=False)])
    table = to_table(make_job_list(submit, 1.0, 1), interval)
    arrival, lead = np.asarray(table.arrival, np.float64), np.asarray(table.lead_s)
    assert (arrival * interval >= submit).all()
    assert ((arrival - 1) * interval < submit).all()
    assert (lead >= 0).all() and (lead < np.float32(interval)).all()
    np.testing.assert_allclose(lead, arrival * interval - submit, atol=interval * 1e-6)


@given(interval=st.floats(1e-2, 1e4), boundary=st.integers(0, 10**8))
def test_to_table_is_exact_at_multiples(interval, boundary):
    table = to_table(make_job_list([boundary * interval], 1.0, 1), interval)
    assert int(table.arrival[0]) == boundary and float(table.lead_s[0]) == 0.0


@settings(max_examples=300)
@given(interval=st.floats(1e-2, 1e4), boundary=st.integers(1, 10**8))
def test_to_table_one_rounding_step_beside_a_multiple(interval, boundary):
    multiple = boundary * interval
    submit = [np.nextafter(multiple, 0), np.nextafter(multiple, np.inf)]
    assert to_table(make_job_list(submit, 1.0, 1), interval).arrival.tolist() == [boundary, boundary + 1]


def test_to_table_keeps_the_lead_below_the_interval_in_float32():
    table = to_table(make_job_list([1e-9], 1.0, 1), 60.0)
    assert int(table.arrival[0]) == 1 and float(table.lead_s[0]) < 60.0


def test_to_table_carries_the_columns_and_takes_homes():
    jobs = make_job_list([0, 90], [5, 6], [2, 3], gpus_per_worker=[1, 4], ps=[1, 0], model=[2, 3], tenant=[4, 5])
    table = to_table(jobs, 60.0, home=np.array([-1, 2]))
    assert table.home.tolist() == [-1, 2] and to_table(jobs, 60.0).home.tolist() == [0, 1]
    for name in ("workers", "gpus_per_worker", "ps", "model", "tenant"):
        leaf = getattr(table, name)
        assert leaf.tolist() == getattr(jobs, name).tolist() and leaf.dtype == np.int32
    assert table.duration_s.tolist() == [5.0, 6.0] and table.lead_s.tolist() == [0.0, 30.0]


def test_fractions_of_gpus():
    jobs = make_job_list([0, 10], [10, 10], [1, 4], milli=[250, 1000])
    assert jobs.gpu_demand.tolist() == [0.25, 4.0] and jobs.num_gpus.tolist() == [1, 4]
    assert offered_load(jobs, 1) == pytest.approx(4.25)
    table = pad_table(to_table(jobs, 60.0), 3)
    assert table.milli.tolist() == [250, 1000, 1000]
    assert pad_table(table.replace(milli=table.milli[:0]), 4).milli.size == 0
    for bad in (dict(workers=2), dict(workers=1, gpus_per_worker=2), dict(workers=1, ps=1)):
        with pytest.raises(UserError, match=r"milli: job 0 has 500 with .* should be 1 worker of 1 GPU, no PS"):
            make_job_list([0], [1], **bad, milli=500)
    for bad in (0, 1001, 0.5):
        with pytest.raises(UserError, match="milli: job 0 has"):
            make_job_list([0], [1], 1, milli=bad)


@pytest.mark.parametrize("interval", [0.0, -60.0, np.nan, np.inf])
def test_to_table_refuses_bad_intervals(interval):
    with pytest.raises(UserError, match="interval_s: "):
        to_table(make_job_list([0], 1, 1), interval)


def test_to_table_refuses_more_boundaries_than_int32():
    with pytest.raises(UserError, match="too short for a trace of 1e\\+07 s"):
        to_table(make_job_list([1e7], 1, 1), 1e-3)


def test_pad_table_adds_jobs_that_never_arrive():
    table = to_table(make_job_list([0, 60], 10, 2), 60.0)
    padded = pad_table(table, 5)
    assert padded.arrival.tolist() == [0, 1, NEVER, NEVER, NEVER]
    for field in dataclasses.fields(JobTable):
        before, after = getattr(table, field.name), getattr(padded, field.name)
        assert after.shape == ((5,) if before.size else before.shape) and after.dtype == before.dtype
        assert after[:2].tolist() == before.tolist()
    assert (padded.duration_s > 0).all() and (padded.workers > 0).all() and (padded.home >= 0).all()
    with pytest.raises(UserError, match="size: 1 is less than the 2 jobs"):
        pad_table(table, 1)
