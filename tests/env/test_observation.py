"""What schedulers see, by name, against plain NumPy on a state with running and queued jobs."""

import jax
import numpy as np
import pytest

from jaxsched.env.observation import observe
from jaxsched.env.queues import Discipline
from jaxsched.env.state import WAIT
from tests.support import strategies

QUEUE = Discipline(order="sjf", backfill=True, window=3)


@pytest.fixture(scope="module")
def seen():
    """A state in the middle of a run, and what is seen of it."""
    case = strategies.random_case(7, "two")
    config, middle = case.shape.config(), []

    def watch(before, action, after, gain):
        busy = (np.asarray(after.running.job) >= 0).sum() > 3 and (np.asarray(after.queue) >= 0).sum() > 3
        if busy and not middle and int(np.asarray(action.kind).max()) > WAIT:
            middle.append(after)

    strategies.watched_run(case, "pack", config, watch)
    state = middle[0]
    obs = jax.jit(lambda params, state: observe(QUEUE, params, state))(case.params, state)
    return jax.tree.map(np.asarray, (case.params.cluster, state, obs))


def test_groups_and_servers(seen):
    cluster, state, obs = seen
    gpus, free = cluster.group_gpus.astype(float), state.free.astype(float)
    assert obs.group.shape[:3] == gpus.shape
    np.testing.assert_allclose(obs.group[..., 0], free / np.maximum(gpus, 1), rtol=1e-6)
    np.testing.assert_allclose(obs.group[..., 1], free / 4, rtol=1e-6)
    np.testing.assert_allclose(obs.group[..., 2], gpus / 8, rtol=1e-6)
    np.testing.assert_allclose(obs.group[..., 3], cluster.group_speed * (gpus > 0), rtol=1e-6)
    np.testing.assert_array_equal(obs.group_mask, gpus > 0)
    np.testing.assert_allclose(obs.server[..., 0], free.sum(-1) / np.maximum(gpus.sum(-1), 1), rtol=1e-6)
    np.testing.assert_array_equal(obs.server[..., 1], (free == gpus).all(-1))


def test_whole_partitions(seen):
    cluster, state, obs = seen
    gpus = cluster.group_gpus.sum((1, 2))
    queued, running = (state.queue >= 0).sum(-1), state.running.job >= 0
    np.testing.assert_allclose(obs.scheduler[:, 0], state.free.sum((1, 2)) / np.maximum(gpus, 1), rtol=1e-6)
    np.testing.assert_allclose(obs.scheduler[:, 1], np.log1p(queued) / 4, rtol=1e-6)
    excess = np.where(running, np.maximum(state.running.slowdown - 1, 0), 0).sum(-1)
    np.testing.assert_allclose(obs.scheduler[:, 3], excess / np.maximum(running.sum(-1), 1), rtol=1e-5, atol=1e-6)


def test_racks(seen):
    cluster, state, obs = seen
    free, gpus = state.free.sum(-1), cluster.group_gpus.sum(-1)
    for p, racks in enumerate(cluster.server_rack):
        for rack in np.unique(racks):
            there = racks == rack
            np.testing.assert_allclose(obs.rack[p, rack, 1], free[p, there].sum() / max(gpus[p, there].sum(), 1))


def test_the_window_shows_the_shortest_jobs_that_can_start(seen):
    cluster, state, obs = seen
    assert obs.job.shape[:2] == obs.job_mask.shape == (len(state.queue), QUEUE.window + 1)
    np.testing.assert_array_equal(obs.job[~obs.job_mask], 0.0)
    shown = 0
    for p, slots in enumerate(obs.job_slot):
        window = slots[:-1][obs.job_mask[p, :-1]]
        estimates = state.jobs.estimate_s[state.queue[p, window]]
        assert (np.diff(estimates) >= 0).all()
        gangs = state.jobs.workers[state.queue[p, window]] * state.jobs.gpus_per_worker[state.queue[p, window]]
        assert (gangs <= np.maximum(state.free[p].sum(), 1)).all()
        shown += len(window) + int(obs.job_mask[p, -1])
    assert shown > 0
