"""The parts of completion times: they add up, and each cause shows where it must and nowhere else."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.outages import Outages
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.evaluation.parts import Parts, parts_of
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import DONE, ENDED, FAILED, STOPPED, Outcome
from jaxsched.simulation.settings import Settings, compact_tenants, params_for
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import JobList, make_job_list
from jaxsched.workload.models import MODEL_NAMES
from tests.support.cases import TIMES
from tests.support.random_cases import random_case
from tests.support.stopped_runs import stopping

POLICIES = ("pack:sjf+backfill", "load-balance:area+backfill", "first-fit", "least-interference", "greedy-wait")
LAWS = ("default", "analytic:high", "fitted", "none")


def played(cluster: Cluster, jobs: JobList, policy: str, **changes) -> tuple[Outcome, Parts]:
    return played_in(Settings(record_placements=True, **changes), cluster, jobs, policy)


def played_in(settings: Settings, cluster: Cluster, jobs: JobList, policy: str) -> tuple[Outcome, Parts]:
    (jobs,) = compact_tenants([jobs])
    ((result,),) = simulate(parse_all([policy]), cluster, [jobs], settings).values()
    return result, parts_of(result, cluster, params_for(cluster, jobs, settings))


def hold(result: Outcome, found: Parts, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(found.total_s(), result.jct_s, rtol=rtol)
    for name in ("queueing_s", "sharing_s", "server_s", "network_s", "restarts_s", "lost_s"):
        assert np.nanmin(getattr(found, name), initial=0.0) >= -1e-3, name


def random_run(seed: int, shape: str, **fixed) -> tuple[Outcome, Parts]:
    case = random_case(seed, shape, homogeneous=seed % 3 == 0, tree=seed % 2 == 0, **fixed)
    interval_s = (60.0, 7.3, 211.7)[seed % 3]
    policy, law = POLICIES[seed % len(POLICIES)], LAWS[seed % len(LAWS)]
    return played(case.cluster, case.jobs, policy, interference=law, interval_s=interval_s)


def random_stopped_run(seed: int, shape: str, **fixed) -> tuple[Outcome, Parts]:
    case = random_case(seed, shape, homogeneous=seed % 3 == 0, tree=seed % 2 == 0, **fixed)
    interval_s = (60.0, 7.3, 211.7)[seed % 3]
    policy, settings = stopping(seed, case, interference=LAWS[seed % len(LAWS)], interval_s=interval_s)
    return played_in(settings, case.cluster, case.jobs, policy)


def hold_stopped(runs: Iterable[tuple[Outcome, Parts]], fewest: int = 10) -> None:
    """Parts add up, attempts are what the engine counted, and there was something to count."""
    ended = np.zeros(len(ENDED))
    for result, found in runs:
        hold(result, found)
        attempts, again, done = result.attempts, result.interruptions, result.finished
        assert again is not None
        ended += np.bincount(attempts.ended, minlength=len(ENDED))
        for code, counted in ((STOPPED, again.stops), (FAILED, again.failure_restarts)):
            own = np.bincount(attempts.job[attempts.ended == code], minlength=len(counted))
            np.testing.assert_array_equal(own, counted)
        for seconds, counted in (
            (attempts.restart_s, again.restarting_s),
            (attempts.end_s - attempts.start_s, again.held_s),
        ):
            own = np.bincount(attempts.job, seconds, len(counted))
            np.testing.assert_allclose(own[done], counted[done], rtol=1e-6, atol=1e-3)
    assert ended[STOPPED] > fewest and ended[FAILED] > fewest


@pytest.mark.slower
def test_they_add_up_where_jobs_are_stopped_and_servers_fail():
    hold_stopped(random_stopped_run(seed, "three") for seed in range(12))


@pytest.mark.long
def test_they_add_up_in_a_hundred_runs_with_stops():
    hold_stopped(random_stopped_run(seed, "three") for seed in range(12, 12 + 100 * TIMES))


@pytest.mark.long
def test_they_add_up_where_jobs_that_share_gpus_are_stopped():
    hold_stopped([random_stopped_run(7, "two", fractions=0.6)], fewest=3)


@pytest.mark.slow
def test_they_add_up_to_every_completion_time():
    for seed in range(10):
        hold(*random_run(seed, "three"))


@pytest.mark.long
def test_they_add_up_in_a_hundred_runs():
    for seed in range(10, 110):
        hold(*random_run(seed, "three"))


@pytest.mark.long
def test_they_add_up_where_jobs_share_gpus():
    result, found = random_run(5, "two", fractions=0.6)
    hold(result, found)
    assert result.gpu is not None and np.nansum(found.sharing_s) > 0
    assert (found.sharing_s[(result.gpu < 0) & result.finished] == 0).all()


@pytest.mark.slow
def test_a_fallen_job_has_a_restart_lost_work_and_a_wait():
    """The only server is out from 960 to 3,000 s; 500 of the seconds done are kept."""
    cluster = build([Server(groups=(4,), cores=16)], leaf_spine(1), 1)
    jobs = make_job_list([0.0], [2000.0], [4], model=MODEL_NAMES.index("resnet50"))
    out = Outages(np.array([0]), np.array([950.0]), np.array([3000.0]))
    settings = Settings(record_placements=True, interference="none", outages=out, checkpoint_s=500.0)
    result, found = played_in(settings, cluster, jobs, "pack")
    attempts = result.attempts
    assert attempts.ended.tolist() == [FAILED, DONE] and attempts.restart_s.tolist() == [0.0, 60.0]
    np.testing.assert_allclose(attempts.start_s, [0.0, 3000.0])
    np.testing.assert_allclose(attempts.end_s, [960.0, 3000.0 + 60.0 + 1500.0], rtol=1e-5)
    parts = [found.queueing_s, found.ideal_s, found.restarts_s, found.lost_s]
    np.testing.assert_allclose(np.concatenate(parts), [2040.0, 2000.0, 60.0, 460.0], rtol=1e-5)
    hold(result, found)


def two_servers(model: str, count: int, **columns) -> tuple[Cluster, JobList]:
    """Two servers of one socket with 4 V100s and one NIC each, and as many equal gangs submitted at once."""
    cluster = build([Server(groups=(4,), cores=16)] * 2, leaf_spine(2), 1)
    ones = np.ones(count)
    jobs = make_job_list(0 * ones, 600 * ones, model=MODEL_NAMES.index(model) * ones.astype(int), **columns)
    return cluster, jobs


@pytest.mark.slow
def test_a_job_alone_on_the_best_place_only_waits_and_runs():
    cluster, jobs = two_servers("vgg16", 1, workers=[4])
    result, found = played(cluster, dataclasses.replace(jobs, submit_s=np.array([10.0])), "pack")
    np.testing.assert_allclose(found.queueing_s, 50.0)
    np.testing.assert_allclose([found.placement_s, found.server_s, found.network_s], 0.0, atol=1e-3)
    hold(result, found)


@pytest.mark.slow
def test_spreading_shows_as_placement_and_a_neighbour_on_the_wire_as_network():
    cluster, jobs = two_servers("vgg16", 2, workers=[2, 2])
    result, found = played(cluster, jobs, "load-balance", interference="analytic")
    assert result.workers is not None and (result.workers > 0).all()  # each gang on both servers
    hold(result, found)
    assert (found.placement_s > 60).all() and (found.network_s > 60).all()
    _, calm = played(cluster, jobs, "load-balance", interference="none")
    np.testing.assert_allclose(calm.network_s + calm.server_s, 0.0, atol=1e-3)
    assert (calm.placement_s > 60).all()


def test_without_placements_they_are_refused(comparison, cluster):
    result = dataclasses.replace(comparison.rows[0].outcomes[0], workers=None)
    with pytest.raises(UserError, match="placements were not recorded"):
        parts_of(result, cluster, params_for(cluster, result.jobs, Settings()))
