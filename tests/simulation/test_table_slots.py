import dataclasses

import jax
import numpy as np
import pytest

from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.simulation.jax_program import CALM_CHUNKS, Fitting, Slots, resize
from jaxsched.workload.jobs import to_table
from tests.support.evaluation_jobs import some_jobs


@pytest.mark.slow
def test_resizing_keeps_what_is_in_the_tables(cluster):
    config = EnvConfig(running_slots=4, queue_slots=6)
    jobs = dataclasses.replace(some_jobs(0), tenant=np.zeros(40, np.int32))
    state = initial_state(config, make_params(cluster), to_table(jobs, 60.0))
    running = state.running.replace(
        job=np.array([[-1, 5, -1, 7], [9, -1, -1, -1]]),
        remaining_s=np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]], np.float32),
    )
    state = state.replace(queue=np.array([[-1, 3, -1, 4, -1, 2], [-1] * 6]), running=running)
    larger = resize(state, Slots(running=8, queue=10))
    assert larger.queue.tolist() == [[3, 4, 2] + [-1] * 7, [-1] * 10]
    assert larger.running.job.tolist() == [[5, 7] + [-1] * 6, [9] + [-1] * 7]
    assert larger.running.remaining_s[:, :2].tolist() == [[2.0, 4.0], [5.0, 6.0]]
    assert (larger.running.slowdown == 1).all() and larger.running.occupants.ideal.shape[-1] == 8
    smaller = resize(larger, Slots(running=2, queue=3))
    assert smaller.queue.tolist() == [[3, 4, 2], [-1, -1, -1]]
    assert smaller.running.job.tolist() == [[5, 7], [9, -1]]
    lanes = jax.tree.map(lambda *leaves: np.stack(leaves), state, state)
    both = resize(lanes, Slots(running=8, queue=10))
    jax.tree.map(lambda two, one: np.testing.assert_array_equal(two[1], one), both, larger)


def test_sizes_grow_at_once_and_shrink_after_calm():
    fitting = Fitting(Slots(4, 8), most_running=6)
    assert fitting.note(4, 3, running_full=True, queue_full=False) and fitting.sizes == Slots(6, 8)
    assert fitting.note(5, 8, running_full=False, queue_full=True) and fitting.sizes == Slots(6, 32)
    quiet = [fitting.note(2, 4, running_full=False, queue_full=False) for _ in range(CALM_CHUNKS)]
    assert quiet == [False] * (CALM_CHUNKS - 1) + [True]
    assert fitting.sizes == Slots(4, 8)
    assert fitting.largest == Slots(6, 32) and fitting.peak == Slots(5, 8)
