"""Policies see estimates: nothing they read tells the true durations."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxsched.env.environment import SHOWN, initial_state
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.observation import observe
from jaxsched.env.queues import BASIC, Discipline, order_keys
from jaxsched.policies.menu import build_menu
from jaxsched.policies.registry import parse
from tests.support import strategies


def views(case: strategies.Case, config):
    """All that policies read, before and after a first round of placing."""
    params = case.params
    policy = parse("pack:area+backfill")
    key = jax.random.key(0)

    def look(state):
        obs = observe(SHOWN, params, state)
        return (
            obs,
            build_menu(params, state, obs),
            [order_keys(Discipline(order=order), state, params) for order in BASIC],
        )

    state = initial_state(config, params, case.table)
    after, _, _ = strategies.jit_transition(config)(params, state, policy(key, state, params))
    assert bool((after.running.job >= 0).any())
    return look(state), look(after)


@pytest.mark.long
def test_two_worlds_with_the_same_estimates_look_the_same():
    case = strategies.random_case(3, "two", error=1.0)
    jobs = dataclasses.replace(case.jobs, submit_s=np.zeros(len(case.jobs)))
    known = dataclasses.replace(jobs, duration_s=jobs.estimate_s, estimate_ratio=np.ones(len(jobs)))
    config = case.shape.config()
    noisy, exact = (views(dataclasses.replace(case, jobs=one), config) for one in (jobs, known))
    for one, other in zip(jax.tree.leaves(noisy), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
    wrong = views(
        dataclasses.replace(case, jobs=dataclasses.replace(jobs, estimate_ratio=known.estimate_ratio)), config
    )
    pairs = zip(jax.tree.leaves(noisy), jax.tree.leaves(wrong), strict=True)
    assert not all(np.allclose(one, other, rtol=1e-2) for one, other in pairs)


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 40.0), (2.0, 140.0), (0.9, 30.0), (0.605, 0.5), (0.5, 6.0)])
def test_what_a_running_job_is_thought_to_have_left(ratio, expected):
    case = strategies.random_case(3, "two")
    config = case.shape.config()
    state = initial_state(config, case.params, case.table)
    running = state.running.replace(
        job=state.running.job.at[1, 2].set(5),
        duration_s=state.running.duration_s.at[1, 2].set(100.0),
        remaining_s=state.running.remaining_s.at[1, 2].set(40.0),
    )
    jobs = state.jobs.replace(estimate_s=state.jobs.estimate_s.at[5].set(100.0 * ratio))
    left = estimated_left_s(state.replace(running=running, jobs=jobs))
    np.testing.assert_allclose(left[1, 2], expected, rtol=1e-4)  # overdue: a tenth of the 60 s done
    assert float(left.sum()) == float(left[1, 2])
