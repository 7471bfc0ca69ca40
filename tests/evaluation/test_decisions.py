"""What else was on offer when a job started: the run is repeated, and greedy-wait takes the cheapest place."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.presets import get_cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import Slower
from jaxsched.evaluation import decisions
from jaxsched.evaluation.decisions import decisions_of, find_most_lost, order_of_starts
from jaxsched.event_loop import coverage
from jaxsched.policies.filling import quantise
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings, env_config, env_params
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.load import WorkloadOptions, get_workload

SETTINGS = Settings(record_placements=True)


@pytest.mark.slower
def test_greedy_wait_takes_the_cheapest_place(cluster, job_lists):
    policy, jobs = parse("greedy-wait:p1"), job_lists[0]
    ((result,),) = simulate([policy], cluster, [jobs], SETTINGS).values()
    asked = find_most_lost(result, 12)
    lost_s = result.run_s - jobs.duration_s
    assert lost_s[asked].min() >= np.nanmax(np.delete(lost_s, asked))
    found = decisions_of(policy, result, cluster, SETTINGS, asked)
    assert sorted(decision.job for decision in found) == sorted(asked.tolist())
    assert [decision.at_s for decision in found] == sorted(result.start_s[asked].tolist())
    server_id, groups = np.asarray(cluster.server_id), cluster.shape[2]
    for decision in found:
        (taken,) = [place for place in decision.places if place.taken]
        workers = result.workers[decision.job].reshape(-1, groups).sum(-1)
        rows = server_id[result.partition[decision.job]]
        assert dict(taken.servers) == {int(rows[n]): int(workers[n]) for n in np.flatnonzero(workers)}
        costs = [place.slowdown + place.others_s / jobs.duration_s[decision.job] for place in decision.places]
        assert costs == sorted(costs) and costs[0] >= 1 - 1e-6
        score = taken.slowdown + taken.others_s / jobs.duration_s[decision.job]
        assert int(quantise(jnp.float32(score))) <= int(quantise(jnp.float32(costs[0]))) + 1
    assert max(len(decision.places) for decision in found) > 1


@pytest.mark.slower
def test_a_learned_policy_says_how_sure_it_is(cluster, job_lists):
    policy, jobs = parse("quickstart"), job_lists[0]
    ((result,),) = simulate([policy], cluster, [jobs], SETTINGS).values()
    found = decisions_of(policy, result, cluster, SETTINGS, find_most_lost(result, 8))
    assert len(found) == 8
    for decision in found:
        sure = decision.sure
        assert set(sure) == {"act", "option", "entropy", "value"} and all(map(np.isfinite, sure.values()))
        acts, option = sure["act"], sure["option"]
        assert 0.5 <= acts <= 1 and 0 < option <= 1 + 1e-6, "it did what is most likely"
        waits = max(1 - acts, 1e-30)
        least = (
            -acts * np.log(acts) - waits * np.log(waits) - acts * np.log(option)
        )  # options have -log of the largest at least
        assert sure["entropy"] >= least - 1e-3
    assert len({decision.sure["value"] for decision in found}) > 1


@pytest.mark.slower
def test_a_run_that_is_not_repeated_is_not_explained(cluster, job_lists):
    policy, jobs = parse("random"), job_lists[0]
    ((result,),) = simulate([policy], cluster, [jobs], Settings(record_placements=True, seed=5)).values()
    found = decisions_of(policy, result, cluster, SETTINGS, np.arange(len(jobs)))  # another seed
    assert len(found) < len(jobs)


@pytest.mark.slower
@pytest.mark.parametrize(
    ("spec", "stops"), [("pack:las+backfill+preempt+spread", True), ("greedy-wait:sjf+spread+reserve+seek", False)]
)
def test_what_only_the_event_loop_plays_is_repeated_from_its_record(spec, stops):
    """All first starts are found, at their times and places, however jobs were stopped or sent on before."""
    cluster = get_cluster("leaf-spine-4", 2)
    options = WorkloadOptions(num_jobs=150, load=1.2, total_gpus=32, schedulers=2)
    jobs, policy = get_workload("distributed", options)[0], parse(spec)
    settings = Settings(record_placements=True, preemption=stops)
    ((result,),) = simulate([policy], cluster, [jobs], settings).values()
    assert (len(result.attempts.job) > len(jobs)) == stops
    found = decisions_of(policy, result, cluster, settings, np.arange(len(jobs)))
    begun = np.flatnonzero(result.start_s >= 0)  # the others are rejected
    assert len(begun) > 140 and [decision.at_s for decision in found] == sorted(result.start_s[begun].tolist())
    taken = {decision.job: next(place for place in decision.places if place.taken) for decision in found}
    assert sorted(taken) == begun.tolist() and max(len(decision.places) for decision in found) > 1
    for job, place in taken.items():
        assert sum(count for _, count in place.servers) == jobs.workers[job]


def test_the_order_of_starts_is_found_without_numba(cluster, job_lists, monkeypatch):
    for module in (coverage, decisions):
        monkeypatch.setattr(module, "numba_missing", lambda: "it needs Numba")
    policy, jobs = parse("pack:sjf+backfill+spread+seek"), job_lists[0]
    with pytest.warns(Slower):
        ((result,),) = simulate([policy], cluster, [jobs], SETTINGS).values()
    config = env_config(cluster, [jobs], SETTINGS)
    turn = order_of_starts(policy, result, config, env_params(cluster, config, SETTINGS), SETTINGS.interval_s, None)
    begun = result.attempts.start_s[np.argsort(turn)]
    assert sorted(turn) == list(range(len(turn))) and (np.diff(begun) >= 0).all() and (np.diff(begun) > 0).any()


@pytest.mark.long
def test_a_policy_that_knows_pair_factors_knows_them_again():
    rng = np.random.default_rng(0)
    jobs = make_job_list(np.arange(40) * 300.0, rng.exponential(3600, 40) + 60, 1, milli=500, model=np.arange(40) % 8)
    cluster = build([Server(groups=(2, 2), gpu_type="V100")] * 2, leaf_spine(2), 1)
    settings = Settings(record_placements=True, pair_factors=1.5, pairs_known=True)
    ((result,),) = simulate([parse("match:sjf")], cluster, [jobs], settings).values()
    assert len(decisions_of(parse("match:sjf"), result, cluster, settings, np.arange(40))) == 40
