"""Logs of returns, one scheduler without an axis, the last observation, other jobs; gymnax' own wrappers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.adapters.menu_env import MenuEpisodes
from jaxsched.adapters.wrappers import LogWrapper, OneScheduler
from jaxsched.env.pool import is_foreign, starts_of
from jaxsched.errors import UserError

MADE = {"num_jobs": 6, "episodes": 2, "mean_duration_s": 300.0}
STEPS = 120


@pytest.fixture(scope="module")
def env():
    return jaxsched.make("leaf-spine-1", schedulers=1, final=True, **MADE)


def play(env, steps: int = STEPS, choose=lambda seen: jnp.argmax(seen["mask"], -1), params=None):
    """What `steps` steps gave: (seen, state, reward, terminated, info) of each."""

    def step(carry, key):
        seen, state = carry
        seen, state, reward, terminated, _, info = env.step(key, state, choose(seen), params)
        return (seen, state), (seen, state, reward, terminated, info)

    keys = jax.random.split(jax.random.key(1), steps)
    return jax.jit(lambda: jax.lax.scan(step, env.reset(jax.random.key(0), params), keys)[1])()


@pytest.fixture(scope="module")
def played(env):
    return play(LogWrapper(OneScheduler(env)))


@pytest.mark.slower
def test_the_last_observation_is_that_of_the_own_end(env, played):
    """In the midst of an episode it is what comes next, at its end another; with and without what is prepared."""
    seen, _, _, ended, info = played
    final = info["final"]
    assert ended.any()
    for name in seen:
        np.testing.assert_array_equal(final[name][~ended], seen[name][~ended])
    assert (final["features"][ended] != seen["features"][ended]).any()
    plain = env.params.replace(starts=env.params.starts)
    assert plain.opened is None
    again = play(OneScheduler(env), params=plain)
    jax.tree.map(np.testing.assert_array_equal, again[0], seen)
    jax.tree.map(np.testing.assert_array_equal, again[4]["final"], final)


@pytest.mark.slower
def test_without_it_all_else_is_the_same(env, played):
    without = play(OneScheduler(jaxsched.make("leaf-spine-1", schedulers=1, **MADE)))
    assert "final" not in without[4]
    for one, other in zip((without[0], without[2], without[3]), (played[0], played[2], played[3])):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_returns_and_lengths_are_logged(played):
    _, log, reward, ended, info = played
    ends = np.flatnonzero(ended)
    begins = [0, *(ends[:-1] + 1)]
    for begin, end in zip(begins, ends):
        assert int(info["returned_episode_lengths"][end]) == end + 1 - begin
        total = float(reward[begin : end + 1].sum())
        assert float(info["returned_episode_returns"][end]) == pytest.approx(total, rel=1e-5)
    np.testing.assert_array_equal(info["returned_episode"], ended)
    assert reward.shape == (STEPS,) and log.length.shape == (STEPS,)


def test_the_time_that_passes_sums_to_that_of_the_episode(played):
    """From its first boundary to its last one: so learners can discount by it."""
    _, _, _, ended, info = played
    first = int(np.argmax(ended))
    assert int(info["intervals"][: first + 1].sum()) == int(info["boundary"][first])
    assert (info["intervals"] >= 0).all()
    np.testing.assert_allclose(info["elapsed_s"], info["intervals"] * 60.0)


@pytest.mark.slower
def test_other_jobs_of_another_seed(env):
    fresh = env.fresh(7)
    assert isinstance(fresh, MenuEpisodes) and fresh.opened is not None
    same = jax.tree.map(lambda one, other: one.shape == other.shape, fresh, env.params)
    assert all(jax.tree.leaves(same)), "the same program plays them"
    assert (fresh.starts.jobs.duration_s != env.params.starts.jobs.duration_s).any()
    direct = jaxsched.make("leaf-spine-1", schedulers=1, seed=7, **MADE).params.starts
    np.testing.assert_array_equal(fresh.starts.jobs.duration_s, direct.jobs.duration_s)
    _, turn = env.reset(jax.random.key(3), fresh)
    jobs = env.with_jobs(turn, fresh).jobs
    np.testing.assert_array_equal(jobs.duration_s, fresh.starts.jobs.duration_s[turn.state.jobs.number])
    starts = env.params.starts
    for name in ("arrival", "workers"):  # lists that differ in anything
        others = starts.replace(jobs=starts.jobs.replace(**{name: getattr(starts.jobs, name) + 1}))
        assert bool(is_foreign(starts_of(starts, jnp.int32(0)), others))
    jobs = jaxsched.make_job_list([0.0], [60.0], 1)
    with pytest.raises(UserError, match="fresh: the jobs of this environment are given"):
        jaxsched.make("leaf-spine-1", jobs).fresh(1)


@pytest.mark.slower
def test_turns_of_other_jobs_are_cut_off(env):
    """Their lists are not there; before there was a check, they went on with others' jobs."""
    fresh, waiting = env.fresh(7), jnp.array([env.num_actions - 1])
    own, others = (env.reset(jax.random.key(3), params)[1] for params in (fresh, env.params))
    for turn, cut in ((own, False), (others, True)):
        _, after, reward, terminated, truncated, _ = env.step(jax.random.key(4), turn, waiting, fresh)
        assert bool(truncated) == cut and not terminated and (not cut or (reward == 0).all())
        assert not is_foreign(after.played, fresh.starts)


def test_it_says_what_it_is_in_a_line(env):
    assert len(repr(env)) < 300 and "1 scheduler(s)" in repr(env) and "6 jobs" in repr(env)
    assert env.num_actions == len(env.action_names) == env.action_space().n
    assert env.action_names[0] == "placement 0" and env.action_names[-2:] == ["forward to scheduler 0", "wait"]


def test_as_many_rounds_at_a_boundary_as_in_comparisons(env):
    assert env.config.rounds == jaxsched.Settings().rounds
    assert jaxsched.make("leaf-spine-1", num_jobs=2, episodes=1, rounds=3).config.rounds == 3


@pytest.mark.slower
def test_several_schedulers_have_no_scalar_face():
    several = jaxsched.make("leaf-spine-2", schedulers=2, **MADE)
    with pytest.raises(UserError, match="has 2 schedulers, should have 1"):
        OneScheduler(several)
    seen, turn = several.reset(jax.random.key(0))
    np.testing.assert_array_equal(several.world_state(turn), seen["features"].reshape(-1))


def test_wrappers_of_gymnax_run_on_it(env):
    purerl = pytest.importorskip("gymnax.wrappers.purerl", reason="needs gymnax")
    from jaxsched.adapters.gymnax_env import GymnaxEnv

    ours = GymnaxEnv(dataclasses.replace(env, final=False))
    mask = lambda state: ours.action_mask(state.env_state.env_state)
    wrapped = purerl.LogWrapper(purerl.FlattenObservationWrapper(purerl.StickyActionWrapper(ours, 0.1)))
    assert ours.observation_space(None).shape == ours.reset(jax.random.key(0))[0].shape

    def step(carry, key):
        seen, state = carry
        seen, state, reward, terminated, _, info = wrapped.step(key, state, jnp.argmax(mask(state)))
        return (seen, state), (seen, reward, terminated, info)

    keys = jax.random.split(jax.random.key(1), STEPS)
    _, (seen, reward, ended, info) = jax.jit(lambda: jax.lax.scan(step, wrapped.reset(keys[0]), keys))()
    ends = np.flatnonzero(ended)
    obs, state = ours.reset_env(keys[0], ours.default_params)
    one, *_, told = ours.step_env(keys[0], state, jnp.int32(0), None)
    assert one.shape == obs.shape and not told["truncated"]
    assert len(ends) and seen.shape == info["final_observation"].shape == (STEPS, *ours.observation_space(None).shape)
    first = ends[0]
    assert float(info["returned_episode_returns"][first]) == pytest.approx(float(reward[: first + 1].sum()), rel=1e-5)
    assert int(info["returned_episode_lengths"][first]) == first + 1
