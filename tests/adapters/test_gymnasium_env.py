"""Gymnasium's own checks, and random agents, one and several at once."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import jaxsched
from jaxsched.errors import UserError

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
    listed, _ = many.reset(seed=[1, 2, 3])
    np.testing.assert_array_equal(seen["features"], listed["features"])
    np.testing.assert_array_equal(env.reset(seed=2)[0]["features"], seen["features"][1])
    np.testing.assert_array_equal(many.reset(seed=[1, 9, None])[0]["features"][0], seen["features"][0])
    with pytest.raises(UserError, match="2 seeds, should be one for each of 3"):
        many.reset(seed=[1, 2])
    many.reset(seed=1)
    assert many.step(np.full((3, 1), 99))[-1]["illegal"].tolist() == [1, 1, 1]
    many.reset(seed=1)
    assert seen["mask"].shape[0] == 3
    total, ends = example["play_many"](many, 200, rng)
    assert total.shape == (3,) and (total < 0).all() and (ends >= 1).all()


@pytest.mark.slower
def test_the_last_observation_is_that_of_the_end_and_only_reset_begins_anew():
    from gymnasium.error import ResetNeeded

    from jaxsched.adapters.gymnasium_env import GymEnv, GymVectorEnv

    inner = jaxsched.make("leaf-spine-1", schedulers=1, num_jobs=6, episodes=2, mean_duration_s=3e4, horizon_s=300)
    waits = inner.action_space().n - 1
    env = GymEnv(inner)
    with pytest.raises(ResetNeeded, match="call reset first"):
        env.step(np.array([waits]))
    begun, _ = env.reset(seed=3)
    placed = np.array([int(begun["mask"][0].argmax())])
    shown, truncated, info = [begun], False, {}
    while not truncated:
        seen, _, terminated, truncated, info = env.step(placed if len(shown) == 1 else np.array([waits]))
        assert not terminated
        shown.append(seen)
    assert info["boundary"] == 5 and info["finished"] == 0
    assert not np.array_equal(shown[-1]["features"], begun["features"]), "a job runs at the end, at the start none does"
    with pytest.raises(ResetNeeded):
        env.step(np.array([waits]))

    many = GymVectorEnv(inner, 2)
    with pytest.raises(ResetNeeded):
        many.step(np.array([[waits], [waits]]))
    seen, _ = many.reset(seed=0)
    ended, told = np.array([False]), {}
    while not ended.any():
        assert "final_obs" not in told
        last = seen["features"]
        seen, _, terminated, truncated, told = many.step(np.array([[waits], [waits]]))
        ended = terminated | truncated
    assert ended.all() and told["_final_obs"].all() and told["_final_info"].all()
    for place in range(2):
        final = told["final_obs"][place]
        assert many.single_observation_space.contains(final)
        assert not np.array_equal(final["features"], seen["features"][place]), "jobs wait at the end, not at the start"
        assert final["features"].shape == last[place].shape
    np.testing.assert_array_equal(told["final_info"]["boundary"], [5, 5])
    assert (many.step(np.array([[waits], [waits]]))[4]["boundary"] <= 1).all(), "the next episodes have begun"
