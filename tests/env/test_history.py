"""Policies that know finished jobs only (docs/semantics.md, section 9, "History")."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsched.env.environment import initial_state
from jaxsched.env.extensions.history import SECONDS, expected_s, no_history
from jaxsched.env.knowledge import mask_unknown
from jaxsched.env.queues import Discipline, order_keys
from jaxsched.env.state import FINISHED
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import check_world
from tests.env.test_oracle import assert_same
from tests.support import strategies
from tests.support.cases import cases, few
from tests.support.specs import GUESSING, INFORMED
from tests.support.strategies import COSTS


@pytest.mark.long
@pytest.mark.parametrize("shape", few(["two"], ["one", "two"]))
@cases(25)
@given(data=st.data())
def test_runs_by_history(shape, data):
    """With stops; the compiled loop plays as many."""
    hold_to_the_oracle(shape, INFORMED, data)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["three"])
@cases(25)
@given(data=st.data())
def test_runs_by_history_without_stops(shape, data):
    hold_to_the_oracle(shape, GUESSING, data)


def hold_to_the_oracle(shape: str, specs: dict[str, tuple[str, ...]], data: st.DataObject) -> None:
    """One case, one policy."""
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(specs[shape]))
    costs = data.draw(COSTS) if specs is INFORMED else None
    together = () if specs is INFORMED else specs[shape]
    assert_same(dataclasses.replace(case, preemption=costs, history=True), spec, together, "analytic")


def after_some_rounds(case: strategies.Case):
    """A state of a run in which some jobs have finished, some run and some are queued."""
    step, policy = strategies.jit_transition(case.config()), strategies.jit_policy("pack:area+backfill")
    state = strategies.jit_start(case.config())(case.params, case.table)
    while int((state.records.status == FINISHED).sum()) < 8:
        state, *_ = step(
            case.params, state, policy(jax.random.key(0), mask_unknown(case.config(), case.params, state), case.params)
        )
    return state


@pytest.mark.slower
def test_run_times_of_unfinished_jobs_are_nowhere():
    """Other run times of jobs that run, wait or have not come give the same arrays, and so the same decisions."""
    case = dataclasses.replace(strategies.random_case(3, "one"), history=True)
    state = after_some_rounds(case)
    jobs, running = state.jobs, state.running
    done = np.asarray(state.records.status) == FINISHED
    assert done.any() and (np.asarray(running.job) >= 0).any() and (np.asarray(state.queue) >= 0).any()
    hidden = np.flatnonzero(~done)
    duration = np.asarray(jobs.duration_s).copy()
    duration[hidden] = np.random.default_rng(0).permutation(duration[hidden]) + 1.0
    at = np.maximum(np.asarray(running.job), 0)
    more = duration[at] - np.asarray(running.duration_s)
    other = state.replace(
        jobs=jobs.replace(duration_s=duration, estimate_s=duration),
        running=running.replace(
            duration_s=running.duration_s + more, remaining_s=np.asarray(running.remaining_s) + more
        ),
    )
    one, two = (mask_unknown(case.config(), case.params, x) for x in (state, other))
    # What a running job has done is a difference: its last bits are those of its run time.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-2), one, two)
    np.testing.assert_array_equal(one.jobs.estimate_s, two.jobs.estimate_s)
    np.testing.assert_allclose(np.asarray(one.jobs.duration_s)[done], np.asarray(state.jobs.duration_s)[done])


def test_a_class_without_jobs_is_that_above_it():
    """An hour if nothing is known, then what the jobs of all classes took, then those of the own one."""
    case = strategies.random_case(3, "one")
    none = no_history(case.config(knows="history"), case.params)
    classes = tuple(np.array(index) for index in (0, 1, 20, 100))
    assert float(expected_s(none, classes)) == pytest.approx(3600, rel=0.03)
    some = none.replace(jobs=none.jobs.at[0].set(10_000), steps=none.steps.at[0].set(10_000 * 16 * 5))
    assert float(expected_s(some, classes)) == pytest.approx(32, rel=0.03)
    own = some.replace(jobs=some.jobs.at[100].set(10_000), steps=some.steps.at[100].set(10_000 * 16 * 10))
    assert float(expected_s(own, classes)) == pytest.approx(1024, rel=0.03)
    assert SECONDS[0] == 1 and SECONDS[-1] == 2**27


@pytest.mark.parametrize("knows", ["runtimes", "estimates", "nothing"])
@pytest.mark.parametrize("policy", ["qssf", "tiresias-gittins", "greedy-wait:gittins+preempt"])
def test_who_needs_a_history_is_refused_elsewhere(policy, knows):
    with pytest.raises(UserError, match=f"'{policy.replace('+', '.')}'.* knows = {knows}; set knows = history"):
        check_world(parse(policy), Settings(knows=knows, preemption=True))


@pytest.mark.parametrize("order", ["gittins", "las"])
def test_orders_that_are_levels_are_refused_in_jax(order):
    case = strategies.random_case(3, "one")
    state = jax.eval_shape(lambda: initial_state(case.shape.config(), case.params, case.table))
    with pytest.raises(
        UserError, match=f"order: '{order}' is for the event loop; in JAX it should be one of fifo, sjf"
    ):
        jax.eval_shape(lambda state: order_keys(Discipline(order=order), state, case.params), state)


@pytest.mark.parametrize("policy", ["qssf", "tiresias-las", "tiresias-gittins", "themis", "pack:srsf", "greedy-wait"])
def test_who_needs_estimates_may_have_a_history(policy):
    check_world(parse(policy), Settings(knows="history", preemption=True))
    assert parse(policy).name == policy
