"""What waiting would bring, against the environment: the same question asked when the wait is over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.env.environment import SHOWN, initial_state
from jaxsched.env.observation import observe
from jaxsched.env.stages import transition
from jaxsched.env.state import PLACE, EnvConfig, make_params, wait_action
from jaxsched.policies.looking_ahead import look_ahead
from jaxsched.policies.menu import build_menu
from jaxsched.policies.offers import appraise, score
from jaxsched.policies.window import make_window, with_step_times
from jaxsched.workload.jobs import make_job_list, to_table
from jaxsched.workload.models import MODEL_NAMES

INTERVAL_S, END_S, LONG_S = 60.0, 600.0, 60_000.0
CONFIG = EnvConfig(running_slots=8, queue_slots=8, rounds=8)
LOUD = MODEL_NAMES.index("vgg19")
# Server 0 is full for ten minutes, servers 1 and 2 are half full for long: the gang has two halves, or one place later.
ON = ((0, 4), (1, 2), (2, 2))


@jax.jit
def step(params, state, action):
    return transition(CONFIG, params, state, action)[0]


@pytest.fixture(scope="module")
def world():
    """Parameters, and the state in which three jobs run and a gang of four workers waits."""
    cluster = build([Server(groups=(4,), nic_gbits_s=10.0)] * 3, leaf_spine(3, 1, nic_gbits_s=10.0), 1)
    durations = [END_S, LONG_S, LONG_S, 2000.0]
    jobs = make_job_list([0.0] * 4, durations, [4, 2, 2, 4], model=[0, 0, LOUD, LOUD])
    params = make_params(cluster, interval_s=INTERVAL_S)
    state = initial_state(CONFIG, params, to_table(jobs, INTERVAL_S))
    for job, (server, workers) in enumerate(ON):
        slot = int(np.flatnonzero(np.asarray(state.queue[0]) == job)[0])
        there = jnp.zeros_like(wait_action(cluster).workers).at[0, server, 0].set(workers)
        placed = wait_action(cluster).replace(kind=jnp.array([PLACE]), slot=jnp.array([slot]), workers=there)
        state = step(params, state, placed)
    assert int(state.illegal) == 0 and int((state.running.job >= 0).sum()) == 3
    return params, state


@jax.jit
def look(params, state):
    """`eff` of the gang's best placement in a state in which it is the only job that waits, and what it hopes for."""
    slot, zero = jnp.argmax(state.queue[0] == 3)[None, None], jnp.int32(0)
    window = make_window(state.replace(waited=jnp.array([False])), params, slot, slot >= 0, ahead=True)
    window = jax.tree.map(lambda leaf: leaf[0], with_step_times(params, window))
    on = appraise(params, window, zero, zero)
    choice = jnp.argmin(score(on))
    return on.effective[choice], look_ahead(params, window, zero, zero, on)


def test_what_is_hoped_for_is_what_the_job_finds_when_the_wait_is_over(world):
    params, state = world
    eff, hope = look(params, state)
    end_s = state.running.remaining_s[0, 0] * state.running.slowdown[0, 0]
    np.testing.assert_allclose(hope.wait_s, end_s, rtol=1e-5)
    wait = wait_action(params.cluster)
    while bool((state.running.job == 0).any()):
        state = step(params, state, wait)
    after, then = look(params, state)
    assert bool(hope.waits) and after < 0.9 * eff, "waiting brings nothing here"
    np.testing.assert_allclose(hope.least - hope.wait_s / 2000.0, after, rtol=1e-3)
    assert not bool(then.waits)


def test_within_reach_is_what_the_job_finds_in_an_empty_cluster(world):
    params, state = world
    empty = initial_state(CONFIG, params, state.jobs)
    np.testing.assert_allclose(look(params, state)[1].reach, look(params, empty)[0], rtol=1e-5)


def test_a_gang_wider_than_a_rack_does_not_hope_for_more_than_there_is():
    """Racks of two of six servers: its best place looks bad by a step without links, not by what is in reach."""
    cluster = build(
        [Server(groups=(4,), nic_gbits_s=10.0)] * 6, leaf_spine(6, 2, nic_gbits_s=10.0, oversubscription=4.0), 1
    )
    jobs = make_job_list([0.0], [3600.0], [16], model=LOUD)
    params = make_params(cluster, interval_s=INTERVAL_S)
    state = initial_state(CONFIG, params, to_table(jobs, INTERVAL_S))

    @jax.jit
    def menus(params, state):
        obs = observe(SHOWN, params, state)
        return [build_menu(params, state, obs, looks_ahead) for looks_ahead in (False, True)]

    plain, ahead = menus(params, state)
    first = int(jnp.argmax(plain.mask[0] & (plain.order[0] == 0)))
    assert float(plain.features[0, first, 0]) > 0.1, "the links slow it down"
    assert ahead.features.shape[-1] == plain.features.shape[-1] + 4
    np.testing.assert_allclose(ahead.features[0, first, -4:-1], 0.0, atol=1e-6)
    assert float(ahead.log_stake[0, first]) == pytest.approx(-4.0)
    assert np.isfinite(np.asarray(ahead.features)).all()
