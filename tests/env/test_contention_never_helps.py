"""A job more never speeds up another, far or near."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.env.environment import is_finished
from jaxsched.env.state import PLACE, WAIT, Action, wait_action
from jaxsched.workload.jobs import take
from tests.support import strategies


def start_all(case: strategies.Case, placements):
    """The end of a run in which the jobs start at boundary 0 where `placements[j] = (partition, workers, ps)` says."""
    config, params = case.shape.config(), case.params
    state, step = strategies.jit_start(config)(params, case.table), strategies.jit_transition(config)
    partitions, n, k = case.cluster.shape
    for j, (p, w, u) in enumerate(placements):
        queue = np.asarray(state.queue[p])
        workers, ps = np.zeros((2, partitions, n * k), np.int32)
        workers[p, list(w)] = list(w.values())
        ps[p, list(u)] = list(u.values())
        kind = np.full(partitions, PLACE)  # the others try to place nothing, which must not make them wait: act alone
        action = Action(
            kind=jnp.asarray(np.where(np.arange(partitions) == p, kind, WAIT), jnp.int32),
            slot=jnp.full(partitions, int(np.flatnonzero(queue == j)[0]), jnp.int32),
            workers=jnp.asarray(workers.reshape(partitions, n, k)),
            ps=jnp.asarray(ps.reshape(partitions, n, k)),
            target=jnp.zeros(partitions, jnp.int32),
        )
        state = step(params, state.replace(waited=jnp.zeros(partitions, bool), round=jnp.int32(0)), action)[0]
        assert int(state.illegal) == 0 and int(state.clock) == 0
    for _ in range(100):
        if bool(is_finished(state)):
            return state
        state = step(params, state, wait_action(case.cluster))[0]
    raise AssertionError("not finished")


@pytest.mark.slower
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), tree=st.booleans())
def test_a_job_more_never_speeds_up_another(seed, tree):
    rng = np.random.default_rng(seed)
    case = strategies.random_case(seed, "two", count=7, tree=tree, interval_s=1e6)
    jobs = dataclasses.replace(case.jobs, submit_s=np.zeros(7))
    free = np.asarray(case.cluster.group_gpus).reshape(2, -1).copy()
    kept, placements = [], []
    for j in range(7):  # anywhere at random: near and far
        p, size = int(rng.integers(2)), int(jobs.gpus_per_worker[j])
        w: dict[int, int] = {}
        for _ in range(int(jobs.workers[j])):
            open_groups = np.flatnonzero(free[p] >= size)
            if len(open_groups):
                a = int(rng.choice(open_groups))
                free[p, a] -= size
                w[a] = w.get(a, 0) + 1
        if sum(w.values()) < jobs.workers[j]:
            for a, x in w.items():
                free[p, a] += x * size
            continue
        where = rng.choice(list(w), int(jobs.ps[j]))
        kept.append(j)
        placements.append((p, w, {int(a): int((where == a).sum()) for a in set(where)}))
    if len(kept) < 2:
        return
    jobs = take(jobs, kept)
    jobs = dataclasses.replace(jobs, home=np.array([p for p, _, _ in placements], np.int32))
    full = dataclasses.replace(case, jobs=jobs)
    less = dataclasses.replace(case, jobs=take(jobs, slice(0, len(kept) - 1)))
    with_it = strategies.outcome(full, start_all(full, placements)).finish_s[:-1]
    without = strategies.outcome(less, start_all(less, placements[:-1])).finish_s
    assert (with_it >= without * (1 - 2e-6)).all()
    # Far away, that is in another partition: a difference comes over shared links alone.
    links = np.asarray(case.cluster.link_id)
    shared = set(links[0]) & set(links[1]) - {case.cluster.link_bytes_s.shape[0] - 1}
    away = np.array([p != placements[-1][0] for p, _, _ in placements[:-1]])
    if not shared and away.any():
        np.testing.assert_allclose(with_it[away], without[away], rtol=2e-6)
