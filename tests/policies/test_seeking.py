"""When there is news for those that seek (docs/semantics.md, section 7)."""

import jax.numpy as jnp
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.state import FINISHED, EnvConfig, make_params
from jaxsched.policies.seeking import news
from jaxsched.workload.jobs import make_job_list, to_table

INTERVAL_S = 60.0


@pytest.fixture
def world():
    """A job that came at once, one that comes at boundary 7, and one that fits nowhere at boundary 8."""
    jobs = make_job_list(
        submit_s=[0.0, 6.5 * INTERVAL_S, 7.5 * INTERVAL_S], duration_s=[100.0] * 3, workers=[1, 1, 1000]
    )
    params = make_params(get_cluster("leaf-spine-2"), interval_s=INTERVAL_S)
    return params, initial_state(EnvConfig(), params, to_table(jobs, INTERVAL_S))


@pytest.mark.parametrize(("clock", "there_is"), [(0, True), (1, False), (6, False), (7, True), (8, False)])
def test_jobs_that_come_are_news(world, clock, there_is):
    params, state = world
    assert bool(news(params, state.replace(clock=jnp.int32(clock)))) == there_is


@pytest.mark.parametrize(("offset", "there_is"), [(0.5, False), (2.0, False), (2.01, True), (3.0, True)])
def test_jobs_that_ended_since_the_boundary_before_are_news(world, offset, there_is):
    """Time passed from boundary 1 to boundary 4 at once; the job ended so many intervals after boundary 1."""
    params, state = world
    records = state.records.replace(
        status=state.records.status.at[0].set(FINISHED),
        finish=state.records.finish.at[0].set(1),
        finish_offset_s=state.records.finish_offset_s.at[0].set(offset * INTERVAL_S),
    )
    assert bool(news(params, state.replace(clock=jnp.int32(4), records=records))) == there_is
