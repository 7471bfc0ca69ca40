import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.stages import transition
from jaxsched.env.state import EnvConfig, make_params, wait_action
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse, parse_all
from jaxsched.simulation import settings as rules
from jaxsched.simulation.jax_run import JaxEngine
from jaxsched.simulation.settings import PlayedWorld, Settings, compact_tenants, env_config, fits_somewhere
from jaxsched.workload.jobs import make_job_list, to_table
from tests.support.evaluation_jobs import some_jobs


def plainly(cluster, jobs, spec, settings):
    """Start and finish times by a loop of single steps with tables that are large from the beginning."""
    config = EnvConfig(running_slots=8, queue_slots=256, rounds=64, largest_worker=1, early_stop=True, skip_idle=False)
    params = make_params(cluster, interval_s=settings.interval_s)
    policy = parse(spec)

    @jax.jit
    def run(state):
        def body(state):
            action = policy(jax.random.key(0), state, params)
            return transition(config, params, state, action)[0]

        return jax.lax.while_loop(lambda state: ~is_finished(state), body, state)

    records = jax.tree.map(np.asarray, run(initial_state(config, params, to_table(jobs, settings.interval_s))).records)
    finish = records.finish * settings.interval_s + records.finish_offset_s.astype(float)
    return records.start * settings.interval_s, finish


@pytest.mark.long
def test_tables_that_grow_change_no_times(cluster, monkeypatch):
    monkeypatch.setattr(rules, "SMALLEST_RUNNING", 4)
    monkeypatch.setattr(rules, "SMALLEST_QUEUE", 4)
    jobs, settings = dataclasses.replace(some_jobs(3, 60), tenant=np.zeros(60, np.int32)), Settings()
    (result,) = JaxEngine().prepare(parse("pack"), PlayedWorld(cluster, [jobs], settings)).play([jobs])
    assert result.stats.peak_queue > 4 and result.stats.queue_slots >= result.stats.peak_queue
    assert result.stats.peak_running > 4 and result.stats.running_slots >= result.stats.peak_running
    start, finish = plainly(cluster, jobs, "pack", settings)
    started = ~np.isnan(result.start_s)
    assert not started[jobs.num_gpus > 8].any() and started[jobs.num_gpus <= 8].all()
    np.testing.assert_array_equal(result.start_s[started], start[started])
    np.testing.assert_allclose(result.finish_s[started], finish[started], rtol=1e-6)


def test_policies_that_differ_in_weights_alone_share_a_program(cluster):
    jobs, act, engine = some_jobs(3, 5), parse("pack").function, JaxEngine()
    weights = np.ones(2), np.zeros(2), np.ones(3), [np.ones(2)]
    one, like, longer, nested = (Policy(f"{i}", act, w) for i, w in enumerate(weights))
    another = dataclasses.replace(one, act=lambda *about: act(*about))

    def program(policy):
        return engine.prepare(policy, PlayedWorld(cluster, [jobs], Settings())).program

    assert program(one) is program(like)
    assert len({id(program(policy)) for policy in (one, longer, nested, another)}) == 4


@pytest.mark.slower
def test_a_batch_gives_the_same_as_one_run_after_the_other(cluster, job_lists, comparison):
    batch = compare(cluster, job_lists, ["pack"], Settings(batched=True))
    for one, other in zip(batch.rows[0].outcomes, comparison.rows[0].outcomes, strict=True):
        np.testing.assert_array_equal(one.status, other.status)
        np.testing.assert_array_equal(one.start_s, other.start_s)
        np.testing.assert_allclose(one.finish_s, other.finish_s, rtol=1e-6)


@pytest.mark.slower
def test_what_is_drawn_does_not_depend_on_the_lists_beside(cluster, monkeypatch):
    """The second list needs larger tables, and at other times."""
    monkeypatch.setattr(rules, "SMALLEST_QUEUE", 8)
    first, second = (dataclasses.replace(some_jobs(1, n), submit_s=np.arange(n) * 10.0) for n in (40, 120))
    beside = compare(cluster, [first, second], ["random"], Settings(batched=True)).rows[0].outcomes[0]
    alone = compare(cluster, [first], ["random"]).rows[0].outcomes[0]
    assert beside.stats.queue_slots != alone.stats.queue_slots
    np.testing.assert_array_equal(beside.start_s, alone.start_s)
    np.testing.assert_allclose(beside.finish_s, alone.finish_s, rtol=1e-6)


def test_times_are_those_of_the_jobs(comparison):
    for row in comparison.rows:
        for result in row.outcomes:
            done = result.finished
            assert (result.queue_s[done] >= 0).all()
            assert (result.run_s[done] >= result.jobs.duration_s[done] * (1 - 1e-5)).all()
            assert (result.start_s[done] % 60.0 == 0).all()
            assert result.stats.illegal == 0


def test_horizon_cuts_off_and_accounts_for_every_job(cluster):
    jobs = some_jobs(5)
    row = compare(cluster, [jobs], ["pack"], Settings(horizon_s=1200)).rows[0]
    counts = row.jobs
    assert counts.arrived == counts.finished + counts.running + counts.queued + counts.rejected < len(jobs)
    assert counts.running + counts.queued > 0
    assert math.isnan(row.figures.jct_mean_s) and "at the horizon of 1,200 s" in row.notes[0]
    cut = rules.explain_horizon(make_params(get_cluster("leaf-spine-1")), Settings(interval_s=1e-5))
    assert cut == "at 10,737 s, for interval_s is short and the clock counts 1,073,741,824 intervals"


@pytest.mark.slow
def test_a_policy_that_never_starts_a_job_is_cut_off(cluster):
    lazy = Policy("lazy", lambda key, state, params, weights: wait_action(params.cluster))
    comparison = compare(cluster, [some_jobs(6, 3)], [lazy])
    assert "starts no job" in comparison.rows[0].notes[0]
    assert comparison.best_baseline is None
    assert comparison.to_json()["policies"]["lazy"]["jct_mean_s"] is None


@pytest.mark.slow
def test_a_gap_of_millions_of_intervals_is_no_stall(cluster):
    """The clock skips 1,024 intervals at once, so that whole chunks pass in which nothing happens."""
    jobs = make_job_list([0.0, 30.0, 4e6 * 60.0], [50.0, 70.0, 90.0], [1, 2, 1])
    both = [compare(cluster, [jobs], ["pack"], Settings(engine=engine)) for engine in ("jax", "compiled")]
    jax_times, compiled = (one.rows[0].outcomes[0] for one in both)
    assert jax_times.finished.all() and jax_times.cut_off is None
    np.testing.assert_array_equal(jax_times.start_s, compiled.start_s)
    np.testing.assert_allclose(jax_times.run_s, compiled.run_s, rtol=1e-6)


def test_reports_end_with_all_jobs(comparison, progress, job_lists):
    for policy in ("pack", "random"):
        for seed, jobs in enumerate(job_lists):
            last = [one for one in progress if (one.policy, one.seed) == (policy, seed)][-1]
            assert last.over and last.finished == last.arrived == last.total == len(jobs)


def test_an_error_in_a_run_comes_out(cluster, job_lists):
    def broken(key, view, job):
        raise RuntimeError("broken")

    with pytest.raises(UserError, match=r"rule broken fails in line [0-9]+: RuntimeError: broken"):
        compare(cluster, job_lists, [broken])


def test_everything_too_large_is_a_mistake(cluster):
    with pytest.raises(UserError, match=r"no job fits .* smallest gang has 9 GPUs, the largest partition 8"):
        compare(cluster, [make_job_list([0, 1], [5, 5], [9, 12])], ["pack"])


def test_what_fits(cluster):
    jobs = make_job_list([0] * 5, [1] * 5, [8, 9, 2, 1, 3], gpus_per_worker=[1, 1, 4, 5, 3])
    assert fits_somewhere(cluster, jobs).tolist() == [True, False, True, False, False]
    assert env_config(cluster, [jobs], Settings()).largest_worker == 4  # the larger ones never queue


def test_tenants_are_renumbered_over_all_lists(job_lists):
    renumbered = compact_tenants(job_lists)
    for before, after in zip(job_lists, renumbered):
        np.testing.assert_array_equal(after.tenant, np.where(before.tenant == 3, 0, 1))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "none is given"),
        (["pack", "pack"], "'pack' is given twice"),
        (["nix"], "unknown policy 'nix'"),
        (["runs/nix"], "no such folder"),
        (["pack:sfj"], "unknown option 'sfj'"),
    ],
)
def test_bad_policies(specs, message):
    with pytest.raises(UserError, match=message):
        parse_all(specs)


def test_a_job_beyond_the_clock_is_a_mistake(cluster):
    with pytest.raises(UserError, match=r"too short for a job that ends after 1\.67e"):
        compare(cluster, [make_job_list([0, 1], [5, 1e12], [1, 1])], ["pack"])
    with pytest.raises(UserError, match=r"duration_s: job 1 has 1e-300, should be a finite number >= 1e-09"):
        make_job_list([0, 1], [5, 1e-300], [1, 1])


@pytest.mark.parametrize("values", [{"interval_s": 0}, {"interval_s": math.nan}, {"rounds": 0}, {"horizon_s": -1}])
def test_bad_settings(values):
    with pytest.raises(UserError, match=next(iter(values))):
        Settings(**values)


def test_models_of_interference(tmp_path):
    assert Settings().interference == "default"
    for name in ("default", "none", "analytic", "analytic:low", "analytic:high", "fitted"):
        Settings(interference=name)
    low, default, high = (interference_model(f"analytic{end}").weights.kappa for end in (":low", "", ":high"))
    assert (low < default).all() and (default < high).all()
    with pytest.raises(UserError, match=r"no file card\.json"):
        Settings(interference=str(tmp_path))
    with pytest.raises(UserError, match="unknown interference model 'analytic:nix'"):
        Settings(interference="analytic:nix")
    with pytest.raises(UserError, match="unknown interference model"):
        Settings(interference="quantum")
