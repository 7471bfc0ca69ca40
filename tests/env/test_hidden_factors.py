"""Factors of models that share a GPU: who knows them, and what can be seen of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.gpu_sharing import Sharers, pressure_of, stretch_under
from jaxsched.dynamics.interference import default_interference
from jaxsched.env.environment import initial_state
from jaxsched.env.extensions.pairs import draw_pairs, on_completion
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.rollout import action_of
from jaxsched.env.state import EnvConfig, make_params, wait_action
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.parts import parts_of
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings, pairs_of, params_for
from jaxsched.workload.jobs import make_job_list, to_table

FACTORS = jnp.array([[1.0, 3.0, 0.5], [2.0, 1.0, 0.25], [4.0, 5.0, 1.0]])


def nothing_seen(factor=FACTORS, **changes) -> Pairs:
    return Pairs(factor=factor, seen_s=jnp.zeros((3, 3)), mean=jnp.ones((3, 3)), **changes)


def sharers(gpu, model):
    return Sharers(gpu=jnp.array([gpu]), model=jnp.array([model]), gpu_type=jnp.zeros((1, len(gpu)), jnp.int32))


def test_what_is_added_has_the_mean_factor_of_the_co_runners():
    """The analytic law adds 0.72 per co-runner; 0 beside 1 and 2 has the mean of 3 and 0.5."""
    law = default_interference().replace(pairs=FACTORS)
    jobs = sharers([0, 0, 0], [0, 1, 2])
    pressure = pressure_of(law, jobs)
    others = pressure.sum(1, keepdims=True) - pressure
    expected = 1 + 2 * 0.72 * np.array([[(3 + 0.5) / 2, (2 + 0.25) / 2, (4 + 5) / 2]])
    np.testing.assert_allclose(stretch_under(law, jobs, others), expected, rtol=1e-6)
    np.testing.assert_array_equal(stretch_under(law, jobs, jnp.zeros_like(others)), 1.0)


def test_a_pair_is_seen_while_its_jobs_run_beside_each_other():
    """0 and 1 for 60 s, then 2 comes to them for 30 s; one of model 2 is elsewhere, alone."""
    jobs = sharers([5, 5, 5, 7, -1], [0, 1, 2, 2, 0])
    two = on_completion(nothing_seen(), jobs, jnp.array([[True, True, False, True, True]]), jnp.float32(60))
    assert two.seen_s.tolist() == [[0, 60, 0], [60, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(two.mean, [[1, 3, 1], [2, 1, 1], [1, 1, 1]])
    three = on_completion(two, jobs, jnp.array([[True, True, True, True, True]]), jnp.float32(30))
    assert three.seen_s.tolist() == [[0, 75, 15], [75, 0, 15], [15, 15, 0]]
    beside_both = {0: (3 + 0.5) / 2, 1: (2 + 0.25) / 2, 2: (4 + 5) / 2}
    expected = np.ones((3, 3))
    for a, b in ((0, 1), (1, 0)):
        expected[a, b] = (60 * float(FACTORS[a, b]) + 15 * beside_both[a]) / 75
    for a, b in ((0, 2), (1, 2), (2, 0), (2, 1)):
        expected[a, b] = beside_both[a]
    np.testing.assert_allclose(three.mean, expected, rtol=1e-6)


def test_a_job_sees_another_of_its_own_model_but_not_itself():
    jobs = sharers([0, 0], [2, 2])
    seen = on_completion(nothing_seen(FACTORS * 2), jobs, jnp.array([[True, True]]), jnp.float32(10))
    assert float(seen.seen_s[2, 2]) == 20 and float(seen.seen_s.sum()) == 20
    np.testing.assert_allclose(seen.mean[2, 2], 2.0)


def one_gpu():
    """A cluster of one GPU of a type that no law was fitted for, with plenty of everything else."""
    return build([Server(groups=(1,), gpu_type="T4", cores=1e4, pcie_gbytes_s=1e6)], leaf_spine(1), 1)


@pytest.mark.parametrize("known", [False, True])
def test_no_policy_sees_a_factor_that_is_not_known(known):
    cluster = one_gpu()
    params, config = make_params(cluster), EnvConfig(shared_gpus=1)
    table = to_table(make_job_list([0, 0], 100, 1, milli=500), 60.0)
    models = params.profiles.compute_s.shape[0]
    secret = draw_pairs(models, 0.7, 3, known=known)
    state = initial_state(config, params, table, secret)
    seen = {}

    def look(key, state, params, weights):
        seen["state"], seen["params"] = state, params
        return wait_action(params.cluster)

    action_of(config, params, Policy("looks", look), state, jax.random.key(0))
    believed = seen["params"].interference.pairs
    if known:
        np.testing.assert_array_equal(believed, secret.factor)
        return
    assert believed is None
    found = [leaf for leaf in jax.tree.leaves(seen["state"].pairs) if (np.asarray(leaf) == secret.factor).all()]
    assert not found


def test_every_list_has_factors_of_its_own_and_every_policy_the_same():
    settings = Settings(pair_factors=0.7, seed=4)
    first, second = pairs_of(settings, 0), pairs_of(settings, 1)
    assert first is not None and second is not None
    assert not np.allclose(first.factor, second.factor)
    np.testing.assert_array_equal(second.factor, pairs_of(dataclasses.replace(settings, seed=5), 0).factor)
    many = np.concatenate([np.ravel(draw_pairs(100, 0.7, seed).factor) for seed in range(20)])
    assert abs(many.mean() - 1) < 0.01 and abs(np.log(many).std() - 0.7) < 0.01
    assert pairs_of(Settings(), 0) is None
    np.testing.assert_array_equal(draw_pairs(5, 0.0, 1).factor, 1.0)


@pytest.mark.slow
def test_a_run_has_the_factors_and_its_account_says_so():
    """Two jobs on one GPU, 0.72 of each time added by the law: the run and the account of its parts have the factor."""
    cluster = one_gpu()
    jobs = make_job_list([0, 0], 1000, 1, milli=500, model=[0, 1])
    settings = Settings(pair_factors=0.7, record_placements=True)
    done = compare(cluster, [jobs], ["pack:backfill"], settings).rows[0].outcomes[0]
    pairs = pairs_of(settings, 0)
    assert pairs is not None
    stretch = 1 + 0.72 * np.array([pairs.factor[0, 1], pairs.factor[1, 0]])
    first = int(np.argmin(stretch))
    both_s = 1000 * stretch[first]
    expected = np.empty(2)
    expected[first] = both_s
    expected[1 - first] = both_s + 1000 - both_s / stretch[1 - first]
    np.testing.assert_allclose(done.jct_s, expected, rtol=1e-4)
    parts = parts_of(done, cluster, params_for(cluster, jobs, settings))
    np.testing.assert_allclose(parts.sharing_s, expected - 1000, rtol=1e-3)


@pytest.mark.long
def test_who_observes_avoids_a_pair_that_it_has_seen_to_be_bad():
    """Of many pairs `match+observe` makes fewer bad ones than `match`, which believes in the law for ever."""
    rng = np.random.default_rng(0)
    cluster = build([Server(groups=(4,), gpu_type="T4", cores=1e4, pcie_gbytes_s=1e6)], leaf_spine(1), 1)
    submit_s = np.sort(rng.uniform(0, 60_000, 400))
    jobs = make_job_list(submit_s, 900, 1, milli=500, model=rng.integers(4, size=400))
    policies = ["match:sjf", "match:sjf+observe"]
    found = compare(cluster, [jobs], policies, Settings(pair_factors=1.0, seed=1))
    blind, learned = (float(row.outcomes[0].jct_s.mean()) for row in found.rows)
    assert learned < 0.95 * blind
    known = compare(cluster, [jobs], policies, Settings(pair_factors=1.0, seed=1, pairs_known=True))
    told, also = (row.outcomes[0].jct_s for row in known.rows)
    np.testing.assert_array_equal(told, also)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(pair_factors=-0.1), "pair_factors: -0.1"),
        (dict(pair_factors=float("nan")), "pair_factors: nan"),
        (dict(pair_factors=4.0), "pair_factors: 4.0 should be from 0 to 3"),
        (dict(pairs_known=True), "pairs_known"),
    ],
)
def test_settings_out_of_range(changes, words):
    with pytest.raises(UserError, match=words):
        Settings(**changes)


def test_factors_need_jobs_that_share():
    with pytest.raises(UserError, match=r"pair_factors: are for jobs that share a GPU.*gpu_share"):
        compare(one_gpu(), [make_job_list([0, 1], 10, 1)], ["pack"], Settings(pair_factors=0.5))


def test_observing_is_for_those_that_look_at_interference():
    assert parse("match:observe").spec.observe and not parse("match:observe").is_rule
    assert parse("greedy-wait:sjf+observe").spec.observe and parse("greedy-wait:sjf").is_rule
    with pytest.raises(UserError, match="unknown option 'observe'"):
        parse("pack:observe")
