"""The environment that `make` gives: spaces, whole episodes, and the next one by itself."""

import dataclasses

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
def test_in_turns_as_in_rounds(env):
    """Who always takes the first legal line has the same episode, however its steps are cut."""

    def episode(env, steps):
        def turn(carry, key):
            seen, state = carry
            seen, state, reward, terminated, _, info = env.step(key, state, jnp.argmax(seen["mask"], -1))
            return (seen, state), (reward, terminated, info)

        reset = lambda key: env.reset(
            key, env.params.replace(starts=jax.tree.map(lambda leaf: leaf[:1], env.params.starts))
        )
        _, (reward, terminated, info) = jax.jit(lambda: jax.lax.scan(turn, reset(jax.random.key(0)), _keys(steps)))()
        end = int(np.argmax(terminated))
        assert terminated[end]
        return float(reward[: end + 1].sum()), int(info["finished"][end]), float(info["jct_mean_s"][end])

    turns = dataclasses.replace(env, in_turns=True)
    assert episode(turns, 400) == pytest.approx(episode(env, 200), rel=1e-5)


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


def _keys(count):
    return jax.random.split(jax.random.key(0), count)
