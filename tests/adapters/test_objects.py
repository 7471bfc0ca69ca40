"""Objects in place of names: clusters, job lists, generators, laws and rewards; and what is said of wrong ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.dynamics.interference import Interference, none
from jaxsched.errors import UserError
from jaxsched.workload.jobs import JobList, make_job_list

CLUSTER = "leaf-spine-2"
JOBS = {"num_jobs": 12, "mean_duration_s": 600.0, "load": 2.0}


def jobs_of(seed: int) -> JobList:
    """Pairs of jobs that share a NIC where they are spread."""
    rng = np.random.default_rng(seed)
    return make_job_list(np.zeros(6), rng.uniform(300, 900, 6), 4, gpus_per_worker=1, home=np.arange(6) % 2)


def louder(weights, channel, model, own, others):
    """Everything counts three times."""
    return 1.0 + 3.0 * others + 0.0 * own


@pytest.mark.slower
def test_a_law_of_ones_own_is_played_as_it_says():
    """Without contention a job ends after its duration; with a law of ones own later."""
    found = {
        name: jaxsched.compare(CLUSTER, jobs_of(0), ["load-balance"], interference=law)
        for name, law in {"none": "none", "mine": louder, "model": Interference(law=louder, weights=None)}.items()
    }
    jct = {name: one.rows[0].figures.jct_mean_s for name, one in found.items()}
    assert jct["mine"] > 1.02 * jct["none"] and jct["model"] == jct["mine"]
    assert found["mine"].config["interference"] == found["model"].config["interference"] == "louder"


def test_an_environment_has_the_law_it_is_given():
    env = jaxsched.make(CLUSTER, num_jobs=2, episodes=1, interference=louder)
    assert env.params.env.interference.law is louder
    assert jaxsched.make(CLUSTER, num_jobs=2, episodes=1, interference="none").params.env.interference.law is none


def branches(weights, channel, model, own, others):
    return 1.0 + others if others.sum() > 0 else own


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (branches, r"law branches fails in line \d+: TracerBoolConversionError: .* jnp.where"),
        (lambda weights, channel, model, own, others: 1.0, "returned float, should be a stretch"),
        (lambda weights, channel, model, own, others: 1.0 + others, r"shape \(6,\), should be .* \(3, 6\)"),
        (lambda weights, channel, model, own, others: 0.5 + others + own * 0, "is no finite number of at least 1"),
        (lambda weights, channel, model, own, others: 1.5 + others + own * 0, "is not 1 where others use nothing"),
        (
            lambda weights, channel, model, own, others: jnp.where(others == 0.5, 3.0, 1.0 + others) + own * 0,
            "falls where others use more",
        ),
        (3, "interference: 3 should be a name, an Interference, or a law"),
        (lambda weights, channel, model, own, others: 1.0 if others > 0 else own, "write jnp.where"),
    ],
)
def test_a_law_that_is_none_is_told_in_one_line(law, said):
    with pytest.raises(UserError, match=said) as caught:
        jaxsched.Settings(interference=law)
    assert "\n" not in str(caught.value)


def test_a_cluster_and_jobs_may_be_given():
    cluster, jobs = jaxsched.get_cluster(CLUSTER, 2), [jobs_of(0), jobs_of(1)]
    env = jaxsched.make(cluster, jobs)
    assert env.params.starts.jobs.arrival.shape == (2, 6) and env.params.env.cluster.shape == cluster.shape
    np.testing.assert_allclose(env.params.starts.jobs.duration_s[1], jobs[1].duration_s, rtol=1e-6)
    assert jaxsched.make(cluster, jobs[0]).params.starts.jobs.arrival.shape == (1, 6)
    made = jaxsched.make(cluster, jobs_of, episodes=3, seed=1)
    np.testing.assert_allclose(made.params.starts.jobs.duration_s[0], jobs[1].duration_s, rtol=1e-6)


def test_compare_takes_what_make_takes():
    cluster = jaxsched.get_cluster(CLUSTER, 2)
    by_name = jaxsched.compare(CLUSTER, "philly-like", ["pack"], seeds=2, schedulers=2, **JOBS)
    given = jaxsched.compare(cluster, "philly-like", ["pack"], seeds=2, **JOBS)
    assert given.rows[0].figures.jct_mean_s == by_name.rows[0].figures.jct_mean_s
    drawn = jaxsched.compare(cluster, jobs_of, ["pack"], seeds=2, seed=3)
    listed = jaxsched.compare(cluster, [jobs_of(3), jobs_of(4)], ["pack"])
    assert (
        drawn.rows[0].figures.jct_mean_s == listed.rows[0].figures.jct_mean_s and drawn.config["workload"] == "jobs_of"
    )


def broken(seed):
    raise RuntimeError("no disk\nat all")


@pytest.mark.parametrize(
    ("cluster", "workload", "options", "said"),
    [
        (CLUSTER, "phily", {"mean_duration_s": 60.0}, "workload: unknown 'phily'.*known are philly-like"),
        (3, "philly-like", {}, "cluster is 3; it should be a text or a Cluster"),
        ("given", jobs_of, {"schedulers": 1}, "schedulers, gpu_speeds: are for clusters by name"),
        (CLUSTER, [], {}, "workload: should be a name, a file, a JobList or several|jobs is an empty list"),
        (CLUSTER, [3], {}, r"(workload|jobs) is list \[3\]; it should be a text or .*, each of them a JobList"),
        (CLUSTER, jobs_of(0), {"load": 0.5}, "load: only for jobs by name"),
        (CLUSTER, jobs_of, {"mean_duration_s": 9.0}, "mean_duration_s: only for jobs by name"),
        (CLUSTER, broken, {}, r"workload broken fails in line \d+: RuntimeError: no disk at all"),
        (CLUSTER, lambda seed: 7, {}, "returned int for seed 0, should be a JobList"),
    ],
)
def test_wrong_objects_are_told(cluster, workload, options, said):
    cluster = jaxsched.get_cluster(CLUSTER, 2) if cluster == "given" else cluster
    for ask in (lambda: jaxsched.make(cluster, workload, **options), lambda: compare(cluster, workload, options)):
        with pytest.raises(UserError, match=said) as caught:
            ask()
        assert "\n" not in str(caught.value)


def compare(cluster, workload, options):
    return jaxsched.compare(cluster, workload, ["pack"], **options)


def test_counts_of_given_jobs_are_refused():
    with pytest.raises(UserError, match="num_jobs: is for jobs by name"):
        jaxsched.make(CLUSTER, jobs_of, num_jobs=3)
    with pytest.raises(UserError, match="seeds: 3 should be left out, 1 job list"):
        jaxsched.make(CLUSTER, jobs_of(0), episodes=3)


def if_on_a_tracer(state, params):
    return state.queue * 1.0 if state.clock > 3 else state.queue * 2.0


def of_another_shape(state, params):
    return state.clock * 1.0


def returns_a_number(key, state, params, weights):
    return 3


def fails(key, state, params, weights):
    return state.nothing


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            lambda: jaxsched.policy("pack", name="mine", order=if_on_a_tracer),
            r"order if_on_a_tracer fails in line \d+: Tracer",
        ),
        (
            lambda: jaxsched.policy("pack", name="mine", order=of_another_shape),
            "order of_another_shape: returned an array of shape",
        ),
        (lambda: jaxsched.Policy("mine", returns_a_number), "policy function returns_a_number: returned int, should"),
        (lambda: jaxsched.Policy("mine", fails), r"policy function fails fails in line \d+: AttributeError: "),
    ],
)
def test_mistakes_in_functions_are_told_in_one_line(policy, said):
    with pytest.raises(UserError, match=said) as caught:
        jaxsched.compare(CLUSTER, jobs_of(0), [policy()])
    assert "\n" not in str(caught.value)


@pytest.mark.slower
def test_a_function_may_be_the_reward():
    def finished(before, after, params):
        done = lambda state: jnp.where(state.jobs.arrival >= 0, state.records.status == 2, False).sum() * 1.0
        return jnp.full(state_count(after), done(after) - done(before))

    def state_count(state):
        return state.queue.shape[0]

    env = jaxsched.make(CLUSTER, jobs_of(0), reward=finished, schedulers=2)

    def play(carry, key):
        seen, turn = carry
        seen, turn, reward, terminated, _, info = env.step(key, turn, jnp.argmax(seen["mask"], -1))
        return (seen, turn), (reward, terminated, info["finished"])

    keys = jax.random.split(jax.random.key(0), 40)
    _, (reward, terminated, count) = jax.jit(lambda: jax.lax.scan(play, env.reset(keys[0]), keys))()
    end = int(np.argmax(terminated))
    assert terminated[end] and int(count[end]) == 6
    np.testing.assert_array_equal(reward[: end + 1].sum(0), [6.0, 6.0])
    with pytest.raises(UserError, match=r"reward <lambda>: returned an array of shape \(\), should be a reward for"):
        jaxsched.make(CLUSTER, jobs_of(0), reward=lambda before, after, params: jnp.float32(0), schedulers=2)
