"""What a placement would do to the jobs that run is what they would take with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.batching import PATHS, traced_for
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.occupants import has_room, no_occupants, own_use, with_job
from jaxsched.dynamics.speed import slowdown, slowdown_of, step_time, step_time_of, step_time_with
from tests.support import strategies

JOBS, PLACEMENTS = 5, 5


def gangs_of(case: strategies.Case, seed: int, count: int):
    """Workers, PS and footprints, last axis `count`, of gangs on random groups of the first partition."""
    cluster, rng = one_partition(case.cluster, 0), np.random.default_rng(seed)
    groups = np.asarray(cluster.group_gpus)
    workers = rng.integers(0, 3, (count, *groups.shape)) * (groups > 0)
    workers[:, 0, 0] += 1
    ps = rng.integers(0, 2, workers.shape) * (groups > 0)
    best = best_hardware(case.cluster)

    def one(workers, ps, model):
        job = JobSpec(workers=workers.sum(), gpus_per_worker=jnp.int32(1), ps=ps.sum(), model=model)
        return footprint(cluster, best, case.params.profiles, job, workers, ps)

    tasks = jnp.asarray(workers), jnp.asarray(ps)
    return *tasks, jax.jit(jax.vmap(one, out_axes=-1))(*tasks, jnp.asarray(rng.integers(0, 4, count)))


def occupants_of(case: strategies.Case, gangs):
    """The occupants of the first partition with these gangs, in slots from the last one down."""
    workers, ps, prints = gangs
    blank = no_occupants(prints.layout, 1, JOBS, places=JOBS)
    occupants, active = jax.tree.map(lambda leaf: leaf[0], blank), jnp.zeros(JOBS, bool)
    for i in range(JOBS):
        slot = jnp.int32(JOBS - 1 - i)
        one = jax.tree.map(lambda leaf, i=i: leaf[..., i], prints)
        occupants = with_job(occupants, active, slot, one, workers[i], ps[i])
        active = active.at[slot].set(True)
    return occupants


def test_entries_are_in_the_same_places_on_every_path():
    case = strategies.random_case(5, "two")
    workers, ps, prints = gangs_of(case, 1, JOBS)
    job, everywhere = jax.tree.map(lambda leaf: leaf[..., 0], prints), jnp.ones(JOBS, bool)
    found = []
    for path in PATHS:
        with traced_for(path):
            full = occupants_of(case, (workers, ps, prints))
            left = everywhere.at[2].set(False)
            again = with_job(full, left, jnp.int32(2), job, workers[0], ps[0])
            same = with_job(again, everywhere, jnp.int32(JOBS), job, workers[0], ps[0])
        jax.tree.map(np.testing.assert_array_equal, same, again)  # out of range: nobody starts
        assert (np.asarray(again.use) != np.asarray(full.use)).any()
        found.append(again)
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_step_times_with_a_placement_are_those_of_all_together(path):
    case = strategies.random_case(5, "two")
    law = case.params.interference
    gangs, placed = gangs_of(case, 1, JOBS), gangs_of(case, 2, PLACEMENTS)[-1]
    running, occupants = jax.tree.map(lambda leaf: leaf[..., ::-1], gangs[-1]), occupants_of(case, gangs)
    with traced_for(path):
        total = own_use(occupants, jnp.ones(JOBS, bool))
        now = step_time_of(law, occupants, total)
        after = step_time_with(law, occupants, total, now, placed.use)
    np.testing.assert_allclose(total, running.use.sum(-1), rtol=1e-6)
    plain = step_time(law, running, total[:, None])
    np.testing.assert_allclose(now.compute, plain.compute, rtol=1e-6)
    np.testing.assert_allclose(now.comm, plain.comm, rtol=1e-6)
    slower = 0
    for place in range(PLACEMENTS):
        expected = step_time(law, running, (total + placed.use[:, place])[:, None])
        np.testing.assert_allclose(after.compute[place], expected.compute, rtol=1e-6)
        np.testing.assert_allclose(after.comm[place], expected.comm, rtol=1e-6)
        slower += int((slowdown_of(expected, running) > slowdown_of(now, running) * 1.01).sum())
    assert slower > 5  # they do get into each other's way


def test_resources_at_once_or_one_after_the_other():
    case = strategies.random_case(5, "two")
    running = gangs_of(case, 1, JOBS)[-1]
    total = running.use.sum(-1, keepdims=True)
    one_by_one = slowdown(case.params.interference, running, total)
    at_once = slowdown(case.params.interference, running, total, at_once=True)
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-6)
    assert float(one_by_one.max()) > 1.5


def test_a_place_is_kept_for_every_free_gpu_and_taken_from_no_one():
    case = strategies.random_case(5, "two")
    workers, ps, prints = gangs_of(case, 1, JOBS)
    occupants = jax.tree.map(lambda leaf: leaf[0], no_occupants(prints.layout, 1, JOBS, places=2))
    job, group = jax.tree.map(lambda leaf: leaf[..., 0], prints), jnp.zeros_like(workers[0]).at[0, 0].set(1)
    nobody, free = jnp.zeros(JOBS, bool), 2 * group
    assert has_room(occupants, nobody, free, group, group)
    assert not has_room(occupants, nobody, free, 0 * group, group)  # two jobs may come to its two GPUs
    assert has_room(occupants, nobody, free - group, 0 * group, group)
    both = nobody
    for slot in (3, 1):
        occupants = with_job(occupants, both, jnp.int32(slot), job, group, group)
        both = both.at[slot].set(True)
    assert not has_room(occupants, both, 0 * free, group, 0 * group)
    full = with_job(occupants, both, jnp.int32(0), job, group, group)
    np.testing.assert_array_equal(full.slot, occupants.slot)
    one_left = both.at[3].set(False)
    again = with_job(occupants, one_left, jnp.int32(0), job, group, group)
    assert sorted(np.asarray(again.slot[0, 0])) == [0, 1]
    moved = with_job(occupants, one_left, jnp.int32(3), job, 0 * group, group[::-1])
    assert sorted(np.asarray(moved.slot[0, 0])) == [-1, 1]  # who gets a slot clears what its last job left


def test_only_jobs_on_one_gpu_stretch_each_other():
    law = strategies.random_case(5, "two").params.interference
    jobs = Sharers(gpu=jnp.array([3, 3, 1, -1, 3]), model=jnp.arange(5), gpu_type=jnp.zeros(5, jnp.int32))
    stretch = np.asarray(stretch_of(law, 8, jobs, jnp.array([True, True, True, True, False])))
    assert (stretch[:2] > 1).all()
    np.testing.assert_array_equal(stretch[2:], 1.0)  # alone on its GPU, on whole GPUs, gone
