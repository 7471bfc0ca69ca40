"""Gymnasium's own checks, and random agents, one and several at once."""

import runpy
from pathlib import Path

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
    np.testing.assert_array_equal(env.action_masks(), seen["mask"].reshape(-1) == 1)
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/gymnasium_random.py"))
    rng = np.random.default_rng(0)
    for rounds, total, info in example["play"](env, 2, rng):
        assert rounds >= 6 and total < 0 and info["finished"] == 6

    many = GymVectorEnv(inner, 3)
    seen, _ = many.reset(seed=1)
    again, _ = many.reset(seed=1)
    np.testing.assert_array_equal(seen["features"], again["features"])
    assert many.observation_space.contains(seen)
    assert seen["mask"].shape[0] == 3
    total, ends = example["play_many"](many, 200, rng)
    assert total.shape == (3,) and (total < 0).all() and (ends >= 1).all()
