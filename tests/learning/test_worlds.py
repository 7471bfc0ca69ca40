"""Environments drawn for training: ranges respected, offered load as asked for, clusters of their own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.hardware import total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import on_reference, profiles_on
from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.learning import validation
from jaxsched.learning.config import describe_limits
from jaxsched.learning.draws import Draw, draw_state, draw_worlds, params_axes, params_of, params_of_all
from jaxsched.learning.validation import validation_worlds
from jaxsched.learning.worlds import make_worlds
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.models import model_index
from jaxsched.worlds.families import parse_worlds
from jaxsched.worlds.world import draw_world, mean_jobs

COUNT, JOBS, LOAD = 64, 2000, 0.8


@pytest.fixture(scope="module")
def worlds(config):
    return make_worlds(config.env, config.workload, config.reward.weights())


@pytest.fixture(scope="module")
def drawn(worlds):
    """States and draws of `COUNT` environments."""
    return jax.device_get(jax.jit(lambda key: draw_worlds(key, worlds, COUNT))(jax.random.key(3)))


def draws_of(strength=1.0, pace=1.0, interval_factor=1.0, cluster=0, count: int = 1) -> Draw:
    """The same draw `count` times."""
    values = dict(strength=jnp.float32(strength), pace=jnp.float32(pace), interval_factor=jnp.float32(interval_factor))
    return Draw(**{name: jnp.full(count, leaf) for name, leaf in (values | {"cluster": jnp.int32(cluster)}).items()})


def states_of(config, draws: Draw):
    """States of many jobs at load `LOAD`, one per draw, by keys that depend on nothing else."""
    many = make_worlds(config.env, config.workload, config.reward.weights())
    keys = jax.random.split(jax.random.key(5), draws.pace.shape[0])
    return jax.device_get(jax.jit(jax.vmap(lambda k, d: draw_state(k, many, d, jnp.float32(LOAD), JOBS)))(keys, draws))


def changed(config, **workload):
    return dataclasses.replace(config, workload=dataclasses.replace(config.workload, **workload))


@pytest.mark.slow
def test_draws_stay_in_their_ranges_and_fill_them(config, drawn):
    _, draws = drawn
    drawn_from = [
        (draws.strength, config.env.contention),
        (np.log(draws.pace), np.log(config.workload.pace)),
        (np.log(draws.interval_factor), np.log(config.env.interval_factor)),
    ]
    for values, (low, high) in drawn_from:
        assert (values >= low - 1e-5).all() and (values <= high + 1e-5).all()
        for share in range(4):  # in every quarter of the range
            left = low + (high - low) * share / 4
            assert ((values >= left) & (values <= left + (high - low) / 4)).any()
    assert set(draws.cluster.tolist()) == {0, 1}


@pytest.mark.slow
def test_every_environment_has_the_cluster_interval_and_contention_of_its_draw(config, worlds, drawn):
    states, draws = drawn
    params, axes = params_of_all(worlds, draws), params_axes(worlds)
    names = (config.env.cluster, *config.env.more_clusters)
    for e in range(COUNT):
        cluster = get_cluster(names[draws.cluster[e]], config.env.schedulers)
        assert int(params.cluster.group_gpus[e].sum()) == total_gpus(cluster) == int(states.free[e].sum())
        np.testing.assert_allclose(
            params.interval_s[e], config.env.interval_s * draws.pace[e] * draws.interval_factor[e], rtol=1e-6
        )
        kappa = worlds.params.interference.weights.kappa * draws.strength[e]
        np.testing.assert_allclose(params.interference.weights.kappa[e], kappa, rtol=1e-6)
    assert axes.interval_s == 0 and axes.cluster.route == 0 and axes.max_forwards is None


def test_clusters_of_training_worlds_can_be_trained_on_and_those_of_tests_cannot(config):
    names = ("partitioned-training-0", "any-training-1")
    own = [draw_world(parse_worlds(f"{name.partition('-')[0]}:1:training"), int(name[-1])).build() for name in names]
    env = dataclasses.replace(config.env, cluster=names[0], more_clusters=names[1:])
    many = make_worlds(env, config.workload, config.reward.weights())
    assert many.gpus.tolist() == [total_gpus(cluster) for cluster in own]
    assert [int(row.any(-1).sum()) for row in many.clusters.server_id >= 0] == [cluster.shape[0] for cluster in own]
    with pytest.raises(UserError, match=r"any-1: is a test world.*any-training-1"):
        make_worlds(dataclasses.replace(env, more_clusters=("any-1",)), config.workload, config.reward.weights())


@pytest.mark.slow
def test_jobs_are_of_the_models_of_the_mix(config):
    states = states_of(changed(config, mix="bert,dqn"), draws_of())
    assert set(states.jobs.model.ravel().tolist()) == {model_index("bert"), model_index("dqn")}


def test_a_lone_cluster_is_shared(config):
    env = dataclasses.replace(config.env, more_clusters=())
    alone = make_worlds(env, config.workload, config.reward.weights())
    params, axes = params_of_all(alone, draws_of(count=3)), params_axes(alone)
    assert axes.cluster.route is None and axes.interval_s == 0
    assert params.cluster.group_gpus.ndim == 3 and params.interval_s.shape == (3,)


@pytest.mark.slower
@pytest.mark.parametrize("cluster", [0, 1])
@pytest.mark.parametrize("tilt", [-0.5, 0.0, 0.6])
def test_the_offered_load_is_the_one_asked_for(config, worlds, cluster, tilt):
    """Whatever the cluster, the pace, the interval and the mix of gangs; SE of the mean over 40 lists about 1%."""
    count = 40
    config = changed(config, gang_tilt=(tilt, tilt), mean_duration_s=900.0, burstiness=1.0)
    states = states_of(config, draws_of(pace=1.7, interval_factor=0.5, cluster=cluster, count=count))
    jobs, interval_s = states.jobs, 1.7 * 0.5 * config.env.interval_s
    area = (jobs.workers * jobs.gpus_per_worker * jobs.duration_s).sum(-1)
    seen = area / (jobs.arrival[:, -1] * interval_s * float(worlds.gpus[cluster]))
    np.testing.assert_allclose(seen.mean(), LOAD, rtol=0.04)


@pytest.mark.slow
def test_run_times_may_be_on_another_gpu_type(config, worlds):
    """The same jobs as by the function for whole lists, at the same offered load."""
    stated, converted = (states_of(changed(config, trace_gpu=name), draws_of()).jobs for name in ("", "T4"))
    names = ("workers", "gpus_per_worker", "ps", "model")
    columns = {name: np.asarray(getattr(stated, name)[0]) for name in names}
    columns["duration_s"] = np.asarray(stated.duration_s[0], np.float64)
    zeros = np.zeros(JOBS)
    jobs = make_job_list(zeros, columns.pop("duration_s"), columns.pop("workers"), **columns)
    cluster = get_cluster(config.env.cluster, config.env.schedulers)
    expected = on_reference(cluster, worlds.params.profiles, jobs, "T4").duration_s
    np.testing.assert_allclose(converted.duration_s[0], expected, rtol=1e-4)
    assert (expected < 0.7 * stated.duration_s[0]).any()
    loads = [(x.workers * x.duration_s).sum() / x.arrival[0, -1] for x in (stated, converted)]
    np.testing.assert_allclose(loads[1], loads[0], rtol=1e-3)


@pytest.mark.slow
def test_a_tilt_makes_gangs_larger(config):
    mean = [
        states_of(changed(config, gang_tilt=(tilt, tilt)), draws_of()).jobs.workers.mean() for tilt in (-0.5, 0.0, 0.5)
    ]
    assert mean[0] < 0.8 * mean[1] and mean[2] > 1.2 * mean[1]


@pytest.mark.slow
def test_pace_is_a_change_of_the_unit_of_time(config, worlds):
    """The same jobs at the same boundaries, with all seconds multiplied."""
    one, slow = (states_of(config, draws_of(pace=pace)).jobs for pace in (1.0, 2.0))
    for name in ("arrival", "workers", "ps", "model", "home"):
        np.testing.assert_array_equal(getattr(one, name), getattr(slow, name))
    for name in ("duration_s", "lead_s"):
        np.testing.assert_allclose(getattr(slow, name), 2 * getattr(one, name), rtol=1e-5, atol=1e-3)
    params = [params_of(worlds, jax.tree.map(lambda leaf: leaf[0], draws_of(pace=pace))) for pace in (1.0, 2.0)]
    assert float(params[1].interval_s) == 2 * float(params[0].interval_s)


@pytest.mark.slow
def test_homes_are_as_skewed_as_the_range_says(config):
    even = np.bincount(states_of(changed(config, home_skew=(0.0, 0.0)), draws_of()).jobs.home[0]) / JOBS
    skewed = np.bincount(states_of(changed(config, home_skew=(1.0, 1.0)), draws_of()).jobs.home[0]) / JOBS
    np.testing.assert_allclose(even, [1 / 2, 1 / 2], atol=0.05)
    np.testing.assert_allclose(skewed, [2 / 3, 1 / 3], atol=0.05)


def test_all_trainings_are_validated_on_the_same_worlds(config, worlds):
    """Whatever their seed, and `validation: {seed: N}` draws others; null takes the training's seed."""

    def drawn(training_seed, seed=0):
        options = dataclasses.replace(config.validation, seed=seed)
        return jax.device_get(jax.jit(lambda: validation_worlds(options, training_seed, worlds)[1].jobs.duration_s)())

    first = drawn(0)
    np.testing.assert_array_equal(first, drawn(1))
    np.testing.assert_array_equal(first, drawn(0, None))
    assert (first != drawn(1, None)).any() and (first != drawn(0, 1)).any()


@pytest.mark.slower
@pytest.mark.parametrize(("geometric", "expected"), [(False, 3.5), (True, 20.0**0.25)])
def test_worlds_with_long_queues_need_not_outweigh_the_others(config, worlds, monkeypatch, geometric, expected):
    options = dataclasses.replace(config.validation, seeds=4, geometric=geometric)
    monkeypatch.setattr(validation, "mean_jct_s", lambda *_: jnp.array([1.0, 1.0, 2.0, 10.0]))
    even = worlds._replace(workload=changed(config, pace=(1.0, 1.0)).workload)
    found = validation.validation_jct_s(options, 0, even, SchedulerNetwork(), Discipline(), 1, {})
    assert float(found) == pytest.approx(expected)


# ---------------------------------------------------------------------------------------------------------- own traces


@pytest.fixture
def trace(tmp_path):
    """Sixty jobs a minute apart; the later half lasts twice as long; one fits nowhere."""
    rows = [f"{i},{60 * i},{2 if i % 2 else 4},{600 if i < 30 else 1200},resnet50" for i in range(60)]
    rows[5] = "5,300,4096,600,resnet50"
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["job_id,submit_time_s,num_gpus,duration_s,model", *rows]) + "\n")
    return path


def test_worlds_of_a_trace_have_its_jobs_at_the_load_asked_for(config, trace):
    config = changed(config, trace=str(trace), until=0.5)
    own = make_worlds(config.env, config.workload, config.reward.weights())
    assert own.past is not None and own.past.gap_s.shape == (29,), "of the first half, one of which fits nowhere"
    pace, factor = 2.0, 0.5
    draws = jax.tree.map(lambda leaf: leaf[0], draws_of(pace=pace, interval_factor=factor))
    jobs = jax.device_get(jax.jit(lambda: draw_state(jax.random.key(5), own, draws, jnp.float32(LOAD), 29))()).jobs
    assert set(jobs.duration_s.tolist()) == {600.0 * pace} and sorted(jobs.workers.tolist()).count(2) == 14
    assert (np.diff(jobs.arrival) >= 0).all() and (jobs.lead_s >= 0).all() and (jobs.home >= 0).all()
    interval_s = config.env.interval_s * pace * factor
    end_s = jobs.arrival[-1] * interval_s - jobs.lead_s[-1]
    area = (jobs.workers * jobs.duration_s).sum()
    assert area / (end_s * float(own.gpus[0])) == pytest.approx(LOAD, rel=1e-3)
    assert (jobs.lead_s < interval_s).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_id,submit_time_s,num_gpus,duration_s\n" + "\n".join(f"{i},{i},1,60" for i in range(9)), "9 jobs fit the"),
        ("job_id,submit_time_s,num_gpus,duration_s\n" + "\n".join(f"{i},0,1,60" for i in range(40)), "over some time"),
    ],
)
def test_traces_that_teach_nothing_are_refused(config, tmp_path, text, said):
    (tmp_path / "few.csv").write_text(text + "\n")
    bad = changed(config, trace=str(tmp_path / "few.csv"))
    with pytest.raises(UserError, match=said):
        make_worlds(bad.env, bad.workload, bad.reward.weights())
    synthetic = changed(config, trace="distributed")
    with pytest.raises(UserError, match="trace: distributed: is synthetic"):
        make_worlds(synthetic.env, synthetic.workload, synthetic.reward.weights())


# ----------------------------------------------------------------------------------------------------- worlds' own jobs


def with_own_jobs(config, *names):
    env = dataclasses.replace(config.env, cluster=names[0], more_clusters=names[1:])
    return dataclasses.replace(changed(config, own=True), env=env)


def test_worlds_may_be_trained_on_with_jobs_and_models_of_their_own(config):
    """Every environment has the jobs of its own cluster's world, and these the models, at a factor of its load."""
    config = with_own_jobs(config, "any-training-1", "any-training-5")
    own = make_worlds(config.env, config.workload, config.reward.weights())
    assert own.past is not None and own.params.profiles.compute_s.shape == own.profiles.compute_s[0].shape
    for number, name in enumerate((1, 5)):
        world = draw_world(parse_worlds("any:1:training"), name)
        draws = jax.tree.map(lambda leaf: leaf[0], draws_of(cluster=number))
        params = params_of(own, draws)
        models = profiles_on(world.build(), world.catalogue.models)
        np.testing.assert_array_equal(params.profiles.compute_s, models.compute_s)
        np.testing.assert_array_equal(params.profiles.gradient_bytes, models.gradient_bytes)
        draw = jax.jit(functools.partial(draw_state, worlds=own, count=400))
        jobs = jax.device_get(draw(jax.random.key(5), draw=draws, load=jnp.float32(LOAD))).jobs
        kinds = lambda jobs: {*zip(*(np.asarray(x).tolist() for x in (jobs.workers, jobs.gpus_per_worker, jobs.model)))}
        assert kinds(jobs) <= kinds(world.jobs) and {*jobs.duration_s.tolist()} <= {*world.jobs.duration_s.tolist()}
        busy = lambda jobs, span_s: (jobs.workers * jobs.gpus_per_worker * jobs.duration_s).sum() / span_s
        end_s = jobs.arrival[-1] * float(params.interval_s) - jobs.lead_s[-1]
        assert busy(jobs, end_s) == pytest.approx(LOAD * busy(world.jobs, np.ptp(world.jobs.submit_s)), rel=1e-3)
        assert float(own.worth[number]) == pytest.approx(1 / mean_jobs(world))
    limits = describe_limits(config)
    assert "jobs and models of these worlds" in limits and "load of these worlds times" in limits, limits
    axes = params_axes(own)
    assert axes.profiles.compute_s == 0 and params_of_all(own, draws_of(count=3)).profiles.compute_s.shape[0] == 3


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("any-training-1", "leaf-spine-8"), "own: leaf-spine-8 has no jobs; take clusters of training worlds"),
        (("llm-training-0",), "own: llm-training-0: its jobs have plans"),
        (("any-training-1", "task-tiny-training-0"), "own: worlds should have as many jobs as each other"),
    ],
)
def test_worlds_without_jobs_to_draw_are_refused(config, names, said):
    bad = with_own_jobs(config, *names)
    with pytest.raises(UserError, match=said):
        make_worlds(bad.env, bad.workload, bad.reward.weights())
