import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import offered_load
from jaxsched.workload.load import SYNTHETIC, WorkloadOptions, get_workload


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_workloads(name):
    models = get_catalogue("llm" if name == "llm" else None)
    options = WorkloadOptions(num_jobs=200, total_gpus=16, load=0.6, schedulers=2, duration_cap_s=1e5, catalogue=models)
    jobs, skipped = get_workload(name, options)
    assert len(jobs) == 200 and skipped == {}
    assert offered_load(jobs, 16) == pytest.approx(0.6) and set(jobs.home.tolist()) == {0, 1}
    assert jobs.duration_s.max() <= 1e5
    again, _ = get_workload(name, options)
    assert jobs.submit_s.tolist() == again.submit_s.tolist()


def test_poisson_has_one_gpu_jobs_and_philly_like_has_gangs():
    assert set(get_workload("poisson", WorkloadOptions(total_gpus=16))[0].num_gpus.tolist()) == {1}
    jobs, _ = get_workload("philly-like", WorkloadOptions(total_gpus=16))
    assert len(jobs) == 1000 and offered_load(jobs, 16) == pytest.approx(0.8) and jobs.num_gpus.max() > 1


def test_trace_file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("job_id,submit_time_s,num_gpus,duration_s\na,100,1,10\nb,200,2,10\nc,400,2,10\n")
    jobs, _ = get_workload(path, WorkloadOptions(num_jobs=2))
    assert jobs.submit_s.tolist() == [0, 100] and jobs.job_id.tolist() == ["a", "b"]
    jobs, _ = get_workload(str(path), WorkloadOptions(total_gpus=4, load=0.5))
    assert offered_load(jobs, 4) == pytest.approx(0.5) and len(jobs) == 3


def test_shares_of_a_trace_are_its_jobs_in_order_each_once(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{name},{100 * i},1,10\n" for i, name in enumerate("abcdefghijk")]
    path.write_text("".join(["job_id,submit_time_s,num_gpus,duration_s\n", *rows]))
    first, last = (get_workload(path, WorkloadOptions(**part))[0] for part in ({"until": 0.6}, {"since": 0.6}))
    assert "".join(first.job_id) == "abcdefg" and "".join(last.job_id) == "hijk"
    assert last.submit_s.tolist() == [0, 100, 200, 300]
    some, _ = get_workload(path, WorkloadOptions(since=0.6, num_jobs=2))
    assert "".join(some.job_id) == "hi"
    with pytest.raises(UserError, match=r"no job of 11 is from 0.9 to 0.91"):
        get_workload(path, WorkloadOptions(since=0.9, until=0.91))


def test_named_trace(real):
    real("muri1")
    jobs, _ = get_workload("muri1", WorkloadOptions(num_jobs=100))
    assert len(jobs) == 100 and jobs.submit_s[0] == 0 and (np.diff(jobs.submit_s) >= 0).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "phily",
            dict(),
            r"unknown 'phily'; perhaps you meant 'philly'; known are philly-like, .*philly, muri1.*path of a trace",
        ),
        ("gone.csv", dict(), r"gone.csv: no such file"),
        ("poisson", dict(), r"total_gpus: is needed for the workload 'poisson'"),
        ("x.csv", dict(load=0.5), r"total_gpus: is needed for a load"),
        ("x.csv", dict(since=0.6, until=0.5), r"since, until: 0.6, 0.5 should be shares of the jobs"),
        ("x.csv", dict(since=float("nan")), r"since, until: nan, 1 should be shares of the jobs"),
        ("poisson", dict(since=0.5, total_gpus=1), r"since, until: are for traces, 'poisson' is synthetic"),
        ("poisson", dict(num_jobs=0, total_gpus=1), r"num_jobs: 0 should be from 1 to 10,000,000"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(UserError, match=message):
        get_workload(name, WorkloadOptions(**options))


def test_jobs_of_one_gpu_may_ask_for_a_share_of_it(tmp_path):
    """Of a trace, before the load is set, and of synthetic jobs; what asks for a share of its own keeps it."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "job_id,submit_time_s,num_gpus,duration_s,num_ps,gpu_milli\n"
        "a,0,1,600,,\nb,60,1,600,,250\nc,120,2,600,,\nd,180,1,600,1,\n"
    )
    options = WorkloadOptions(gpu_share=0.5, load=0.5, total_gpus=8)
    jobs, _ = get_workload(trace, options)
    assert jobs.milli.tolist() == [500, 250, 1000, 1000]
    np.testing.assert_allclose(offered_load(jobs, 8), 0.5)
    made, _ = get_workload("philly-like", WorkloadOptions(gpu_share=0.333, num_jobs=400, load=0.9, total_gpus=64))
    whole, _ = get_workload("philly-like", WorkloadOptions(num_jobs=400, load=0.9, total_gpus=64))
    assert set(made.milli[made.num_gpus == 1]) == {333} and set(made.milli[made.num_gpus > 1]) == {1000}
    np.testing.assert_array_equal(made.duration_s, whole.duration_s)
    np.testing.assert_allclose([offered_load(made, 64), offered_load(whole, 64)], 0.9)
    for share in (0.0, 1.5, float("nan")):
        for workload in (trace, "poisson"):
            with pytest.raises(UserError, match="gpu_share"):
                get_workload(workload, WorkloadOptions(gpu_share=share, total_gpus=8))
    with pytest.raises(UserError, match=r"gpu_share: 0.5 .* there are none"):
        get_workload("llm", WorkloadOptions(gpu_share=0.5, total_gpus=64, catalogue=get_catalogue("llm")))
