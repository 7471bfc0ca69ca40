"""Jobs are stopped and started again: the environment against the oracle (docs/semantics.md, section 8)."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.env.extensions.preemption import left_at_checkpoint
from jaxsched.env.knowledge import mask_unknown
from jaxsched.env.stages import transition
from jaxsched.env.state import STOP, wait_action
from tests.env.test_oracle import assert_same
from tests.oracle.preemption import Preemption
from tests.support import strategies
from tests.support.cases import cases, few
from tests.support.invariants import watcher
from tests.support.specs import FASTER, PREEMPTIVE, TABLES
from tests.support.strategies import COSTS, STOPPING


# The oracle's policy decides, and the environment does the same: what stops cost is the world's.
@pytest.mark.slow
@pytest.mark.parametrize("shape", [pytest.param("one", marks=pytest.mark.slower), "two"])
@settings(max_examples=10)
@given(data=st.data())
def test_some_runs_with_stops(shape, data):
    """A few, in the first tier."""
    hold_to_the_oracle(shape, data, PREEMPTIVE)


@pytest.mark.long
@pytest.mark.parametrize("specs", [PREEMPTIVE, TABLES, FASTER], ids=["levels", "tables", "faster"])
@pytest.mark.parametrize("shape", few(["one", "two"], PREEMPTIVE))
@cases(20)
@given(data=st.data())
def test_runs_with_stops(shape, specs, data):
    """The compiled loop has more cases of every shape, and decides by itself."""
    hold_to_the_oracle(shape, data, specs)


def hold_to_the_oracle(shape: str, data: st.DataObject, specs: dict[str, tuple[str, ...]]) -> None:
    """One case, one policy of the oracle."""
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(specs[shape]))
    case = dataclasses.replace(case, preemption=data.draw(COSTS))
    assert_same(case, spec, (), "analytic")


@pytest.mark.slower
def test_nothing_is_lost_when_jobs_are_stopped():
    """Never over capacity, every job in exactly one place, and what a job has had never falls."""
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption(30.0, 41.3, 0.0))
    config = case.shape.config(early_stop=False)
    check = watcher(config, case.params)

    def watch(before, action, after, gain):
        check(before, action, after, gain)
        assert (np.asarray(after.service.ran) >= np.asarray(before.service.ran)).all()
        assert (np.asarray(after.service.left_s) <= np.asarray(before.service.left_s)).all()

    state = strategies.watched_run(case, STOPPING, config, watch)
    assert int(state.service.stops.sum()) > 5


@pytest.mark.slower
def test_side_by_side_the_same_jobs_are_stopped():
    """Beside each other: environments in which somebody is stopped, and all others."""
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption(30.0, 41.3, 0.0))
    config = case.shape.config(early_stop=False)
    rounds = []
    strategies.watched_run(
        case, STOPPING, config, lambda before, action, after, gain: rounds.append((before, action, after))
    )
    states, actions, after = (jax.tree.map(lambda *leaves: np.stack(leaves), *column) for column in zip(*rounds))
    together = jax.jit(jax.vmap(lambda state, action: transition(config, case.params, state, action)[0]))
    found = together(states, actions)
    np.testing.assert_array_equal(found.running.job, after.running.job)
    np.testing.assert_array_equal(found.service.stops, after.service.stops)
    assert (np.asarray(actions.stop).any((1, 2))).sum() > 3


@pytest.mark.parametrize(
    ("done_s", "kept_s"), [(99.8, 0.0), (99.95, 99.95), (100.0, 100.0), (199.8, 100.0), (250.0, 200.0)]
)
def test_what_is_kept_is_the_work_up_to_the_last_checkpoint(done_s, kept_s):
    """Every 100 s; work that is short of a checkpoint by less than a thousandth of that counts as there."""
    costs = Preemption(0.0, 100.0, 0.0)
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=costs)
    state = strategies.jit_start(case.shape.config())(case.params, case.table)
    running, service = state.running, state.service
    running = running.replace(
        job=running.job.at[0, 0].set(0),
        duration_s=running.duration_s.at[0, 0].set(300.0),
        remaining_s=running.remaining_s.at[0, 0].set(300.0 - done_s),
        remaining_low_s=running.remaining_low_s.at[0, 0].set(0.0),
    )
    state = state.replace(running=running, service=service.replace(left_s=service.left_s.at[0].set(300.0)))
    left_s, saved = left_at_checkpoint(case.params, state)
    assert bool(saved)
    np.testing.assert_allclose(left_s[0, 0], 300.0 - kept_s, atol=1e-3)


def test_a_policy_that_knows_nothing_sees_no_run_time():
    """Other run times give the same arrays, and those that hold them otherwise are NaN, 0 or what has been done."""
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption())
    order = np.random.default_rng(0).permutation(len(case.jobs))
    other = dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, duration_s=case.jobs.duration_s[order]))
    config = case.shape.config()
    hidden = dataclasses.replace(config, knows="nothing")
    one, two = (mask_unknown(hidden, x.params, strategies.jit_start(config)(x.params, x.table)) for x in (case, other))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert np.isnan(one.jobs.estimate_s).all() and not np.asarray(one.jobs.duration_s).any()


def test_a_policy_that_knows_estimates_sees_no_true_run_time():
    """Run times that differ where the estimates are the same give the same arrays."""
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption())
    jobs = dataclasses.replace(
        case.jobs, duration_s=case.jobs.duration_s * 2, estimate_ratio=case.jobs.estimate_ratio / 2
    )
    other, config = dataclasses.replace(case, jobs=jobs), case.shape.config()
    hidden = dataclasses.replace(config, knows="estimates")
    one, two = (mask_unknown(hidden, x.params, strategies.jit_start(config)(x.params, x.table)) for x in (case, other))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), one, two)


@pytest.mark.slower
@pytest.mark.parametrize("wrong", ["a free slot", "nobody", "too early"])
def test_a_stop_that_is_not_legal_counts_as_waiting(wrong):
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption(min_run_s=3600.0))
    config = case.shape.config(early_stop=False)
    state, params = strategies.jit_start(config)(case.params, case.table), case.params
    step, policy = strategies.jit_transition(config), strategies.jit_policy("pack:area+backfill")
    while not (np.asarray(state.running.job) >= 0).any() or int(state.round):
        state, *_ = step(params, state, policy(jax.random.key(0), state, params))
    runs = np.asarray(state.running.job) >= 0
    stop = {"a free slot": ~runs, "nobody": np.zeros_like(runs), "too early": runs}[wrong]
    action = wait_action(params.cluster).replace(kind=np.full(1, STOP, np.int32), stop=stop)
    after, *_ = step(params, state, action)
    assert int(after.illegal) == int(state.illegal) + 1 and bool(after.waited.all())
    np.testing.assert_array_equal(after.running.job, state.running.job)
    np.testing.assert_array_equal(after.queue, state.queue)
