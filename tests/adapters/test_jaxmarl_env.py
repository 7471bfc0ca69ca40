"""The environment under JaxMARL's own wrapper, as its learners roll it out."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched

pytest.importorskip("jaxmarl", reason="needs the extra marl")


@pytest.mark.long
def test_it_plays_under_the_wrapper_that_learners_use():
    from jaxmarl.wrappers.baselines import LogWrapper

    from jaxsched.adapters.jaxmarl_env import JaxMarlEnv

    inner = jaxsched.make("leaf-spine-2", schedulers=2, num_jobs=6, episodes=2, mean_duration_s=300.0)
    env = LogWrapper(JaxMarlEnv(inner))
    assert env.agents == ["agent_0", "agent_1"] and env.agent_classes == {"schedulers": env.agents}
    count, steps = 4, 300
    lines = env.action_space("agent_0").n
    seen, state = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), count))
    assert seen["agent_0"].shape == (count, *env.observation_space("agent_0").shape)

    def round_of(carry, key):
        logits, state = carry
        legal = jax.vmap(env.get_avail_actions)(state.env_state)
        drawn = {}
        for name in env.agents:
            key, draw = jax.random.split(key)
            drawn[name] = jax.random.categorical(draw, jnp.where(legal[name], logits, -jnp.inf))
        _, state, reward, done, info = jax.vmap(env.step)(jax.random.split(key, count), state, drawn)
        kept = {name: legal[name][jnp.arange(count), drawn[name]] for name in env.agents}
        return (logits, state), (reward, done["__all__"], info, kept)

    @jax.jit
    def roll(logits, state, key):
        return jax.lax.scan(round_of, (logits, state), jax.random.split(key, steps))

    _, (reward, done, info, kept) = roll(jnp.zeros(lines).at[-1].set(-5.0), state, jax.random.key(1))
    assert all(value.all() for value in kept.values())
    assert info["returned_episode_returns"].shape == info["finished"].shape == (steps, count, 2)
    ended = np.asarray(done)
    assert ended.any() and (np.asarray(info["finished"])[ended] == 6).all()
    assert (np.asarray(info["returned_episode_returns"])[ended] < 0).all()
    assert (np.asarray(reward["agent_0"]) <= 0).all()

    start = jax.tree.map(lambda leaf: leaf[0], state.env_state)
    actions = dict.fromkeys(env.agents, jnp.int32(lines - 1))
    _, turn, _, done, _ = env._env.step(jax.random.key(2), start, actions, start)
    assert not done["__all__"] and int(turn.state.clock) >= 0
    np.testing.assert_array_equal(env._env.get_obs(start)["agent_1"], inner.seen(start)["features"][1])


@pytest.mark.long
@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "jaxsched"])
def test_one_learner_trains_on_their_environments_and_on_ours(name):
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/jaxmarl_ippo.py"))
    first, key = example["environment"](name), jax.random.key(0)
    (begun, _), (trained, returns) = (example["train"](first, key, updates) for updates in (1, 12))
    leaves = jax.tree.leaves(trained)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert any((leaf != other).any() for leaf, other in zip(leaves, jax.tree.leaves(begun)))
    assert returns.shape == (12,) and np.isfinite(returns[-1])
    if name != "jaxsched":  # where random actions are far from good
        assert returns[-1] > returns[0] + 2.0
