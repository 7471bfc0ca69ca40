"""The program and the oracle agree on every job's end: the published lists to the second, random ones likewise."""

import csv
from collections import defaultdict

import jax
import numpy as np
import pytest

from jaxsched.adaptive import rounds
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import NO_LIMITS, PUBLISHED_LIMITS, read_applications
from jaxsched.adaptive.simulate import Nodes, Rules, build, simulate
from jaxsched.adaptive.state import start
from jaxsched.adaptive.workload import read_workload
from jaxsched.cluster.outages import Outages
from tests.adaptive.files import NODES, PER_NODE, SHARED, write_narrow_workload, write_profiles, write_workload
from tests.oracle import adaptive as oracle
from tests.oracle import allocation, typed
from tests.support.cases import TIMES

LISTS = 12 * TIMES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("profiles")
    write_profiles(made / "profiles", np.random.default_rng(3))
    for i in range(LISTS):
        write_workload(made / f"workload-{i}.csv", np.random.default_rng(100 + i), spread_s=(60, 600, 3000)[i % 3])
    write_narrow_workload(made / f"workload-{LISTS}.csv")
    return made


def oracle_jobs(jobs, apps, own_batch):
    made = []
    for job in jobs:
        limits = PUBLISHED_LIMITS.get(job.application, NO_LIMITS)
        batch = limits.batch if own_batch else job.batch
        made.append(
            oracle.Job(job.name, job.submit_s, apps[job.application], job.gpus, batch, least=job.least, high=job.most)
        )
    return made


def oracle_apps(folder, names):
    found = {}
    for name in names:
        limits = PUBLISHED_LIMITS.get(name, NO_LIMITS)
        found[name] = oracle.Application(
            folder / name, limits={k: v for k, v in (("local", limits.local_batch), ("gpus", limits.gpus)) if v}
        )
    return found


def drawn_outages(rng):
    """Node, from, to: some shorter than a round, some at its end, one that takes all nodes."""
    nodes, begins, lasts = rng.integers(0, NODES, 12), rng.integers(1, 3000, 12), [5, 60, 400] * 4
    drawn = [(int(n), float(begin), float(begin + last)) for n, begin, last in zip(nodes, begins, lasts)]
    return drawn + [(1, 300.0, 360.0)] + [(n, 1200.0, 1230.0) for n in range(NODES)]


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"sia"}))  # its ties are the solver's
def test_random_lists(name, folder):
    """Every job ends in the same second, and has held the same GPU-seconds."""
    apps = read_applications(folder / "profiles")
    lists = [read_workload(folder / f"workload-{i}.csv", apps) for i in range(LISTS + 1)]
    outages = drawn_outages(np.random.default_rng(11))
    rules = Rules(interference=0.3, outages=Outages(*map(np.array, zip(*outages))))
    results = simulate(POLICIES[name], apps, lists, (Nodes(NODES, PER_NODE),), rules)
    known = oracle_apps(folder / "profiles", apps)
    for jobs, result in zip(lists, results):
        world = oracle.World(NODES, PER_NODE, interference=0.3, outages=outages)
        played = oracle_jobs(jobs, known, POLICIES[name].own_batch)
        policy = getattr(allocation, name.replace("-", "_"))
        expected = world.play(played, policy, allocation.PLACING[policy])
        assert dict(zip([job.name for job in jobs], result.jct_s)) == expected
        np.testing.assert_allclose(result.gpu_s, [job.service for job in played], rtol=1e-12)
        np.testing.assert_array_equal(result.restarts, [job.restarts for job in played])


def test_two_types_and_outages(tmp_path):
    """4 nodes of 4 and 2 of 8, some of which fail: every job of six lists ends in the same second."""
    kinds, types = ("a", "b"), ((4, 4), (2, 8))
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), kinds, per_node=8)
    for i in range(6 * TIMES):
        write_workload(tmp_path / f"{i}.csv", np.random.default_rng(20 + i), spread_s=(60, 600, 3000)[i % 3])
    apps = read_applications(tmp_path / "profiles", kinds)
    lists = [read_workload(tmp_path / f"{i}.csv", apps) for i in range(6 * TIMES)]
    outages = [(1, 200.0, 500.0), (4, 300.0, 330.0), (5, 900.0, 1500.0)]
    rules = Rules(outages=Outages(*map(np.array, zip(*outages))))
    nodes = [Nodes(count, gpus, kind) for (count, gpus), kind in zip(types, kinds)]
    known = {name: [oracle.Application(tmp_path / "profiles" / name, kind) for kind in kinds] for name in apps}
    for jobs, result in zip(lists, simulate(POLICIES["sia-greedy"], apps, lists, nodes, rules)):
        played = [
            typed.Job(known[job.application], job.name, job.submit_s, job.gpus, job.least, job.most) for job in jobs
        ]
        expected = typed.World(types, outages=outages).play(played, typed.sia_greedy, oracle.whole_nodes)
        assert dict(zip([job.name for job in jobs], result.jct_s)) == expected
        np.testing.assert_array_equal(result.restarts, [job.restarts for job in played])


def test_what_holds_of_every_round(folder):
    """Ranges, nodes, progress and GPU time, of lists of which nodes fail; by states alone, with no second simulator."""
    apps, nodes = read_applications(folder / "profiles"), (Nodes(NODES, PER_NODE),)
    lists = [read_workload(folder / f"workload-{i}.csv", apps) for i in range(LISTS + 1)]
    outages = Outages(*map(np.array, zip(*drawn_outages(np.random.default_rng(11)))))
    with jax.enable_x64(True):
        world, jobs = build(POLICIES["pollux"], apps, lists, nodes, Rules(outages=outages))

        def play(jobs):
            def step(state, _):
                after = rounds.one_round(POLICIES["pollux"], world, jobs, state)
                return after, after

            return jax.lax.scan(step, start(world, jobs), length=60)[1]

        states = jax.device_get(jax.jit(jax.vmap(play))(jobs))
    gpus, now_s = states.place.sum(-1), states.now_s[:, :, None]
    within = (gpus >= np.asarray(jobs.least_gpus)[:, None]) & (gpus <= np.asarray(jobs.most_gpus)[:, None])
    assert (within | (gpus == 0)).all() and gpus.any(1).all(where=np.asarray(jobs.real))
    assert (states.place.sum(2) <= PER_NODE).all()  # no GPU twice
    for node, begin, end in zip(outages.server, outages.from_s, outages.to_s):
        assert (states.place[..., node].sum(-1) == 0).all(where=(begin <= now_s[..., 0]) & (now_s[..., 0] < end))
    before, after = (states.progress[:, at] for at in (slice(None, -1), slice(1, None)))
    assert (after >= np.minimum(before, states.saved[:, :-1])).all()  # back to the last start at most
    fell = after < before
    assert fell.any() and (states.epoch[:, 1:] >= states.epoch[:, :-1]).all()
    held_s = np.clip(states.finish_s[:, 1:], now_s[:, :-1], now_s[:, 1:]) - now_s[:, :-1]
    np.testing.assert_allclose(np.diff(states.service, axis=1), gpus[:, :-1] * held_s, atol=1e-9)


def test_windows_change_no_result(folder, monkeypatch):
    """Windows of 2, 4, 8 and all 12 jobs, as many as are in the system, give what one of all jobs gives."""
    apps = read_applications(folder / "profiles")
    lists = [read_workload(folder / f"workload-{i}.csv", apps) for i in range(3)]
    whole = simulate(POLICIES["equal"], apps, lists, (Nodes(NODES, PER_NODE),))
    monkeypatch.setattr(rounds, "LEAST_WINDOW", 2)
    for expected, result in zip(whole, simulate(POLICIES["equal"], apps, lists, (Nodes(NODES, PER_NODE),))):
        for name in ("start_s", "finish_s", "gpu_s", "restarts"):
            np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.slower
@pytest.mark.skipif(not SHARED.exists(), reason="the published files are not here")
@pytest.mark.parametrize("name", ["tiresias", "optimus"])
def test_published_jobs_end_in_the_same_second(name):
    """One workload at each of two loads; `jaxsched reproduce-table pollux` plays all."""
    published = defaultdict(dict)
    with open(SHARED / "pollux" / "results_per_job.csv") as file:
        for row in csv.DictReader(file):
            published[row["run"], row["workload"]][row["job"]] = float(row["jct_s"])
    apps = read_applications(SHARED / "pollux" / "profiles")
    for load in ("0.5", "1.0"):
        path = SHARED / "pollux" / f"workloads-{load}" / "workload-3.csv"
        (result,) = simulate(POLICIES[name], apps, [read_workload(path, apps)])
        assert dict(zip([job.name for job in result.jobs], result.jct_s)) == published[f"{name}-{load}", path.stem]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published files are not here")
def test_pollux_is_as_good_as_the_published_one():
    """Within 3% of its mean, or below; and equal to the oracle."""
    with open(SHARED / "pollux" / "results_per_job.csv") as file:
        rows = [row for row in csv.DictReader(file) if (row["run"], row["workload"]) == ("pollux-0.5", "workload-1")]
    apps = read_applications(SHARED / "pollux" / "profiles")
    jobs = read_workload(SHARED / "pollux" / "workloads-0.5" / "workload-1.csv", apps)
    (result,) = simulate(POLICIES["pollux"], apps, [jobs])
    assert result.jct_s.mean() <= 1.03 * np.mean([float(row["jct_s"]) for row in rows])
    played = oracle_jobs(jobs, oracle_apps(SHARED / "pollux" / "profiles", apps), own_batch=True)
    ends = oracle.World().play(played, allocation.pollux, oracle.whole_nodes)
    assert ends == dict(zip([job.name for job in jobs], result.jct_s))
