"""Actions that are not legal count as waiting and corrupt nothing."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.env.state import FORWARD, PLACE, WAIT, Action, EnvConfig, make_params, wait_action
from jaxsched.workload.jobs import make_job_list, to_table
from tests.support import strategies
from tests.support.invariants import capacity, check_masks, check_state, host, jit_observe


def random_action(rng: np.random.Generator, state, wild: bool) -> Action:
    """A mixture of legal placements, near misses and nonsense; `wild` has indices out of range, too."""
    partitions, n, k = state.free.shape
    slots = state.queue.shape[1]
    kind = rng.choice([WAIT, PLACE, PLACE, PLACE, FORWARD], partitions)
    low, high = (-3, 3) if wild else (0, 0)
    slot = rng.integers(low, slots + high, partitions)
    target = rng.integers(low, partitions + high, partitions)
    workers = np.zeros((partitions, n, k), int)
    ps = np.zeros((partitions, n, k), int)
    for p in range(partitions):
        filled = np.flatnonzero(state.queue[p] >= 0)
        if len(filled) and rng.random() < 0.8:
            slot[p] = rng.choice(filled)
        row = state.queue[p, np.clip(slot[p], 0, slots - 1)]
        cap = capacity(state, p, row).ravel()
        for _ in range(int(state.jobs.workers[row])):
            a = rng.integers(n * k) if rng.random() < 0.02 or cap.max() < 1 else rng.choice(np.flatnonzero(cap > 0))
            cap[a] -= 1
            workers[p].ravel()[a] += 1
        for _ in range(int(state.jobs.ps[row])):
            ps[p].ravel()[rng.choice(np.flatnonzero(workers[p].ravel() > 0))] += 1
        if rng.random() < 0.4:  # spoil it
            part = workers if rng.random() < 0.7 else ps
            part[p].ravel()[rng.integers(n * k)] += rng.choice([-1, 1, -2, 130, 2**30 if wild else 300])
    if wild:
        kind = np.where(rng.random(partitions) < 0.1, rng.integers(-5, 99, partitions), kind)
    return Action(
        kind=jnp.asarray(kind, jnp.int32),
        slot=jnp.asarray(slot, jnp.int32),
        workers=jnp.asarray(workers, jnp.int32),
        ps=jnp.asarray(ps, jnp.int32),
        target=jnp.asarray(target, jnp.int32),
    )


def legal(state, cluster, action, p: int, max_forwards: int) -> bool:
    """Sections 6 and 7, by the page; room for several forwards in one round is the caller's."""
    slot, target = int(action.slot[p]), int(action.target[p])
    if not 0 <= slot < state.queue.shape[1] or state.queue[p, slot] < 0:
        return False
    row = state.queue[p, slot]
    size = state.jobs.gpus_per_worker[row]
    workers, ps = action.workers[p].astype(np.int64), action.ps[p].astype(np.int64)
    if action.kind[p] == PLACE:
        return bool(
            (state.running.job[p] < 0).any()
            and (workers >= 0).all()
            and (ps >= 0).all()
            and workers.sum() == state.jobs.workers[row]
            and ps.sum() == state.jobs.ps[row]
            and (workers <= capacity(state, p, row)).all()
            and (ps[cluster.group_gpus[p] == 0] == 0).all()
        )
    if action.kind[p] == FORWARD:
        if not 0 <= target < len(state.queue) or target == p:
            return False
        holds = (cluster.group_gpus[target] // size).sum() >= state.jobs.workers[row]
        return bool(holds and state.records.forwards[row] < max_forwards)
    return False


@pytest.mark.slower
@pytest.mark.parametrize("wild", [pytest.param(False, marks=pytest.mark.long), True])
@settings(max_examples=25)
@given(case=st.one_of(strategies.cases("three"), strategies.cases("two")), seed=st.integers(0, 2**32 - 1))
def test_illegal_actions_count_as_waiting_and_corrupt_nothing(wild, case, seed):
    rng = np.random.default_rng(seed)
    config, params, cluster = case.shape.config(), case.params, host(case.cluster)
    state = strategies.jit_start(config)(params, case.table)
    step = strategies.jit_transition(config)
    seen = {True: 0, False: 0}
    for _ in range(60):
        before = host(state)
        action = random_action(rng, before, wild)
        state, _, finished = step(params, state, action)
        check_state(config, params, state)
        room = (before.queue < 0).sum(1)
        expected_illegal = 0
        acted = np.zeros(len(room), bool)
        act = host(action)
        for p in range(len(room)):
            if before.waited[p] or act.kind[p] not in (PLACE, FORWARD):
                continue
            acted[p] = legal(before, cluster, act, p, case.max_forwards)
            if acted[p] and act.kind[p] == FORWARD:
                target = int(act.target[p])
                acted[p] = room[target] > 0
                room[target] -= 1
            expected_illegal += not acted[p]
            seen[bool(acted[p])] += 1
            row = before.queue[p, int(act.slot[p])] if acted[p] else -1
            if acted[p] and act.kind[p] == PLACE:
                assert int(state.records.start[row]) == before.clock and int(state.records.partition[row]) == p
        assert int(state.illegal) == before.illegal + expected_illegal
        over = (before.waited | ~acted).all() or before.round + 1 == config.rounds
        if not over:
            np.testing.assert_array_equal(np.asarray(state.waited), before.waited | ~acted)
        assert over == (int(state.clock) > before.clock)
        if finished:
            break


def test_no_forward_to_a_full_queue():
    """Partition 1 has free GPUs for the job that is blocked in partition 0, but its queue is full of larger jobs."""
    cluster = build([Server()] * 2, leaf_spine(2), 2)
    config = EnvConfig(running_slots=8, queue_slots=2, rounds=4)
    params = make_params(cluster)
    jobs = make_job_list(np.zeros(5), 1e5, [8, 1, 2, 8, 8], home=[0, 1, 0, 1, 1])
    waiting = wait_action(cluster)
    workers = waiting.workers.at[0, 0].set(4).at[1, 0, 0].set(1)
    step = strategies.jit_transition(config)
    state = strategies.jit_start(config)(params, to_table(jobs, 60.0))
    state = step(params, state, waiting.replace(kind=jnp.array([PLACE, PLACE]), workers=workers))[0]
    for full in (False, True):  # the last job comes in at the second boundary
        assert bool((state.queue[1] >= 0).all()) == full
        obs = jit_observe()(params, state)
        assert bool(obs.forward_mask[0, 1]) != full
        check_masks(params, state, obs)
        for _ in range(config.rounds - int(state.round)):
            state = step(params, state, waiting)[0]
