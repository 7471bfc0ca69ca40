"""What else was on offer when a job started: the run is repeated, and greedy-wait takes the cheapest place."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.evaluation.decisions import decisions_of, find_most_lost
from jaxsched.policies.filling import quantise
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list

SETTINGS = Settings(record_placements=True)


@pytest.mark.slow
def test_greedy_wait_takes_the_cheapest_place(cluster, job_lists):
    policy, jobs = parse("greedy-wait"), job_lists[0]
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


@pytest.mark.slow
def test_a_run_that_is_not_repeated_is_not_explained(cluster, job_lists):
    policy, jobs = parse("random"), job_lists[0]
    ((result,),) = simulate([policy], cluster, [jobs], Settings(record_placements=True, seed=5)).values()
    found = decisions_of(policy, result, cluster, SETTINGS, np.arange(len(jobs)))  # another seed
    assert len(found) < len(jobs)


@pytest.mark.long
def test_a_policy_that_knows_pair_factors_knows_them_again():
    rng = np.random.default_rng(0)
    jobs = make_job_list(np.arange(40) * 300.0, rng.exponential(3600, 40) + 60, 1, milli=500, model=np.arange(40) % 8)
    cluster = build([Server(groups=(2, 2), gpu_type="V100")] * 2, leaf_spine(2), 1)
    settings = Settings(record_placements=True, pair_factors=1.5, pairs_known=True)
    ((result,),) = simulate([parse("match:sjf")], cluster, [jobs], settings).values()
    assert len(decisions_of(parse("match:sjf"), result, cluster, settings, np.arange(40))) == 40
