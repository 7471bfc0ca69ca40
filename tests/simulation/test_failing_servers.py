"""Runs in which servers fail: what the settings make of rates and files, in both engines."""

import numpy as np
import pytest

from jaxsched.cluster.outages import Outages
from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list

CLUSTER = get_cluster("leaf-spine-2", 1)
ENGINES = pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slow)])


def outcome(jobs, **settings):
    return simulate([parse("pack")], CLUSTER, [jobs], Settings(interference="none", **settings))["pack"][0]


@ENGINES
@pytest.mark.parametrize(("checkpoint_s", "kept"), [(0.0, 0.0), (500.0, 500.0)])
def test_a_job_falls_back_to_its_checkpoint(engine, checkpoint_s, kept):
    """It is out from 960 to 3,000 s with 960 s done, of 2,000, and starts again on the other server at once."""
    jobs = make_job_list([0.0], [2000.0], 8, model=6)
    out = Outages(np.array([0]), np.array([950.0]), np.array([3000.0]))
    found = outcome(jobs, engine=engine, outages=out, checkpoint_s=checkpoint_s)
    run_s = float(outcome(jobs, engine=engine).jct_s[0])
    again = found.interruptions
    assert again is not None and again.failure_restarts.tolist() == [1] and again.stops.tolist() == [0]
    slow = run_s / 2000
    assert found.jct_s[0] == pytest.approx(960 + 60 + slow * (2000 - kept), rel=1e-5)
    assert again.fallen_s[0] == pytest.approx(960 / slow - kept, rel=1e-4) and again.restarting_s[0] == 60
    assert found.start_s[0] == 0 and found.cut_off is None


@ENGINES
def test_a_gang_whose_server_never_comes_back_ends_the_run(engine):
    jobs = make_job_list([0.0, 0.0], [100.0, 2000.0], [1, 16], model=6)
    found = outcome(jobs, engine=engine, outages=Outages(np.array([1]), np.array([500.0]), np.array([1e12])))
    assert found.cut_off is not None
    assert found.finished.tolist() == [True, False]


@ENGINES
def test_a_job_that_is_never_done_between_failures_is_cut_off_where_the_draws_end(engine):
    """Without checkpoints 200 hours of work do not fit into an hour or two."""
    jobs = make_job_list([0.0], [720_000.0], 16, model=6)
    found = outcome(jobs, engine=engine, failures="1,0.1", interval_s=600.0)
    assert found.cut_off == "at the horizon of 14,400,000 s" and not found.finished.any()


@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slower)])
def test_failures_are_the_same_again_and_others_with_another_seed(engine):
    rng = np.random.default_rng(0)
    jobs = make_job_list(np.sort(rng.uniform(0, 4e4, 40)), rng.uniform(1e3, 2e4, 40), rng.choice([1, 2, 8], 40))
    runs = [outcome(jobs, engine=engine, failures="3,0.5", checkpoint_s=600.0, failure_seed=s) for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].finish_s, runs[1].finish_s)
    assert not np.array_equal(runs[0].finish_s, runs[2].finish_s)
    assert all(run.finished.all() and run.interruptions.failure_restarts.sum() > 3 for run in runs)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (dict(failures="100,0"), "mean hours out"),
        (dict(failures="100,1", outages=Outages(np.zeros(0, int), np.zeros(0), np.zeros(0))), "give one of them"),
        (dict(checkpoint_s=5.0), "preemption and failures are off"),
        (dict(failures="100,1", min_run_s=5.0), "min_run_s"),
        (dict(failures="100,1", failure_seed=-1), "failure_seed"),
    ],
)
def test_settings_that_are_none(settings, wanted):
    with pytest.raises(UserError, match=wanted):
        Settings(**settings)


def test_outages_by_another_clock_are_refused():
    jobs, out = make_job_list([0.0, 60.0], 600.0, 1), Outages(np.zeros(1, int), np.array([1.7e9]), np.array([1.8e9]))
    with pytest.raises(
        UserError, match="the first begins at 1700000000 s, long after all jobs can be done; times count"
    ):
        outcome(jobs, outages=out)
    cut = outcome(jobs, outages=out, horizon_s=1e4)
    assert cut.finished.all(), "a horizon says when the run ends"
