"""What must hold in any state and for any mask, recomputed from the running jobs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.cluster.hardware import distinct_speeds
from jaxsched.dynamics.footprint import relative_speed
from jaxsched.env.environment import SHOWN
from jaxsched.env.observation import observe
from jaxsched.env.state import FINISHED, FORWARD, PLACE, RUNNING, STOP, WAIT, WAITING
from jaxsched.workload.jobs import NEVER


def host(tree):
    """The same pytree in NumPy."""
    return jax.tree.map(np.asarray, tree)


def check_state(config, params, state) -> None:
    """Everything that must hold in a state, recomputed from the running jobs."""
    s, cluster = host(state), host(params.cluster)
    jobs, running, records = s.jobs, s.running, s.records
    active = running.job >= 0
    table = np.arange(len(jobs.arrival))

    # Capacity: never over it, padding groups hold nothing, and what is free is what no running job holds.
    workers = running.workers.astype(int) * active[..., None, None]
    whole = active
    taken = np.zeros(cluster.group_gpus.shape, int)
    if s.shares:
        whole = active & (running.gpu < 0)
        used = np.zeros(s.shared.shape, int).reshape(len(s.shared), -1)
        p, r = np.nonzero(active & (running.gpu >= 0))
        milli = jobs.milli[running.job[p, r]]
        np.add.at(used, (p, running.gpu[p, r]), milli)
        np.testing.assert_array_equal(s.shared, used.reshape(s.shared.shape))
        assert (s.shared <= 1000).all() and (milli < 1000).all() and (jobs.milli[running.job[whole]] == 1000).all()
        # The shared GPU is one of the group that the job's worker is in.
        groups = workers.reshape(*workers.shape[:2], -1)
        assert (groups[p, r, running.gpu[p, r] // s.shared.shape[-1]] == 1).all()
        taken = (s.shared > 0).sum(-1)
        assert (running.stretch >= 1).all() and (running.stretch[~(active & (running.gpu >= 0))] == 1).all()
    held = np.einsum("pr,prnk->pnk", running.gpus_per_worker * whole, workers)
    there = cluster.group_gpus
    if s.faults.there:
        there = np.where((s.faults.passed % 2 == 1)[..., None], 0, there)
    np.testing.assert_array_equal(s.free, there - held - taken)
    assert (s.free >= 0).all()
    padding = np.broadcast_to((cluster.group_gpus == 0)[:, None], running.ps.shape)
    assert not (running.ps * active[..., None, None])[padding].any()

    # Gangs are whole, and carry on as they are.
    row = running.job[active]
    np.testing.assert_array_equal(workers.sum((-1, -2))[active], jobs.workers[row])
    np.testing.assert_array_equal(running.ps.astype(int).sum((-1, -2))[active], jobs.ps[row])
    np.testing.assert_array_equal(running.gpus_per_worker[active], jobs.gpus_per_worker[row])
    assert (running.slowdown >= 1 / fastest(params) * (1 - 1e-6)).all() and np.isfinite(running.slowdown).all()
    assert (running.remaining_s[active] > 0).all() and (running.remaining_s[active] <= running.duration_s[active]).all()

    # Nothing is lost and nothing is there twice: every job that has arrived is in exactly one place.
    queued = s.queue[s.queue >= 0]
    arrived = table < s.next_job
    rejected = arrived & (jobs.home < 0)
    finished = records.status == FINISHED
    places = np.concatenate([row, queued, table[rejected], table[finished]])
    np.testing.assert_array_equal(np.sort(places), table[arrived])
    assert (jobs.arrival[arrived] <= s.clock).all()
    np.testing.assert_array_equal(np.sort(row), table[records.status == RUNNING])
    assert set(records.status) <= {WAITING, RUNNING, FINISHED}
    # A job that has come and is not in yet is behind a full queue.
    due = table[~arrived & (jobs.arrival <= s.clock) & (jobs.arrival != NEVER)]
    if len(due) and s.round == 0:
        home = jobs.home[due[0]]
        kept = (running.job[home] >= 0).sum() if s.faults.there else 0  # for the jobs that run
        assert due[0] == s.next_job and (s.queue[home] < 0).sum() <= kept

    # Records.
    started = records.start >= 0
    stopped = s.service.stops > 0 if s.service.there else np.zeros(len(started), bool)
    if s.faults.there:
        stopped |= s.faults.count > 0
    np.testing.assert_array_equal(started & ~(stopped & (records.status == WAITING)), records.status != WAITING)
    np.testing.assert_array_equal(records.finish >= 0, finished)
    assert (records.start[started] >= jobs.arrival[started]).all() and (records.start <= s.clock).all()
    assert (records.finish[finished] >= records.start[finished]).all()
    assert (records.forwards <= params.max_forwards).all()
    assert 0 <= s.round < config.rounds
    assert (s.attained_s >= 0).all()


def fastest(params) -> float:
    """How much faster some model runs on some GPUs of the cluster than on its reference type; at least 1."""
    cluster, models = params.cluster, jnp.arange(params.profiles.compute_s.shape[0])[:, None, None, None]
    speed = relative_speed(params.profiles, models, cluster.group_gpu_type, cluster.group_speed, cluster.reference)
    return max(1.0, float(np.where(np.asarray(cluster.group_gpus) > 0, speed, 0.0).max()))


def capacity(state, p: int, row: int) -> np.ndarray:
    """int[N, K], section 7: workers that fit each group now."""
    if state.shares and state.jobs.milli[row] < 1000:
        some = ((state.shared[p] > 0) & (state.shared[p] + state.jobs.milli[row] <= 1000)).any(-1)
        return (some | (state.free[p] > 0)).astype(int)
    return state.free[p] // state.jobs.gpus_per_worker[row]


def feasible(state, p: int, row: int) -> bool:
    """Section 7: the gang fits partition `p` now."""
    fits = capacity(state, p, row).sum() >= state.jobs.workers[row]
    return bool(fits and (state.running.job[p] < 0).any())


def check_masks(params, state, obs, queue=SHOWN) -> None:
    """Whatever a mask allows is legal; what it forbids is not there."""
    s, obs = host(state), host(obs)
    assert all(np.isfinite(x).all() for x in (obs.group, obs.server, obs.rack, obs.scheduler, obs.job))
    np.testing.assert_array_equal(obs.group_mask, host(params.cluster).group_gpus > 0)
    waits = distinct_speeds(params.cluster) > 1  # jobs that could start may wait for faster GPUs
    for p in range(len(s.queue)):
        window = obs.job_slot[p, :-1][obs.job_mask[p, :-1]]
        rows = s.queue[p, window]
        assert (rows >= 0).all() and len(set(rows)) == len(rows)
        assert all(feasible(s, p, row) for row in rows)
        can_start = sum(feasible(s, p, row) for row in s.queue[p] if row >= 0)
        assert len(window) == min(can_start, queue.window) or (waits and len(window) < min(can_start, queue.window))
        blocked = s.queue[p, obs.job_slot[p, -1]]
        some_blocked = can_start < (s.queue[p] >= 0).sum()
        assert obs.job_mask[p, -1] == some_blocked or waits
        if some_blocked:
            assert blocked >= 0 and (waits or not feasible(s, p, blocked))
        for target in np.flatnonzero(obs.forward_mask[p]):
            assert (some_blocked or waits) and target != p and feasible(s, target, blocked)
            assert s.records.forwards[blocked] < params.max_forwards
            assert (s.queue[target] < 0).any(), "a forward to a full queue is not legal"


@functools.cache
def jit_observe(queue=SHOWN):
    return jax.jit(functools.partial(observe, queue))


def watcher(config, params):
    """A `watch` of `strategies.watched_run` that checks each round."""
    check_state_ = functools.partial(check_state, config, params)

    def watch(before, action, after, gain):
        check_state_(after)
        check_masks(params, after, jit_observe()(params, after))
        assert int(after.clock) >= int(before.clock)
        # The clock moves exactly when the rounds of a boundary are over.
        assert (int(after.clock) > int(before.clock)) == (int(after.round) == 0)
        assert int(after.illegal) == 0
        assert set(np.asarray(action.kind)) <= {WAIT, PLACE, FORWARD, STOP}

    return watch
