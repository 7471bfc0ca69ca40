"""Every attempt of a run is there, in all engines, however short the logs are that they keep."""

import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.simulation import settings as of_settings
from jaxsched.simulation.outcome import DONE, FAILED, RUNNING, STATUS, STOPPED, Outcome, attempts_of_log
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from tests.support.strategies import STOPPING, policy_of

CLUSTER = get_cluster("leaf-spine-2", 1)
STOPS = dict(preemption=True, failures="20,0.5", checkpoint_s=600.0, interference="none")


def played(count: int, lists: int = 1, spec: str = "pack:las+backfill+preempt", **changes) -> list[Outcome]:
    rng, jobs = np.random.default_rng(0), []
    for _ in range(lists):
        submit_s, duration_s = np.sort(rng.uniform(0, 4e4, count)), rng.uniform(1e3, 2e4, count)
        jobs.append(make_job_list(submit_s, duration_s, rng.choice([1, 2, 8], count)))
    settings = Settings(**(dict(record_placements=True) | STOPS | changes))
    return simulate([policy_of(spec)], CLUSTER, jobs, settings)[spec]


def hold(result: Outcome) -> None:
    """What the engine counted per job is what its attempts say, and no GPU is held twice."""
    attempts, again, count = result.attempts, result.interruptions, len(result.jobs)
    assert again is not None
    for code, counted in ((STOPPED, again.stops), (FAILED, again.failure_restarts), (DONE, result.finished)):
        np.testing.assert_array_equal(np.bincount(attempts.job[attempts.ended == code], minlength=count), counted)
    for seconds, counted in (
        (attempts.restart_s, again.restarting_s),
        (attempts.end_s - attempts.start_s, again.held_s),
    ):
        own, done = np.bincount(attempts.job, seconds, count), result.finished
        np.testing.assert_allclose(own[done], counted[done], rtol=1e-6)
    gpus = attempts.workers * result.jobs.gpus_per_worker[attempts.job][:, None]
    for time_s in attempts.start_s:
        held = gpus[(attempts.start_s <= time_s) & (attempts.end_s > time_s)].sum(0)
        assert (held <= np.asarray(CLUSTER.group_gpus).reshape(-1)).all()


def test_the_compiled_loop_goes_on_with_a_longer_log():
    (result,) = played(60)
    assert result.stats.engine == "compiled" and len(result.attempts.job) > 2 * (64 + 60)
    hold(result)


@pytest.mark.slower
def test_jax_reads_its_log_whenever_it_is_full(monkeypatch):
    monkeypatch.setattr(of_settings, "STARTS", 3)
    (result,) = played(12, spec=STOPPING, engine="jax")
    assert len(result.attempts.job) > 12
    hold(result)


@pytest.mark.long
def test_so_does_a_batch(monkeypatch):
    monkeypatch.setattr(of_settings, "STARTS", 3)
    for result in played(12, lists=2, spec=STOPPING, engine="jax", batched=True):
        assert len(result.attempts.job) > 12
        hold(result)


def test_what_still_runs_or_waits_at_the_horizon_is_told_apart():
    (result,) = played(40, horizon_s=21e3)
    attempts = result.attempts
    last = {int(job): int(code) for job, code in zip(attempts.job, attempts.ended)}
    status = {job: STATUS[result.status[job]] for job in last}
    assert {status[job] for job, code in last.items() if code == RUNNING} == {"running"}
    assert {status[job] for job, code in last.items() if code == STOPPED} == {"queued"}
    assert (attempts.end_s[attempts.ended == RUNNING] == 21e3).all()


def test_runs_without_placements_have_none():
    (result,) = played(5, record_placements=False)
    with pytest.raises(UserError, match="placements were not recorded"):
        _ = result.attempts


def test_a_log_is_read_by_what_grew_between_two_starts():
    log = {
        "job": [0, 1, 0, 0],
        "partition": [0, 0, 1, 0],
        "boundary": [0, 1, 5, 9],
        "ran": [0, 0, 3, 5],
        "stops": [0, 0, 1, 1],
        "failure_restarts": [0, 0, 0, 1],
        "workers": np.zeros((4, 1), np.int8),
    }
    now = {"ran": np.array([5, 0]), "stops": np.array([1, 0]), "failure_restarts": np.array([1, 0])}
    found = attempts_of_log(log, now, np.array([np.nan, 75.0]), end_s=100.0, interval_s=10.0, restart_s=30.0)
    assert found.ended.tolist() == [STOPPED, DONE, FAILED, RUNNING]
    assert found.end_s.tolist() == [30.0, 75.0, 70.0, 100.0]
    assert found.restart_s.tolist() == [0.0, 0.0, 20.0, 10.0]
