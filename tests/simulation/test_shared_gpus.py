"""Jobs that share GPUs, from a trace to the account of every job, with the shipped law."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.calibration.interference.files import load_model
from jaxsched.calibration.interference.fit import catalogue_item, slowdowns
from jaxsched.calibration.interference.named import sharing_law
from jaxsched.cluster.build import build
from jaxsched.cluster.inventory import read_node_list
from jaxsched.cluster.presets import get_cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.interference import CALIBRATION
from jaxsched.env.extensions.pairs import draw_pairs
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.policies.registry import parse, parse_all
from jaxsched.simulation.jax_run import JaxEngine
from jaxsched.simulation.outcome import write_jobs
from jaxsched.simulation.settings import PlayedWorld, Settings, env_config, most_running, params_for
from jaxsched.simulation.simulate import simulate
from jaxsched.workload import datasets
from jaxsched.workload.catalogue import BUILT_IN
from jaxsched.workload.jobs import make_job_list, take
from jaxsched.workload.models import model_index
from jaxsched.workload.traces import read_trace
from tests.oracle import contention, policies, simulator


def one_gpu(gpu_type):
    """A cluster of one GPU, with so much of everything else that only the GPU is contended for."""
    return build([Server(groups=(1,), gpu_type=gpu_type, cores=1e4, pcie_gbytes_s=1e6)], leaf_spine(1), 1)


def run_one(cluster, jobs, policy="pack:backfill", **settings):
    return compare(cluster, [jobs], [policy], Settings(**settings)).rows[0].outcomes[0]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu_type", "measured"), [("V100M32", "v100"), ("P100", "p100")])
@pytest.mark.parametrize("names", [("resnet18", "lstm_lm"), ("resnet50", "a2c", "bert")])
def test_models_on_one_gpu_are_as_slow_as_predicted(gpu_type, measured, names):
    """As `jaxsched interference predict` says, whatever shares they reserved."""
    models = [model_index(name) for name in names]
    part = load_model("fitted").parts["gpu"]
    expected = slowdowns(part, [catalogue_item(part, model, measured)[0] for model in models])
    assert (expected > 1.05).all()
    # Run times such that all of them end at once, after 5,000 s.
    jobs = make_job_list(np.zeros(len(names)), 5000 / expected, 1, model=models, milli=[100, 700, 200][: len(names)])
    done = run_one(one_gpu(gpu_type), jobs)
    np.testing.assert_allclose(done.run_s / jobs.duration_s, expected, rtol=1e-4)


@pytest.mark.long
def test_what_the_law_does_not_cover_is_analytic():
    jobs = make_job_list([0, 0], 1000, 1, milli=500)
    kappa = CALIBRATION["gpu"].default
    for gpu_type, name in (("T4", "default"), ("V100", "analytic"), ("T4", "fitted")):
        done = run_one(one_gpu(gpu_type), jobs, interference=name)
        np.testing.assert_allclose(done.run_s, 1000 * (1 + kappa), rtol=1e-4)
    np.testing.assert_allclose(run_one(one_gpu("V100"), jobs, interference="none").run_s, 1000, rtol=1e-4)
    high = run_one(one_gpu("V100"), jobs, interference="analytic:high").run_s
    np.testing.assert_allclose(high, 1000 * (1 + CALIBRATION["gpu"].high), rtol=1e-4)


def test_the_law_is_there_only_where_it_has_something_to_do():
    cluster = get_cluster("leaf-spine-2", 1)
    whole, fractions = make_job_list([0, 1], 10, 1), make_job_list([0, 1], 10, 1, milli=[1000, 250])
    player = JaxEngine().prepare(parse("pack"), PlayedWorld(cluster, [whole], Settings()))
    assert player.program.config.shared_gpus == 0 and player.params.interference.sharing is None
    player = JaxEngine().prepare(parse("pack"), PlayedWorld(cluster, [whole, fractions], Settings()))
    assert player.program.config.shared_gpus == 4 and player.params.interference.sharing is not None
    assert most_running(cluster, [fractions]) == 2 and most_running(cluster, [make_job_list([0] * 99, 1, 1)]) == 16
    assert env_config(cluster, [fractions], Settings()).shared_gpus == 4
    assert sharing_law("none") is sharing_law("analytic") is sharing_law("analytic:low") is None
    law = sharing_law("default")
    assert law is not None and int(jnp.sum(law.covered)) == 5
    with pytest.raises(UserError, match="no file"):
        sharing_law("/nonexistent")


@pytest.mark.slow
def test_fractions_share_gpus_that_whole_jobs_would_queue_for(tmp_path):
    """12 quarters on 3 GPUs all start at once; utilisation counts quarters."""
    cluster = build([Server(groups=(3,), gpu_type="V100")], leaf_spine(1), 1)
    jobs = make_job_list(np.zeros(12), 600, 1, milli=250)
    done = run_one(cluster, jobs, interference="none", record_placements=True)
    assert (done.start_s == 0).all()
    row = compare(cluster, [jobs], ["pack"], Settings(interference="none")).rows[0]
    assert row.figures.gpu_utilisation == pytest.approx(12 * 0.25 / 3)
    whole = run_one(cluster, make_job_list(np.zeros(12), 600, 1), interference="none")
    assert (whole.start_s > 0).sum() == 9
    write_jobs(tmp_path / "jobs.csv", done, cluster)
    with (tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["num_gpus"] for row in rows} == {"0.25"} and {row["placement"] for row in rows} == {"0:0:0.25"}


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, pytest.param(True, marks=pytest.mark.long)])
def test_whole_runs_with_pair_factors_as_the_oracle(known):
    """Each list has factors of its own, and starts with nothing seen."""
    cluster = build([Server(groups=(2, 2), gpu_type="V100")] * 2, leaf_spine(2), 1)
    settings = Settings(interference="analytic", pair_factors=1.5, pairs_known=known, seed=3)
    lists, spec = [_halves_and_thirds(seed) for seed in range(2)], "match:sjf+observe"
    played = simulate(parse_all([spec]), cluster, lists, settings)[spec]
    kappa = tuple(CALIBRATION[channel].default for channel in contention.CHANNELS)
    for place, (jobs, done) in enumerate(zip(lists, played, strict=True)):
        theirs = simulator.simulate(
            cluster,
            jobs,
            params_for(cluster, jobs, settings).profiles,
            policies.make_policy("match", "sjf", backfill=True, forward="forward", observe=True),
            interval_s=settings.interval_s,
            rounds=settings.rounds,
            interference="analytic",
            strengths=kappa,
            pair_factors=np.asarray(draw_pairs(len(BUILT_IN.models), 1.5, 3 + place).factor, np.float64),
            pairs_known=known,
        )
        np.testing.assert_array_equal(done.start_s, theirs.start_s)
        np.testing.assert_allclose(done.finish_s, theirs.finish_s, rtol=1e-5)
        assert theirs.pairs is not None and (theirs.pairs.seen_s > 600.0).sum() > 3


def _halves_and_thirds(seed):
    """60 jobs of 4 models that want 8 GPUs in turn."""
    rng = np.random.default_rng(seed)
    submit_s, run_s = np.cumsum(rng.exponential(60.0, 60)), rng.exponential(1500.0, 60) + 60.0
    return make_job_list(submit_s, run_s, 1, model=rng.integers(0, 4, 60), milli=rng.choice([330, 500, 670], 60))


def real_file(name):
    try:
        return datasets.find(name)
    except UserError:
        pytest.skip(f"needs the data set {name!r} (set JAXSCHED_DATA)")


@pytest.mark.long
def test_openb_pods_on_openb_nodes():
    """A slice of the real cluster under a slice of the real pods, fractions and whole ones: all are accounted for."""
    inventory = read_node_list(real_file("openb-nodes"))
    kinds = {name: [s for s in inventory.servers if s.gpu_type == name][:3] for name in ("V100M16", "P100", "T4", "G2")}
    servers = [server for group in kinds.values() for server in group]
    cluster = build(servers, leaf_spine(len(servers)), 2, inventory.gpu_speeds)
    jobs = take(read_trace(real_file("openb"))[0], slice(3000, 3300))
    assert 50 < (jobs.milli < 1000).sum() < 250
    table = compare(cluster, [jobs], ["pack:backfill+forward", "load-balance:tenants+backfill", "greedy-wait:t2.5"])
    for row in table.rows:
        assert row.jobs.arrived == len(jobs) == row.jobs.finished + row.jobs.rejected and row.jobs.running == 0
        result = row.outcomes[0]
        done = result.finished
        fastest = float(np.asarray(cluster.group_speed).max())
        assert (result.run_s[done] >= jobs.duration_s[done] / fastest * (1 - 1e-5)).all()
        assert not result.stats.illegal
        assert 0 < row.figures.gpu_utilisation <= 1
