"""Sia's program: the exact choice, the greedy one and its gap, and the rules of a job on several GPU types."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from jaxsched.adaptive import choosing
from jaxsched.adaptive.choosing import by_gain
from jaxsched.adaptive.papers import pollux_and_sia
from jaxsched.adaptive.papers.pollux_and_sia import CASES, play_case
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.simulate import Nodes, Rules, simulate
from jaxsched.adaptive.workload import read_workload
from jaxsched.cli.main import main
from tests.adaptive.files import SHARED, write_profiles, write_workload
from tests.support.cases import TIMES

GPUS = np.array([0, 1, 2, 4, 8, 12, 1, 2, 4, 8, 16])
KIND = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
TOTAL = np.array([12, 16])


def drawn(rng, jobs):
    """Costs of concave speedups, with some choices that a job may not have."""
    pace = np.where(KIND == 0, 1.0, rng.uniform(0.5, 3.0, (jobs, 1)))
    speedup = pace * np.maximum(GPUS, 1) ** rng.uniform(0.3, 1.0, (jobs, 1))
    speedup = np.where(rng.uniform(size=speedup.shape) < 0.2, 0.0, speedup)
    least = np.where(speedup > 0, speedup, np.inf).min(1, keepdims=True)
    with np.errstate(divide="ignore"):
        value = -np.where(speedup > 0, (speedup / least) ** -0.5, np.inf)
    value[:, 0] = -choosing.WITHOUT_GPUS
    return value


def worth(value, chosen):
    held = [np.where(KIND[chosen] == t, GPUS[chosen], 0).sum() for t in range(2)]
    assert (np.array(held) <= TOTAL).all() and np.isfinite(value[np.arange(len(value)), chosen]).all()
    return value[np.arange(len(value)), chosen].sum()


def test_the_exact_choice_is_that_of_trying_all():
    for seed in range(20):
        value = drawn(np.random.default_rng(seed), 6)
        best = {(0, 0): 0.0}
        for row in value:
            after = {}
            for (a, b), sum_ in best.items():
                for c in np.flatnonzero(np.isfinite(row)):
                    key = (a + GPUS[c] * (KIND[c] == 0), b + GPUS[c] * (KIND[c] == 1))
                    if key[0] <= TOTAL[0] and key[1] <= TOTAL[1]:
                        after[key] = max(after.get(key, -np.inf), sum_ + row[c])
            best = after
        assert worth(value, choosing.solve(value, GPUS, KIND, TOTAL)) == pytest.approx(max(best.values()), abs=1e-9)


def by_integer_program(value):
    """The largest sum, by SciPy's HiGHS."""
    job, choice = np.nonzero(np.isfinite(value))
    each = (np.arange(len(value))[:, None] == job).astype(float)
    held = np.where(KIND[choice] == np.arange(2)[:, None], GPUS[choice], 0)
    limits = [LinearConstraint(each, 1, 1), LinearConstraint(held, ub=TOTAL)]
    whole, gap = np.ones(len(job)), {"mip_rel_gap": 0}
    return -milp(-value[job, choice], integrality=whole, bounds=Bounds(0, 1), constraints=limits, options=gap).fun


def test_the_exact_choice_is_that_of_an_integer_program():
    """From few GPUs for many jobs to more than all want; some hold theirs in a restart, some may have none."""
    for seed in range(60 * TIMES):
        rng = np.random.default_rng(seed)
        value = drawn(rng, int(rng.integers(1, 40)))
        for row in np.flatnonzero(rng.uniform(size=len(value)) < 0.1)[:4]:
            value[row] = np.where(np.arange(len(GPUS)) == rng.choice([1, 2, 6, 7]), value[row], -np.inf)
            value[row, 0] = -choosing.WITHOUT_GPUS if not np.isfinite(value[row]).any() else -np.inf
        assert worth(value, choosing.solve(value, GPUS, KIND, TOTAL)) == pytest.approx(
            by_integer_program(value), abs=1e-7
        )


def test_one_type_and_prices_of_nothing():
    value, total = drawn(np.random.default_rng(5), 12), np.array([300])
    chosen = choosing.solve(value, GPUS, np.zeros(len(GPUS), int), total)  # all have what they like best
    np.testing.assert_array_equal(value[np.arange(12), chosen], value.max(1))
    few = choosing.solve(value, GPUS, np.zeros(len(GPUS), int), np.array([3]))
    assert GPUS[few].sum() <= 3 and value[np.arange(12), few].sum() > -12 * choosing.WITHOUT_GPUS


def test_the_greedy_choice_fits_and_is_hardly_worse():
    gaps = []
    with jax.enable_x64(True):
        choose = jax.jit(lambda value: by_gain(value, jnp.asarray(GPUS), jnp.asarray(TOTAL), list(KIND)))
        for seed in range(100):
            value = drawn(np.random.default_rng(seed), 10)
            best = worth(value, choosing.solve(value, GPUS, KIND, TOTAL))
            gaps.append(worth(value, np.asarray(choose(value))) / best - 1.0)
    assert min(gaps) >= -1e-9 and np.mean(gaps) < 0.05


def test_a_job_that_restarts_keeps_its_gpus():
    """Its row has one choice, which is none of those without GPUs."""
    value = np.full((2, len(GPUS)), -np.inf)
    value[0, 4], value[1, 0] = -0.5, 0.0
    assert choosing.solve(value, GPUS, KIND, TOTAL).tolist() == [4, 0]


@pytest.mark.parametrize("name", ["sia", "sia-greedy"])
def test_jobs_on_two_types(name, tmp_path):
    """All end, and nobody holds more GPUs than there are; one GPU comes first, and a run at most doubles."""
    kinds = ("a", "b")
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), kinds)
    write_workload(tmp_path / "workload.csv", np.random.default_rng(7))
    apps = read_applications(tmp_path / "profiles", kinds)
    jobs = read_workload(tmp_path / "workload.csv", apps)
    nodes = (Nodes(2, 4, "a"), Nodes(1, 4, "b"))
    (result,) = simulate(POLICIES[name], apps, [jobs], nodes, Rules(restart_s={"small": 90.0, "large": 20.0}))
    assert np.isfinite(result.finish_s).all() and (result.restarts >= 1).all()
    assert result.gpu_s.sum() <= 12 * result.finish_s.max()


def test_a_trace_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "workloads" / "saturn").mkdir(parents=True)
    monkeypatch.setattr(pollux_and_sia, "play_sia", lambda data, report: [])
    main(["reproduce-table", "sia", "--data", str(tmp_path)])
    said = capsys.readouterr().out
    assert f"not played: {tmp_path / 'workloads' / 'newtrace'} is no folder" in said and "saturn" not in said


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published files are not here")
@pytest.mark.parametrize("name", ["sia", "sia-greedy"])
def test_published_workload(name):
    """Its mean is within 15% of what the authors' simulator gives."""
    with open(SHARED / "sia" / "results_philly_1.csv") as file:
        published = np.mean([float(row["jct_s"]) for row in csv.DictReader(file)])
    path = SHARED / "sia" / "workloads" / "philly" / "workload-1.csv"
    result = play_case(SHARED / "sia", CASES[0], [path], name)["workload-1"]
    assert abs(result.jct_s.mean() / published - 1) < 0.15
