"""Gymnasium's own checks, and random agents, one and several at once."""

import numpy as np
import pytest

import jaxsched

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gym")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # that features have no limits
def test_a_random_agent_plays_and_gymnasium_has_no_objection():
    from gymnasium.utils.env_checker import check_env

    from jaxsched.adapters.gymnasium_env import GymEnv, GymVectorEnv

    inner = jaxsched.make("leaf-spine-1", schedulers=1, num_jobs=6, episodes=2, mean_duration_s=300.0)
    env = GymEnv(inner)
    check_env(env, skip_render_check=True)
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen)
    draw, ends = np.random.default_rng(0), 0
    for _ in range(300):
        action = np.array([draw.choice(np.flatnonzero(row)) for row in seen["mask"]])
        seen, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            assert info["finished"] == 6
            ends, (seen, _) = ends + 1, env.reset()
    assert ends >= 1 and reward <= 0

    many = GymVectorEnv(inner, 3)
    seen, _ = many.reset(seed=1)
    again, _ = many.reset(seed=1)
    np.testing.assert_array_equal(seen["features"], again["features"])
    assert many.observation_space.contains(seen)
    for _ in range(20):
        seen, reward, terminated, truncated, _ = many.step(many.action_space.sample())
    assert np.shape(reward) == np.shape(terminated) == (3,) and seen["mask"].shape[0] == 3
