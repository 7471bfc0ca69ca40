"""Jobs that know only what they have seen: the fit is as good as any that is found, runs are those of the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from jaxsched.adaptive.knowing import fit_to, predict
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.simulate import Nodes, Rules, simulate
from jaxsched.adaptive.workload import read_workload
from jaxsched.cluster.outages import Outages
from jaxsched.errors import UserError
from tests.adaptive.files import NODES, PER_NODE, write_profiles, write_workload
from tests.oracle import adaptive, allocation, knowing
from tests.support.cases import TIMES

LISTS = 3 * TIMES


def drawn_rows(rng, pairs):
    """Step times by the form itself, with noise: GPUs, local batch, seconds of a pass and of a step."""
    fit = [*rng.uniform([0.01, 0.001], [0.1, 0.01]), *rng.uniform(0.001, 0.1, 4), rng.uniform(1, 5)]
    rows = []
    for r, b in pairs:
        one, step = knowing.predict(fit, -(-r // PER_NODE), r, b)
        rows.append((r, b, *(np.array([one, step]) * rng.uniform(0.95, 1.05, 2))))
    return np.array(rows)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_search_finds_a_better_fit(seed):
    """Nelder and Mead's method, on the oracle's objective, from six starts."""
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, [(1, 8), (1, 16), (2, 8), (3, 32), (4, 16), (8, 16), (8, 64), (16, 32)])
    found = knowing.objective(fit_to(rows, PER_NODE), rows, PER_NODE)

    def cost(logs):
        return knowing.objective([*np.exp(logs[:6]), 1 + 9 / (1 + np.exp(-logs[6]))], rows, PER_NODE)

    starts = [np.append(np.log(rng.uniform(0.001, 0.1, 6)), 0.0) for _ in range(6)]
    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-8, "fatol": 1e-10}
    others = [minimize(cost, start, method="Nelder-Mead", options=options).fun for start in starts]
    assert found <= min(others) + 2e-3
    gpus, local = rows[:, :2].astype(np.int32).T
    with jax.enable_x64(True):
        guesses = predict(*map(jnp.asarray, (fit_to(rows, PER_NODE), -(-gpus // PER_NODE), gpus, local)))
    expected = [knowing.predict(fit_to(rows, PER_NODE), -(-r // PER_NODE), int(r), b) for r, b in rows[:, :2]]
    np.testing.assert_allclose(np.stack(guesses, axis=-1), expected, rtol=1e-5)


def test_last_bits_of_what_was_seen_make_no_other_fit():
    rows = drawn_rows(np.random.default_rng(5), [(1, 8), (2, 8), (4, 16), (8, 16), (16, 32)])
    nudged = rows * [1.0, 1.0, 1 + 1e-14, 1 - 1e-14]
    assert (rows != nudged).any()
    np.testing.assert_array_equal(fit_to(rows, PER_NODE), fit_to(nudged, PER_NODE))


def test_what_was_never_seen_scales_perfectly():
    """One GPU: no network. One node: several nodes take 1.1 times as long. One batch: half of a pass is constant."""
    rng = np.random.default_rng(0)
    one = fit_to(drawn_rows(rng, [(1, 8)]), PER_NODE)
    np.testing.assert_array_equal(one[2:6], 0.0)
    assert one[0] == pytest.approx(8 * one[1], rel=1e-3)
    node = fit_to(drawn_rows(rng, [(1, 8), (2, 8), (4, 16)]), PER_NODE)
    np.testing.assert_allclose(node[2:4], 1.1 * node[4:6])


@pytest.mark.slower
def test_runs_are_those_of_the_oracle(tmp_path):
    """Given the same fits, every job ends in the same second; and otherwise than with the truth."""
    write_profiles(tmp_path / "profiles", np.random.default_rng(3))
    apps = read_applications(tmp_path / "profiles")
    lists = []
    for i in range(LISTS):
        path = tmp_path / f"{i}.csv"
        write_workload(path, np.random.default_rng(60 + i), spread_s=(60, 600, 3000)[i % 3])
        lists.append(read_workload(path, apps))
    outages = [(1, 300.0, 500.0), (2, 900.0, 930.0)]
    rules = Rules(outages=Outages(*map(np.array, zip(*outages))), fits=True)
    known = {app: adaptive.Application(tmp_path / "profiles" / app) for app in apps}
    results = simulate(POLICIES["pollux"], apps, lists, (Nodes(NODES, PER_NODE),), rules)
    truth = simulate(POLICIES["pollux"], apps, lists, (Nodes(NODES, PER_NODE),), Rules(outages=rules.outages))
    for jobs, result in zip(lists, results):
        played = [
            knowing.Job(job.name, job.submit_s, known[job.application], job.gpus, None, least=job.least, high=job.most)
            for job in jobs
        ]
        world = knowing.World(NODES, PER_NODE, outages=outages, fit=fit_to)
        expected = world.play(played, allocation.pollux, adaptive.whole_nodes)
        assert dict(zip([job.name for job in jobs], result.jct_s)) == expected
        np.testing.assert_array_equal(result.restarts, [job.restarts for job in played])
    assert any((one.finish_s != other.finish_s).any() for one, other in zip(results, truth))


def test_who_cannot_play_is_refused(tmp_path):
    write_profiles(tmp_path / "profiles", np.random.default_rng(3))
    write_workload(tmp_path / "jobs.csv", np.random.default_rng(1))
    apps = read_applications(tmp_path / "profiles")
    jobs = read_workload(tmp_path / "jobs.csv", apps)
    for name in ("afs", "marginal", "tiresias", "sia-greedy"):
        with pytest.raises(UserError, match=f"{name} cannot go by what jobs predict"):
            simulate(POLICIES[name], apps, [jobs], (Nodes(NODES, PER_NODE),), Rules(fits=True))
