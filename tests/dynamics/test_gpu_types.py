"""GPUs of different types: speeds by model, run times on a stated type, and that nobody loses by a server more."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.bounds import jct_lower_bound_s
from jaxsched.cluster.build import build
from jaxsched.cluster.gpu_types import GPU_SPEEDS
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.footprint import best_hardware, relative_speed
from jaxsched.dynamics.reference import ideal_slowdown, on_reference, profiles_on
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.models import CATALOGUE, model_index, profiles


def cluster_of(*kinds: str, schedulers: int = 1, **server):
    return build([Server(gpu_type=kind, **server) for kind in kinds], leaf_spine(len(kinds)), schedulers)


def speed_of(model: str, gpu_type: str, cluster) -> float:
    number, v = cluster.gpu_types.index(gpu_type), GPU_SPEEDS[gpu_type]
    models = profiles(cluster.gpu_types)
    index, kind = jnp.int32(model_index(model)), jnp.int32(number)
    return float(relative_speed(models, index, kind, jnp.float32(v), cluster.reference))


def test_what_was_measured_goes_before_the_rule():
    cluster = cluster_of("V100")
    assert speed_of("resnet50", "K80", cluster) == pytest.approx(0.619 / 4.395)
    assert speed_of("resnet50", "V100M32", cluster) == 1.0
    host = CATALOGUE[model_index("vgg16")].sens_cpu
    assert speed_of("vgg16", "A100", cluster) == pytest.approx(1 / (host + (1 - host) / 2.06))
    assert speed_of("dqn", "H100", cluster) < 1.1 < speed_of("gpt2", "H100", cluster)  # the host is what dqn waits for


@pytest.mark.parametrize("model", [model.name for model in CATALOGUE])
def test_a_model_is_as_fast_as_ever_on_the_reference_type(model):
    assert speed_of(model, "V100", cluster_of("V100", "A100", "V100")) == 1.0


def test_a_server_with_other_gpus_changes_nobodys_ideal():
    plain, more = cluster_of("V100", "V100"), cluster_of("V100", "V100", "H100")
    fast = build([Server(), Server(), Server((8, 8), "H100", 256, 64.0, 400.0, 400.0)], leaf_spine(3), 1)
    names = [field.name for field in dataclasses.fields(best_hardware(plain)) if field.name != "shape"]
    for other in (more, fast):
        for name in names:
            found, expected = (getattr(best_hardware(one), name) for one in (other, plain))
            np.testing.assert_array_equal(found, expected, err_msg=name)


def run_s(cluster, jobs, policy: str = "pack:sjf+backfill", engine: str = "compiled") -> np.ndarray:
    return simulate([parse(policy)], cluster, [jobs], Settings(engine=engine))[policy][0].run_s


@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slower)])
def test_a_job_takes_less_than_its_run_time_on_faster_gpus(engine):
    cluster = cluster_of("V100", "V100", "A100")
    jobs = make_job_list([0.0, 0.0], 3600.0, [4, 4], model=model_index("gpt2"))
    fast = ideal_slowdown(cluster, profiles(cluster.gpu_types), jobs, "A100")[0]
    assert 0.45 < fast < 0.6
    np.testing.assert_allclose(run_s(cluster, jobs, engine=engine), 3600.0 * fast, rtol=1e-4)


def test_run_times_are_converted_from_the_type_that_they_are_stated_on():
    cluster, job = cluster_of("V100", "P100", "P100"), {"model": model_index("resnet50")}
    models = profiles_on(cluster, CATALOGUE)
    jobs = make_job_list([0.0, 1.0, 2.0, 3.0], 1000.0, 1, gpu_type=["", "K80", "V100", "P100"], **job)
    k80, p100 = 0.619, 2.619
    seconds = [1000.0, 1000.0 * k80 / p100, 1000.0 * 4.395 / p100, 1000.0]
    np.testing.assert_allclose(on_reference(cluster, models, jobs).duration_s, seconds, rtol=1e-5)
    seconds[0] = 1000.0 * k80 / p100
    same = on_reference(cluster, models, jobs, "K80")
    np.testing.assert_allclose(same.duration_s, seconds, rtol=1e-5)
    assert (same.gpu_type == "").all() and jobs.duration_s.tolist() == [1000.0] * 4
    # What is converted takes on the stated type what was stated.
    one = make_job_list([0.0], 5000.0, [4], gpu_type="A100", model=model_index("gpt2"))
    mixed = cluster_of("V100", "V100", "A100")
    assert run_s(mixed, on_reference(mixed, profiles_on(mixed, CATALOGUE), one))[0] == pytest.approx(5000.0, rel=1e-4)


@pytest.mark.parametrize("name", ["RTX9", "v100"])
def test_an_unknown_type_is_refused(name):
    cluster, jobs = cluster_of("V100"), make_job_list([0.0], 10.0, 1)
    known = rf"unknown GPU type '{name}'; known types: V100, .*B200"
    with pytest.raises(UserError, match=rf"--trace-gpu: {known}"):
        on_reference(cluster, profiles(cluster.gpu_types), jobs, name)
    named = dataclasses.replace(jobs, gpu_type=np.array([name]))
    with pytest.raises(UserError, match=rf"job '0', gpu_type: {known}"):
        on_reference(cluster, profiles(cluster.gpu_types), named)


def test_the_bound_holds_where_some_gpus_are_faster():
    cluster = cluster_of("V100", "V100", "H100")
    jobs = make_job_list([0.0], 3600.0, 4, model=model_index("gpt2"))
    took_s = float(run_s(cluster, jobs)[0])
    assert 0.95 * took_s < jct_lower_bound_s(cluster, jobs, 60.0) <= took_s < 3600.0


def test_long_jobs_wait_for_fast_gpus_and_short_ones_do_not():
    cluster = cluster_of("V100", "V100", "K80")
    running = make_job_list([0.0, 0.0, 100.0, 100.0], [1000.0, 5000.0, 36000.0, 60.0], 8, model=model_index("gpt2"))
    for policy in ("pack:sjf+backfill", "greedy-wait:sjf"):
        took = run_s(cluster, running, policy)
        assert took[2] < 1.01 * 36000.0 and 2 * 60.0 < took[3] < 1000.0
