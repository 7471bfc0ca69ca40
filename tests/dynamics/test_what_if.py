"""What a placement would do to the jobs that run is what they would take with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.batching import PATHS, traced_for
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.resources import own_use
from jaxsched.dynamics.speed import slowdown, slowdown_of, step_time, step_time_with
from tests.support import strategies

JOBS, PLACEMENTS = 5, 5


def footprints_of(case: strategies.Case, seed: int, count: int):
    """Footprints, last axis `count`, of gangs on random groups of the first partition."""
    cluster, rng = one_partition(case.cluster, 0), np.random.default_rng(seed)
    groups = np.asarray(cluster.group_gpus)
    workers = rng.integers(0, 3, (count, *groups.shape)) * (groups > 0)
    workers[:, 0, 0] += 1
    ps = rng.integers(0, 2, workers.shape) * (groups > 0)
    best = best_hardware(case.cluster)

    def one(workers, ps, model):
        job = JobSpec(workers=workers.sum(), gpus_per_worker=jnp.int32(1), ps=ps.sum(), model=model)
        return footprint(cluster, best, case.params.profiles, job, workers, ps)

    return jax.jit(jax.vmap(one, out_axes=-1))(
        jnp.asarray(workers), jnp.asarray(ps), jnp.asarray(rng.integers(0, 4, count))
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_step_times_with_a_placement_are_those_of_all_together(path):
    case = strategies.random_case(5, "two")
    law = case.params.interference
    running, placed = footprints_of(case, 1, JOBS), footprints_of(case, 2, PLACEMENTS)
    total = own_use(running.use, jnp.ones(JOBS, bool))
    now = step_time(law, running, total[:, None])
    with traced_for(path):
        after = step_time_with(law, running, total, now, placed.use)
    slower = 0
    for place in range(PLACEMENTS):
        expected = step_time(law, running, (total + placed.use[:, place])[:, None])
        np.testing.assert_allclose(after.compute[place], expected.compute, rtol=1e-6)
        np.testing.assert_allclose(after.comm[place], expected.comm, rtol=1e-6)
        slower += int((slowdown_of(expected, running) > slowdown_of(now, running) * 1.01).sum())
    assert slower > 5  # they do get into each other's way


def test_resources_at_once_or_one_after_the_other():
    case = strategies.random_case(5, "two")
    running = footprints_of(case, 1, JOBS)
    total = own_use(running.use, jnp.ones(JOBS, bool))[:, None]
    one_by_one = slowdown(case.params.interference, running, total)
    at_once = slowdown(case.params.interference, running, total, at_once=True)
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-6)
    assert float(one_by_one.max()) > 1.5


def test_only_jobs_on_one_gpu_stretch_each_other():
    law = strategies.random_case(5, "two").params.interference
    jobs = Sharers(gpu=jnp.array([3, 3, 1, -1, 3]), model=jnp.arange(5), gpu_type=jnp.zeros(5, jnp.int32))
    stretch = np.asarray(stretch_of(law, 8, jobs, jnp.array([True, True, True, True, False])))
    assert (stretch[:2] > 1).all()
    np.testing.assert_array_equal(stretch[2:], 1.0)  # alone on its GPU, on whole GPUs, gone
