"""The environment that `make` gives: spaces, whole episodes, and the next one by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.adapters.menu_env import MenuEnv
from jaxsched.adapters.spaces import Box, Discrete
from jaxsched.errors import UserError


@pytest.fixture(scope="module")
def env() -> MenuEnv:
    return jaxsched.make("leaf-spine-1", schedulers=1, num_jobs=6, episodes=2, mean_duration_s=300.0)


def test_spaces_draw_what_they_contain():
    key = jax.random.key(0)
    for space in (Discrete(5, (3,)), Box(-1.0, 2.0, (2, 2))):
        assert space.contains(space.sample(key)) and not space.contains(jnp.full(space.shape, 9))
        assert not space.contains(jnp.zeros(7))
    mask = jnp.array([[False, True, False], [False, False, True]])
    assert Discrete(3, (2,)).sample(key, mask).tolist() == [1, 2]


def test_a_mistake_is_told():
    with pytest.raises(UserError, match="episodes: 0"):
        jaxsched.make(episodes=0)


@pytest.mark.slow
def test_episodes_end_with_all_jobs_done_and_begin_again(env):
    space, seen_space = env.action_space(), env.observation_space()

    def play(key):
        def turn(carry, key):
            seen, state = carry
            act, go = jax.random.split(key)
            seen, state, reward, *end, info = env.step(go, state, space.sample(act, seen["mask"]))
            return (seen, state), (reward, *end, info, state.state.clock)

        return jax.lax.scan(turn, env.reset(key), jax.random.split(key, 400))

    (seen, _), (reward, terminated, truncated, info, clock) = jax.jit(play)(jax.random.key(0))
    assert seen_space.contains(seen) and space.n == 32 + 1 + 1 and bool(seen["mask"][:, -1].all())
    ends = np.flatnonzero(terminated)
    assert len(ends) > 1 and not truncated.any()
    assert (info["finished"][ends] == 6).all() and (info["jct_mean_s"][ends] > 60).all()
    assert (clock[ends] <= 1).all() and (clock[ends - 1] > 1).all()  # at once at the start of the next one
    assert np.isfinite(reward).all() and (reward <= 0).all()
