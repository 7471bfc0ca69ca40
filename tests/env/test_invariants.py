"""What holds whatever the policy does: capacities, gangs, accounting, clock, masks; and that contention never helps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.env.environment import is_finished
from jaxsched.env.observation import observe
from jaxsched.env.state import (
    FINISHED,
    FORWARD,
    PLACE,
    RUNNING,
    WAIT,
    WAITING,
    Action,
    EnvConfig,
    make_params,
    wait_action,
)
from jaxsched.workload.jobs import NEVER, make_job_list, take, to_table

# test_oracle runs all the others, and looks at `illegal`, too.
WATCHED = {
    "one": ("random:backfill",),
    "two": ("pack:area+backfill+forward", "tetris:las", "greedy-wait"),
    "three": ("random:forward", "load-balance"),
}
TIMED = ("pack:area+backfill+forward", "load-balance", "greedy-wait")


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
    if s.shared is not None:
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
    np.testing.assert_array_equal(s.free, cluster.group_gpus - held - taken)
    assert (s.free >= 0).all()
    padding = np.broadcast_to((cluster.group_gpus == 0)[:, None], running.ps.shape)
    assert not (running.ps * active[..., None, None])[padding].any()

    # Gangs are whole, and carry on as they are.
    row = running.job[active]
    np.testing.assert_array_equal(workers.sum((-1, -2))[active], jobs.workers[row])
    np.testing.assert_array_equal(running.ps.astype(int).sum((-1, -2))[active], jobs.ps[row])
    np.testing.assert_array_equal(running.gpus_per_worker[active], jobs.gpus_per_worker[row])
    assert (running.slowdown >= 1).all() and np.isfinite(running.slowdown).all()
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
        assert due[0] == s.next_job and (s.queue[jobs.home[due[0]]] >= 0).all()

    # Records.
    started = records.start >= 0
    np.testing.assert_array_equal(started, records.status != WAITING)
    np.testing.assert_array_equal(records.finish >= 0, finished)
    assert (records.start[started] >= jobs.arrival[started]).all() and (records.start <= s.clock).all()
    assert (records.finish[finished] >= records.start[finished]).all()
    assert (records.forwards <= params.max_forwards).all()
    assert 0 <= s.round < config.rounds
    assert (s.attained_s >= 0).all()


def capacity(state, p: int, row: int) -> np.ndarray:
    """int[N, K], section 7: workers that fit each group now."""
    if state.shared is not None and state.jobs.milli[row] < 1000:
        some = ((state.shared[p] > 0) & (state.shared[p] + state.jobs.milli[row] <= 1000)).any(-1)
        return (some | (state.free[p] > 0)).astype(int)
    return state.free[p] // state.jobs.gpus_per_worker[row]


def feasible(state, p: int, row: int) -> bool:
    """Section 7: the gang fits partition `p` now."""
    fits = capacity(state, p, row).sum() >= state.jobs.workers[row]
    return bool(fits and (state.running.job[p] < 0).any())


def check_masks(config, params, state, obs) -> None:
    """Whatever a mask allows is legal; what it forbids is not there."""
    s, obs = host(state), host(obs)
    assert all(np.isfinite(x).all() for x in (obs.group, obs.server, obs.rack, obs.scheduler, obs.job))
    np.testing.assert_array_equal(obs.group_mask, host(params.cluster).group_gpus > 0)
    for p in range(len(s.queue)):
        window = obs.job_slot[p, :-1][obs.job_mask[p, :-1]]
        rows = s.queue[p, window]
        assert (rows >= 0).all() and len(set(rows)) == len(rows)
        assert all(feasible(s, p, row) for row in rows)
        can_start = sum(feasible(s, p, row) for row in s.queue[p] if row >= 0)
        assert len(window) == min(can_start, config.window)
        blocked = s.queue[p, obs.job_slot[p, -1]]
        some_blocked = can_start < (s.queue[p] >= 0).sum()
        assert obs.job_mask[p, -1] == some_blocked
        if some_blocked:
            assert blocked >= 0 and not feasible(s, p, blocked)
        for target in np.flatnonzero(obs.forward_mask[p]):
            assert some_blocked and target != p and feasible(s, target, blocked)
            assert s.records.forwards[blocked] < params.max_forwards
            assert (s.queue[target] < 0).any(), "a forward to a full queue is not legal"


@functools.cache
def jit_observe(config):
    return jax.jit(functools.partial(observe, config))


def watcher(config, params):
    """A `watch` of `strategies.watched_run` that checks each round."""
    check_state_ = functools.partial(check_state, config, params)

    def watch(before, action, after, gain):
        check_state_(after)
        check_masks(config, params, after, jit_observe(config)(params, after))
        assert int(after.clock) >= int(before.clock)
        # The clock moves exactly when the rounds of a boundary are over.
        assert (int(after.clock) > int(before.clock)) == (int(after.round) == 0)
        assert int(after.illegal) == 0
        assert set(np.asarray(action.kind)) <= {WAIT, PLACE, FORWARD}

    return watch


@pytest.mark.parametrize("shape", WATCHED)
@settings(max_examples=12)
@given(data=st.data())
def test_every_policy_keeps_the_invariants(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(WATCHED[shape]))
    config = case.shape.config()
    state = strategies.watched_run(case, spec, config, watcher(config, case.params))
    assert (np.asarray(state.queue) < 0).all() and (np.asarray(state.running.job) < 0).all()
    np.testing.assert_array_equal(np.asarray(state.free), np.asarray(case.cluster.group_gpus))
    assert state.shared is None or not np.asarray(state.shared).any()
    # Run time, and so JCT, is at least the ideal duration.
    done = strategies.outcome(case, state)
    run_s = done.finish_s - done.start_s
    ok = np.isfinite(run_s)
    assert (run_s[ok] >= case.jobs.duration_s[ok] * (1 - 1e-5)).all()
    assert (done.start_s[ok] >= case.jobs.submit_s[ok] * (1 - 1e-9)).all()


def test_a_full_queue_holds_arrivals_back_and_says_so():
    case = strategies.random_case(2, "one", count=40, interval_s=60.0)
    crowd = dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(40)))
    state = strategies.run(crowd, "first-fit:las", crowd.shape.config(), ("first-fit:las",))
    assert int(state.peak_queue) == crowd.shape.queue_slots and int(state.backlogged) > 0
    status = strategies.outcome(crowd, state).status
    assert status.count("finished") + status.count("rejected") == 40 and status.count("finished") > 20
    few = dataclasses.replace(case, jobs=take(crowd.jobs, slice(5)))
    state = strategies.run(few, "first-fit:las", few.shape.config(), ("first-fit:las",))
    assert int(state.peak_queue) <= 5 and int(state.backlogged) == 0


@settings(max_examples=20)
@given(case=strategies.cases("two"), spec=st.sampled_from(TIMED))
def test_early_stop_and_skipping_change_no_time(case, spec):
    fast = case.shape.config()
    slow = dataclasses.replace(fast, early_stop=False, skip_idle=False)
    case = dataclasses.replace(case, interval_s=max(case.interval_s, 60.0))
    one = strategies.outcome(case, strategies.run(case, spec, fast, TIMED))
    other = strategies.outcome(case, strategies.run(case, spec, slow, TIMED))
    np.testing.assert_array_equal(one.start_s, other.start_s)
    np.testing.assert_allclose(one.finish_s, other.finish_s, rtol=1e-6)
    assert one.workers == other.workers and one.status == other.status


# ------------------------------------------------------------------------------------------------------ illegal actions


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


@pytest.mark.parametrize("wild", [False, True])
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
        obs = jit_observe(config)(params, state)
        assert bool(obs.forward_mask[0, 1]) != full
        check_masks(config, params, state, obs)
        for _ in range(config.rounds - int(state.round)):
            state = step(params, state, waiting)[0]


# --------------------------------------------------------------------------------- contention never helps, far or near


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


# ------------------------------------------------------------------------------------------------ the interval vanishes


@pytest.mark.parametrize("seed", range(4))
def test_finish_times_converge_as_the_interval_vanishes(seed):
    """Enough room for all: every job starts at the boundary after its submission, and contention is all there is."""
    case = strategies.random_case(seed, "two", count=8, homogeneous=True)
    rng = np.random.default_rng(seed)
    jobs = dataclasses.replace(
        case.jobs,
        workers=rng.integers(1, 4, 8).astype(np.int32),
        gpus_per_worker=np.ones(8, np.int32),
        ps=(rng.random(8) < 0.5).astype(np.int32),
        submit_s=np.sort(rng.uniform(0, 400, 8)),
    )
    cluster = case.cluster.replace(group_gpus=jnp.where(case.cluster.group_gpus > 0, 8, 0))
    finish = {}
    for interval in (100.0, 10.0, 1.0, 0.1, 0.01):
        now = dataclasses.replace(case, cluster=cluster, jobs=jobs, interval_s=interval)
        done = strategies.outcome(now, strategies.run(now, "load-balance", case.shape.config(), TIMED))
        assert (done.start_s >= jobs.submit_s - 1e-6).all() and (done.start_s < jobs.submit_s + interval).all()
        finish[interval] = done.finish_s
    error = [np.abs(finish[interval] - finish[0.01]).max() for interval in (100.0, 10.0, 1.0, 0.1)]
    # Slowdowns here are below 20: a start that is late by an interval cannot move a finish by more than that times it.
    assert all(e <= 20 * interval for e, interval in zip(error, (100.0, 10.0, 1.0, 0.1), strict=True))
    assert error[3] < error[1] < error[0]


def test_queued_jobs_converge_as_the_interval_vanishes():
    """FIFO on one server: the starts approach those of the exact recursion."""
    from test_queueing import recursion, simulated

    rng = np.random.default_rng(0)
    submit, duration = np.cumsum(rng.exponential(0.27, (1, 60)), 1), rng.exponential(1.0, (1, 60))
    exact = recursion(4, submit, duration)
    errors = [np.abs(simulated(4, submit, duration, interval) - exact).mean() for interval in (0.3, 0.1, 0.03, 0.01)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 0.05


def test_a_state_that_breaks_the_rules_is_noticed():
    """The checks above are no rubber stamps."""
    case = strategies.random_case(3, "two", interval_s=60.0, fractions=0.4)
    config, params = case.shape.config(), case.params
    states = []
    strategies.watched_run(case, "pack:backfill", config, lambda before, action, after, gain: states.append(after))
    state = next(s for s in states if (s.running.job >= 0).sum() > 2 and (s.queue >= 0).any() and (s.shared > 0).any())
    check_state(config, params, state)
    running = state.running
    p, r = map(int, np.argwhere(np.asarray(running.job) >= 0)[0])
    q, slot = map(int, np.argwhere(np.asarray(state.queue) >= 0)[0])
    for broken in (
        state.replace(free=state.free.at[0, 0, 0].add(1)),
        state.replace(queue=state.queue.at[q, slot].set(-1)),
        state.replace(queue=state.queue.at[q, slot].set(int(running.job[p, r]))),
        state.replace(running=running.replace(job=running.job.at[p, r].set(-1))),
        state.replace(running=running.replace(slowdown=running.slowdown.at[p, r].set(0.9))),
        state.replace(next_job=state.next_job + 1),
        state.replace(shared=jnp.where(state.shared > 0, state.shared - 1, state.shared)),
        state.replace(running=running.replace(gpu=jnp.where(running.gpu >= 0, -1, running.gpu))),
    ):
        with pytest.raises(AssertionError):
            check_state(config, params, broken)
