"""Jobs that share a GPU: which GPU they get, what comes back, and that whole jobs know nothing of it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.interference import Interference, Strengths
from jaxsched.env.environment import initial_state
from jaxsched.env.extensions import sharing
from jaxsched.env.stages import transition
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import make_job_list, to_table
from tests.oracle import policies, simulator
from tests.support import strategies
from tests.support.sharing_laws import by_hand, random_table


def test_room_and_the_gpu_that_is_taken():
    free = jnp.array([1, 0, 0, 2])
    shared = jnp.array([[900, 300, 0], [500, 600, 0], [0, 0, 0], [0, 0, 0]], jnp.int16)
    assert sharing.room_of(free, shared).tolist() == [1000, 500, 0, 1000]
    fits = functools.partial(sharing.capacity, free, sharing.room_of(free, shared), jnp.int32(1))
    assert fits(jnp.int32(501)).tolist() == [1, 0, 0, 1] and fits(jnp.int32(1000)).tolist() == [1, 0, 0, 2]

    def gpu(milli):
        slot, some = sharing.best_gpu(free, shared, jnp.full(4, milli))
        return [int(s) if ok else None for s, ok in zip(slot, some)]

    assert gpu(100) == [0, 1, None, 0]  # the one with the least left, 100 and 400
    assert gpu(101) == [1, 1, None, 0]
    assert gpu(450) == [1, 0, None, 0]
    assert gpu(701) == [2, None, None, 0]  # a free GPU becomes a shared one


def test_a_gpu_is_free_again_when_the_last_fraction_leaves():
    shared = jnp.array([[[[900, 300]]]], jnp.int16)
    after, whole = sharing.take(shared, jnp.array([[0, 1, -1]]), jnp.array([[-900, -100, -500]]))
    assert after.tolist() == [[[[0, 200]]]] and whole.tolist() == [[[1]]]
    after, whole = sharing.take(after, jnp.array([0]), jnp.array([250]))
    assert after.tolist() == [[[[250, 200]]]] and whole.tolist() == [[[-1]]]


def program(config, spec: str, params, table) -> tuple[str, Any]:
    """The lowered start, decision and transition, and the shapes of the state."""
    policy = parse(spec)

    def one(params, table, key):
        state = initial_state(config, params, table)
        action = policy(key, state, params)
        return transition(config, params, state, action)[0]

    lowered = jax.jit(one).lower(params, table, jax.random.key(0))
    return lowered.as_text(), lowered.out_info


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["greedy-wait:p1", "tetris:area+forward"])
def test_without_shared_gpus_the_program_has_nothing_of_them(spec):
    case = strategies.random_case(1, "two")
    config, params = dataclasses.replace(case.shape.config(), shared_gpus=0), case.params
    text, state = program(config, spec, params, case.table)
    parts = (state.shared, state.jobs.milli, state.running.gpu, state.running.stretch)
    assert all(part.size == 0 for part in parts)
    # As long as that for a job table without the column, and parameters with a law that nobody uses change nothing.
    fitted = params.interference.replace(sharing=random_table(np.random.default_rng(0)))
    law = params.replace(interference=fitted)
    lean, _ = program(config, spec, law, case.table.replace(milli=case.table.milli[:0]))
    assert lean.count("\n") == text.count("\n")
    more, state = program(case.shape.config(), spec, params, case.table)
    assert state.shared.shape == (*case.cluster.shape, 8) and more.count("\n") > 1.1 * text.count("\n")


WHOLE = ("greedy-wait:p1", "pack:area+backfill+forward")


@pytest.mark.long
@pytest.mark.parametrize("spec", WHOLE)
def test_whole_jobs_run_alike_with_and_without_shared_gpus(spec):
    for seed in range(3):
        case = strategies.random_case(seed, "two")
        none = dataclasses.replace(case.shape.config(), shared_gpus=0)
        one = strategies.outcome(case, strategies.run(case, spec, none, WHOLE))
        other = strategies.outcome(case, strategies.run(case, spec, case.shape.config()))
        for name in ("start_s", "finish_s", "partition"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.workers == other.workers


# ------------------------------------------------------------------------------------------------ the law, by the page


SHARING = ("pack:backfill", "greedy-wait:t2.5")


@pytest.mark.long
@pytest.mark.parametrize("spec", SHARING)
def test_the_fitted_law_agrees_with_the_oracle(spec):
    name = spec.partition(":")[0]
    if name == "pack":
        policy = policies.make_policy(name, backfill=True)
    else:
        policy = policies.make_policy(name, "area", backfill=True, forward="forward", threshold=2.5)
    table = random_table(np.random.default_rng(0))
    stretched = 0
    for seed in range(8):
        case = strategies.random_case(seed, "two", fractions=0.8)
        params = case.params.replace(interference=case.params.interference.replace(sharing=table))
        state, _ = strategies.jit_run(case.shape.config(), SHARING)(params, case.table, SHARING.index(spec))
        ours = strategies.outcome(case, state)
        theirs = simulator.simulate(
            case.cluster,
            case.jobs,
            case.params.profiles,
            policy,
            interval_s=case.interval_s,
            rounds=case.shape.rounds,
            max_forwards=case.max_forwards,
            interference="analytic",
            strengths=case.kappa,
            law=by_hand(table),
            queue_slots=case.shape.queue_slots,
            running_slots=case.shape.running_slots,
        )
        assert ours.status == theirs.status and ours.workers == theirs.workers
        np.testing.assert_allclose(ours.start_s, theirs.start_s, rtol=1e-9)
        np.testing.assert_allclose(ours.finish_s - ours.start_s, theirs.finish_s - theirs.start_s, rtol=2e-5)
        plain, _ = strategies.jit_run(case.shape.config(), SHARING)(case.params, case.table, SHARING.index(spec))
        stretched += int((np.abs(strategies.outcome(case, plain).finish_s - ours.finish_s) > 1.0).sum())
    assert stretched > 10  # the law matters here


@pytest.mark.slow
def test_fractions_share_gpus_in_the_cases():
    """Some GPU has several jobs on it, they slow each other down, and a full one is shut."""
    most, slowest = 0, 1.0

    def watch(before, action, after, gain):
        nonlocal most, slowest
        gpu = np.asarray(after.running.gpu)[np.asarray(after.running.job) >= 0]
        most = max(most, int(np.unique(gpu[gpu >= 0], return_counts=True)[1].max(initial=0)))
        slowest = max(slowest, float(after.running.stretch.max()))

    case = strategies.random_case(0, "two", fractions=0.9, interval_s=211.7)
    crowd = dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(len(case.jobs))))
    strategies.watched_run(crowd, "pack:backfill", case.shape.config(), watch)
    assert most >= 3 and slowest > 1.5


@pytest.mark.slow
def test_two_fractions_by_hand():
    """Alone 100 s each; together each computes 1 + kappa = 3 times as long, until the shorter one is done."""
    cluster = build([Server(groups=(1,), gpu_type="H100")], leaf_spine(1), 1)
    jobs = make_job_list([0, 0, 0], [100, 50, 10], 1, milli=[600, 400, 1000], model=0)
    case = strategies.Case("by hand", strategies.Shape(1, 1, 1, 3, 4, 4, 4, shared=1), cluster, jobs, 1000.0)
    case = dataclasses.replace(case, kappa=(0.0, 0.0, 0.0, 0.0, 0.0, 2.0))
    done = strategies.outcome(case, strategies.run(case, "pack:backfill", case.shape.config()))
    # 0..150 s together: the second is done, the first has 50 s left. The third needs the whole GPU.
    np.testing.assert_allclose(done.finish_s, [200, 150, 1010], rtol=1e-5)
    assert to_table(jobs, 1.0).milli.tolist() == [600, 400, 1000]


@pytest.mark.slow
def test_five_strengths_are_refused_where_the_sixth_is_asked_for():
    case = strategies.random_case(0, "two", fractions=0.5)
    interference = case.params.interference
    five = case.params.replace(interference=interference.replace(weights=Strengths(kappa=jnp.ones(5))))
    with pytest.raises(ValueError, match="kappa: has 5 channels, should have 6"):
        strategies.jit_run(case.shape.config(), ("pack",)).trace(five, case.table, 0)
    whole = dataclasses.replace(case.shape.config(), shared_gpus=0)
    strategies.jit_run(whole, ("pack",)).trace(five, case.table, 0)  # whole GPUs need no sixth


@pytest.mark.long
def test_a_users_own_function_is_asked_for_the_channel_gpu():
    seen = set()

    def own(weights, channel, model, own, others):
        seen.add(channel)
        return 1.0 + (channel == 5) * weights * others + 0.0 * own

    case = strategies.random_case(1, "two", fractions=0.9)
    run = strategies.jit_run(case.shape.config(), ("pack:backfill",))
    models = [Interference(law=own, weights=jnp.float32(weight)) for weight in (0, 5)]
    params = [case.params.replace(interference=model) for model in models]
    free, slow = (strategies.outcome(case, run(some, case.table, 0)[0]) for some in params)
    assert seen == set(range(6))
    run_s = [done.finish_s - done.start_s for done in (free, slow)]
    fractions = case.jobs.milli < 1000
    assert np.nanmax(run_s[1][fractions] / case.jobs.duration_s[fractions]) > 5
    np.testing.assert_allclose(run_s[0][~fractions], run_s[1][~fractions], rtol=1e-4)
