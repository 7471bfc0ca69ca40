"""The environment that `make` gives: spaces, whole episodes, and the next one by itself."""

import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.adapters.features import show_menu
from jaxsched.adapters.menu_env import MenuEnv, Turn, _choice
from jaxsched.env.environment import initial_state
from jaxsched.env.spaces import Box, Discrete
from jaxsched.errors import UserError
from jaxsched.workload.jobs import make_job_list, pad_table, to_table
from jaxsched.worlds.families import Choice
from jaxsched.worlds.world import draw_world


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


@pytest.mark.slower
def test_no_library_of_networks_is_imported():
    code = """
import sys, jax, jaxsched
env = jaxsched.make("leaf-spine-1", num_jobs=2, episodes=1)
seen, turn = env.reset(jax.random.key(0))
env.step(jax.random.key(1), turn, env.action_space().sample(jax.random.key(2), seen["mask"]))
print(sorted({"jraph", "flax", "optax", "orbax"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_mistake_is_told():
    with pytest.raises(UserError, match="episodes: 0"):
        jaxsched.make(episodes=0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"episodes": 2.5}, "episodes is 2.5"),
        ({"num_jobs": 2.5}, "num_jobs is 2.5"),
        ({"knows": "nothing"}, "make: unknown option 'knows'"),
        ({"seeds": 3}, "make: unknown option 'seeds'"),
        ({"may_wiat": False}, "unknown option 'may_wiat'; perhaps you meant 'may_wait'; known ones: .*may_wait"),
        ({"reward": {"jct": 1.0}}, "reward: {'jct': 1.0} should give numbers to some of jobs"),
        ({"reward": {"interference": True}}, "should give numbers to some of jobs, lost, progress, such as"),
        ({"reward": {"lost": 1.0, "interference": 5}}, "reward: interference: 5 should be True or False"),
        ({"reward": {}}, "reward: {}"),
        (
            {"reward": lambda before: before},
            r"reward <lambda> fails when called \(line \d+\): TypeError: .* takes 1 .* but 3",
        ),
        ({"reward": lambda before, after, params: jnp.zeros(5)}, r"returned an array of shape \(5,\), should"),
        ({"reward": {"jobs": float("nan")}}, "reward: {'jobs': nan}"),
        ({"max_forwards": -1}, "max_forwards: -1"),
    ],
)
def test_mistakes_in_options_are_told(wrong, said):
    with pytest.raises(UserError, match=said):
        jaxsched.make("leaf-spine-1", **({"num_jobs": 2} | wrong))


def test_a_task_is_a_name_and_says_all_but_the_seed():
    env = jaxsched.make("task-tiny", episodes=3, seed=2)
    worlds = [draw_world(Choice("task-tiny", training=True), number) for number in (2, 3, 4)]
    assert env.params.env.cluster.shape == worlds[0].build().shape
    jobs = [np.asarray(env.params.starts.jobs.model[i]) for i in range(3)]
    for own, world in zip(jobs, worlds, strict=True):
        np.testing.assert_array_equal(own, world.jobs.model)
    with pytest.raises(UserError, match="make: load: task-tiny has hardware and jobs of its own"):
        jaxsched.make("task-tiny", load=0.5)
    with pytest.raises(UserError, match="make: workload: task-tiny"):
        jaxsched.make("task-tiny", "distributed")


def test_models_of_ones_own_are_those_that_are_played(tmp_path):
    (tmp_path / "models.yaml").write_text("models: [{name: hog, compute_s: 0.05, gradient_bytes: 4.0e+9}]\n")
    (tmp_path / "jobs.csv").write_text("job_id,submit_time_s,num_gpus,duration_s,model\na,0,1,600,hog\n")
    env = jaxsched.make("leaf-spine-1", str(tmp_path / "jobs.csv"), episodes=1, models=str(tmp_path / "models.yaml"))
    assert float(env.params.env.profiles.gradient_bytes[int(env.params.starts.jobs.model[0, 0])]) == np.float32(4e9)


def test_options_are_what_they_stand_for():
    """Of two schedulers with three placements each, numbers that were never computed."""
    obs, menu = _made_up(jaxsched.make("leaf-spine-2", schedulers=2, num_jobs=6, episodes=1))
    menu = jax.tree.map(lambda leaf: leaf[:, :3], menu)
    menu = menu.replace(rank=jnp.array([[0, 1, 1], [0, 0, 2]]), order=jnp.array([[0, 0, 8], [0, 4, 0]]))
    menu = menu.replace(mask=jnp.array([[True, True, True], [True, True, False]]), brief=menu.mask == 1)
    obs = obs.replace(forward_mask=jnp.array([[False, True], [False, False]]))
    seen = show_menu(obs, menu)
    assert seen["mask"].tolist() == [[1, 1, 1, 0, 1, 1], [1, 1, 0, 0, 0, 1]]
    kinds, features, numbers, job, scheduler = _parts(seen["options"], 3, menu.features.shape[-1], 3, obs.job.shape[-1])
    assert kinds[0].argmax(-1).tolist() == [0, 0, 0, 0, 1, 2]
    np.testing.assert_array_equal(kinds.sum(-1), seen["mask"], "nothing is said of what is not legal")
    np.testing.assert_array_equal(features[0, :3], menu.features[0])
    np.testing.assert_array_equal(numbers[0, 2], [0.25, 1.0, float(menu.brief[0, 2])])
    np.testing.assert_array_equal(job[0, :3], obs.job[0, jnp.array([0, 1, 1])])
    np.testing.assert_array_equal(job[0, 4], obs.job[0, -1], "the blocked one")
    np.testing.assert_array_equal(scheduler[0, 4], obs.scheduler[1], "who would get it")
    for option in (0, 2, 5):
        np.testing.assert_array_equal(scheduler[0, option], obs.scheduler[0])
    assert not features[:, 3:].any() and not job[:, 5].any() and not seen["options"][1, 2:5].any()


def test_who_may_not_wait_waits_where_nothing_else_is_legal():
    obs, menu = _made_up(jaxsched.make("leaf-spine-2", schedulers=2, num_jobs=6, episodes=1))
    menu = menu.replace(mask=jnp.zeros_like(menu.mask))
    obs = obs.replace(forward_mask=jnp.array([[False, True], [False, False]]))
    assert show_menu(obs, menu)["mask"][:, -1].tolist() == [True, True]
    assert show_menu(obs, menu, may_wait=False)["mask"][:, -1].tolist() == [False, True]


@pytest.mark.parametrize("action", [[0, 0], [0, 0, 0]])
def test_an_option_for_each_scheduler_or_none(env, action):
    """Before: one option went for all."""
    _, turn = jax.eval_shape(env.reset, jax.random.key(0))
    with pytest.raises(UserError, match=r"action: has shape .*, should be \(1,\): an option of each scheduler"):
        jax.eval_shape(env.step, jax.random.key(0), turn, jnp.array(action))


def test_what_is_not_legal_is_to_wait():
    obs, menu = _made_up(jaxsched.make("leaf-spine-2", schedulers=2, num_jobs=6, episodes=1))
    menu = jax.tree.map(lambda leaf: leaf[:, :3], menu).replace(mask=jnp.array([[True, False, True], [False] * 3]))
    obs = obs.replace(forward_mask=jnp.array([[False, True], [False, False]]))
    acts = [_choice(obs, menu, jnp.array([option] * 2)).act.tolist() for option in range(-1, 8)]
    assert [first for first, _ in acts] == [False, True, False, True, False, True, False, False, False]
    assert not any(second for _, second in acts)
    for may_wait in (True, False):
        env = jaxsched.make("leaf-spine-2", schedulers=2, num_jobs=6, episodes=1, may_wait=may_wait)
        waits = env._waits(Turn(played=None, observation=obs, menu=menu), jnp.array([5, 5]))
        assert waits.tolist() == [may_wait, True]


@pytest.mark.parametrize(("world", "seen"), [(0, 0), (1, 1), (5, 2)])
def test_as_a_policy_it_forwards_no_more_often_than_it_did(monkeypatch, world, seen):
    class Observed(Exception):
        pass

    def observed(queue, params, state, weighs):
        raise Observed(int(params.max_forwards))

    env = jaxsched.make("leaf-spine-1", schedulers=1, num_jobs=2, episodes=1, max_forwards=2)
    monkeypatch.setattr("jaxsched.policies.menu.observe", observed)
    there = env.params.env.replace(max_forwards=jnp.int32(world))
    with pytest.raises(Observed, match=str(seen)):
        env.policy("mine", lambda key, seen, weights: None)(jax.random.key(0), env.params.starts, there)


def test_a_policy_that_says_no_whole_number_is_told_so():
    env = jaxsched.make("leaf-spine-1", schedulers=1, num_jobs=2, episodes=1)
    start = jax.tree.map(lambda leaf: leaf[0], env.params.starts)
    mine = env.policy("mine", lambda key, seen, weights: jnp.zeros(seen["mask"].shape[0]))
    with pytest.raises(UserError, match="'mine': returned numbers of type float32, should be an option for each"):
        mine(jax.random.key(0), start, env.params.env)


@pytest.mark.slower
def test_as_a_policy_it_does_what_it_did_in_the_environment(env):
    """Where it learned, and beside other policies on the same jobs."""
    weights = jax.random.normal(jax.random.key(4), env.observation_space()["options"].shape[-1:])

    def act(key, seen, weights):
        return jnp.argmax(jnp.where(seen["mask"], seen["options"] @ weights, -jnp.inf), -1)

    env = dataclasses.replace(env, may_wait=False)

    def episode(start):
        params = env.params.replace(starts=jax.tree.map(lambda leaf: leaf[None], start))

        def round_of(carry, key):
            seen, turn = carry
            seen, turn, _, terminated, _, info = env.step(key, turn, act(key, seen, weights), params)
            return (seen, turn), (terminated, info)

        _, (terminated, info) = jax.lax.scan(round_of, env.reset(jax.random.key(0), params), _keys(200))
        return terminated.any(), info["jct_mean_s"][jnp.argmax(terminated)]

    ended, jct_s = jax.jit(jax.vmap(episode))(env.params.starts)
    assert ended.all()
    mine = env.policy("mine", act, weights)
    options = {"schedulers": 1, "num_jobs": 6, "mean_duration_s": 300.0}
    rows = jaxsched.compare("leaf-spine-1", "philly-like", ["pack", mine], seeds=2, **options).rows
    assert not rows[1].baseline and rows[1].name == "mine"
    assert rows[1].figures.jct_mean_s == pytest.approx(float(jct_s.mean()), rel=1e-5)


@pytest.mark.slower
def test_where_an_episode_ends_and_what_its_rewards_sum_to():
    """Two jobs on an empty cluster are waited for to their end, and not to the horizon; so is one that fits nowhere."""
    made = {"schedulers": 1, "interference": "none", "reward": {"jobs": 1.0, "lost": 1.0}}
    env = jaxsched.make("leaf-spine-1", num_jobs=3, episodes=1, **made, horizon_s=600_000.0)
    step = jax.jit(env.step)

    def played(*jobs):
        table = pad_table(to_table(make_job_list(*zip(*jobs)), 60.0), 3)
        starts = jax.tree.map(lambda leaf: leaf[None], initial_state(env.config, env.params.env, table))
        params = env.params.replace(starts=starts)
        (seen, turn), rewards, boundaries, terminated = env.reset(jax.random.key(0), params), 0.0, [], False
        while not terminated:
            assert len(boundaries) < 40
            action = jnp.argmax(seen["mask"], -1)
            seen, turn, reward, terminated, truncated, info = step(jax.random.key(0), turn, action, params)
            rewards += float(reward[0])
            boundaries.append(int(info["boundary"]))
            assert not truncated
        assert int(info["finished"]) == 2
        return rewards, boundaries

    rewards, boundaries = played((0.0, 590.0, 1), (0.0, 300.0, 1))
    assert rewards == pytest.approx(-890 / 60, rel=1e-5), "nothing was lost"
    assert boundaries[-1] == 10
    _, boundaries = played((0.0, 590.0, 1), (0.0, 300.0, 1), (180_000.0, 100.0, 64))
    assert boundaries == sorted(boundaries) and boundaries[-1] >= 2000, "the last one is rejected when it comes"


@pytest.mark.long
def test_the_example_learns_something_and_is_judged_like_a_rule(env, monkeypatch):
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/ppo.py"))
    for name, value in {"ENVS": 4, "STEPS": 64, "MINIBATCHES": 4}.items():
        monkeypatch.setitem(example["train"].__globals__, name, value)
    env = dataclasses.replace(env, may_wait=False)
    weights = [example["train"](env, updates, jax.random.key(0))[1] for updates in (0, 3)]
    before, after = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]) for one in weights)
    assert np.isfinite(after).all() and np.abs(after - before).max() > 1e-3
    mine = example["policy"](env, example["Network"](), weights[1])
    row = jaxsched.compare("leaf-spine-2", "philly-like", [mine], num_jobs=20, seeds=1).rows[0]
    assert row.name == "ppo" and row.jobs.finished == 20, "on a cluster of another size, too"


@pytest.mark.slower
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


@pytest.mark.slower
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


def _made_up(env):
    """An observation and a menu of its shapes, full of numbers."""
    turn = jax.eval_shape(lambda: env.reset(jax.random.key(0))[1])
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(1, 9, leaf.shape).astype(leaf.dtype)), (turn.observation, turn.menu)
    )


def _parts(options, *sizes):
    return np.split(np.asarray(options), np.cumsum(sizes), -1)


def _keys(count):
    return jax.random.split(jax.random.key(0), count)
