"""Servers that fail in the environments that are trained on."""

import jax
import numpy as np
import pytest

from jaxsched.cluster.outages import Rates
from jaxsched.learning.chunk import chunk, initial
from jaxsched.learning.draws import MOST_OUTAGES, draw_outages, draw_some
from jaxsched.learning.setting import make_setting
from jaxsched.sweeps.plan import replace_values
from jaxsched.workload.jobs import NEVER


def test_servers_are_up_and_out_in_turn_for_times_with_these_means():
    changes = np.asarray(draw_outages(jax.random.key(0), Rates(50.0, 5.0), (20, 50), 60.0).changes)
    assert changes.shape == (20, 50, 2 * MOST_OUTAGES + 1) and (changes[..., -1] == NEVER).all()
    spans = np.diff(changes[..., :-1], axis=-1, prepend=0)
    assert (spans[..., 1:] >= 1).all() and (spans >= 0).all()  # at least one boundary each
    np.testing.assert_allclose(spans[..., ::2].mean() / 60, 50.0, rtol=0.02)
    np.testing.assert_allclose(spans[..., 1::2].mean() / 60, 5.0, rtol=0.02)


def test_servers_that_are_out_for_less_than_an_interval_are_out_at_one_boundary():
    changes = np.asarray(draw_outages(jax.random.key(0), Rates(1e4, 1e-4), (1, 8), 3600.0).changes)[..., :-1]
    np.testing.assert_array_equal(changes[..., 1::2] - changes[..., ::2], 1)


@pytest.mark.slow
def test_servers_fail_in_every_environment_at_times_of_its_own(config):
    setting = make_setting(replace_values(config, {"env.failures": "100,4"}))
    plain = make_setting(config)
    costs = setting.worlds.params.preemption
    assert costs.there and not costs.voluntary and not plain.worlds.params.failures.there
    draws, same = (draw_some(jax.random.key(1), one.worlds, 3) for one in (setting, plain))
    assert draws.failures is not None and len({leaf.tobytes() for leaf in np.asarray(draws.failures.changes)}) == 3
    jax.tree.map(np.testing.assert_array_equal, draws.replace(failures=None), same)
    start = jax.eval_shape(lambda: initial(setting))
    assert start.worlds.faults.there
    after, _ = jax.eval_shape(lambda state: chunk(setting, state), start)  # the whole of a chunk can be traced
    assert jax.tree.structure(after) == jax.tree.structure(start)


def test_a_slow_world_fails_as_often_in_its_jobs_lives(config):
    """Pace is a factor of all times: outages come at the same boundaries. A longer interval has more of them."""
    fails = {"env.failures": "100,4", "env.interval_factor": (1.0, 1.0)}
    worlds = make_setting(replace_values(config, fails)).worlds
    slow = worlds._replace(workload=replace_values(config, {"workload.pace": (2.0, 2.0)}).workload)
    long = worlds._replace(env=replace_values(config, fails | {"env.interval_factor": (2.0, 2.0)}).env)
    changes = [np.asarray(draw_some(jax.random.key(0), one, 1).failures.changes) for one in (worlds, slow, long)]
    np.testing.assert_array_equal(changes[0], changes[1])
    there = changes[0] < NEVER
    np.testing.assert_allclose(changes[2][there], changes[0][there] / 2, atol=MOST_OUTAGES)
    assert (changes[2][there] < changes[0][there]).mean() > 0.9
