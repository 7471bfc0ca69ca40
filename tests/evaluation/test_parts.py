"""The parts of completion times: they add up, and each cause shows where it must and nowhere else."""

import dataclasses

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.evaluation.parts import Parts, parts_of
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import Interruptions, Outcome
from jaxsched.simulation.settings import Settings, compact_tenants, env_config, env_params
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import JobList, make_job_list
from jaxsched.workload.models import MODEL_NAMES
from tests.support.random_cases import random_case

POLICIES = ("pack:sjf+backfill", "load-balance:area+backfill", "first-fit", "least-interference", "greedy-wait")
LAWS = ("default", "analytic:high", "fitted", "none")


def played(cluster: Cluster, jobs: JobList, policy: str, **changes) -> tuple[Outcome, Parts]:
    settings = Settings(record_placements=True, **changes)
    (jobs,) = compact_tenants([jobs])
    ((result,),) = simulate(parse_all([policy]), cluster, [jobs], settings).values()
    return result, parts_of(result, cluster, env_params(cluster, env_config(cluster, [jobs], settings), settings))


def hold(result: Outcome, found: Parts, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(found.total_s(), result.jct_s, rtol=rtol)
    for name in ("queueing_s", "sharing_s", "server_s", "network_s", "restarts_s"):
        assert np.nanmin(getattr(found, name), initial=0.0) >= -1e-3, name


def random_run(seed: int, shape: str, **fixed) -> tuple[Outcome, Parts]:
    case = random_case(seed, shape, homogeneous=seed % 3 == 0, tree=seed % 2 == 0, **fixed)
    interval_s = (60.0, 7.3, 211.7)[seed % 3]
    policy, law = POLICIES[seed % len(POLICIES)], LAWS[seed % len(LAWS)]
    return played(case.cluster, case.jobs, policy, interference=law, interval_s=interval_s)


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


def test_where_jobs_are_stopped_restarts_are_told_from_the_rest(comparison, cluster):
    row = comparison.rows[0].outcomes[0]
    count = len(row.jobs)
    held_s, restarting_s, lost_s = row.run_s + 90.0, np.full(count, 60.0), np.full(count, 20.0)
    once, fallen_s = np.ones(count, np.int64), np.full(count, 10.0)
    result = dataclasses.replace(
        row,
        finish_s=row.finish_s + 90.0,
        interruptions=Interruptions(once, held_s, restarting_s, lost_s, once, fallen_s),
    )
    settings = Settings(record_placements=True)
    found = parts_of(result, cluster, env_params(cluster, env_config(cluster, [row.jobs], settings), settings))
    np.testing.assert_allclose(found.restarts_s[row.finished], 90.0)
    np.testing.assert_allclose(found.total_s(), result.jct_s)
    assert np.isnan(found.network_s).all()


def test_without_placements_they_are_refused(comparison, cluster):
    result = dataclasses.replace(comparison.rows[0].outcomes[0], workers=None)
    settings = Settings()
    with pytest.raises(UserError, match="placements were not recorded"):
        parts_of(result, cluster, env_params(cluster, env_config(cluster, [result.jobs], settings), settings))
