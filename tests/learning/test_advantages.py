"""What a decision was worth: rewards with their shaping, and advantages over them, against slow references."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import observe
from jaxsched.learning import rollout
from jaxsched.learning.draws import params_axes, params_of_all
from jaxsched.learning.rollout import Experience

# ----------------------------------------------------------------------------------------------------------- advantages


def experience_of(reward, value, discount, decides=True) -> Experience:
    """Experience with nothing but numbers: `reward, value: [T, E, P]`, `discount, decides: [T, E]`."""
    return Experience(
        obs=None, menu=None, choice=None, log_prob=None, real=None,
        reward=jnp.asarray(reward, jnp.float32), value=jnp.asarray(value, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32), decides=jnp.broadcast_to(decides, np.shape(discount)),
    )  # fmt: skip


def mixture_of_returns(reward, value, discount, bootstrap, decay: float) -> np.ndarray:
    """Advantages float64[T, E, P] by their definition, going forward.

    The n-th return sums rewards up to the n-th advance of the clock and ends with the value there; the returns are
    mixed with weights (1 - decay) decay^(n-1), the last one, which ends with the rollout, takes what is left.
    """
    steps, environments, schedulers = reward.shape
    following = np.concatenate([value[1:], bootstrap[None]])
    gae = np.zeros(reward.shape)
    for e in range(environments):
        for p in range(schedulers):
            for t in range(steps):
                total, factor, weight, mixed = 0.0, 1.0, 1.0, 0.0
                for s in range(t, steps):
                    total += factor * reward[s, e, p]
                    factor *= discount[s, e]
                    if s == steps - 1:
                        mixed += weight * (total + factor * following[s, e, p])
                    elif discount[s, e] < 1.0:
                        mixed += (1 - decay) * weight * (total + factor * following[s, e, p])
                        weight *= decay
                gae[t, e, p] = mixed - value[t, e, p]
    return gae


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_advantages_are_a_mixture_of_returns_over_boundaries(decay, scale):
    rng = np.random.default_rng(int(10 * decay))
    shape = (17, 3, 2)
    reward, value, bootstrap = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[1:])
    discount = np.where(rng.random(shape[:2]) < 0.4, 0.9, 1.0)
    experience = experience_of(reward, value, discount)
    gae, returns = rollout.advantages(experience, jnp.asarray(bootstrap, jnp.float32), jnp.float32(scale), decay)
    expected = mixture_of_returns(reward, scale * value, discount, scale * bootstrap, decay)
    np.testing.assert_allclose(gae, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns, expected + scale * value, rtol=1e-4, atol=1e-5)


def test_rounds_of_one_boundary_are_one_moment():
    """Splitting a round into several, of which only the last has the reward, changes no advantage of the others."""
    rng = np.random.default_rng(5)
    reward, value, bootstrap = rng.normal(size=(6, 1, 1)), rng.normal(size=(6, 1, 1)), rng.normal(size=(1, 1))
    coarse = experience_of(reward, value, np.full((6, 1), 0.9))
    start = np.arange(0, 18, 3)
    fine_reward, fine_value, fine_discount = np.zeros((18, 1, 1)), rng.normal(size=(18, 1, 1)), np.ones((18, 1))
    fine_reward[start + 2], fine_value[start], fine_discount[start + 2] = reward, value, 0.9
    fine = experience_of(fine_reward, fine_value, fine_discount)
    last = jnp.asarray(bootstrap, jnp.float32)
    expected, _ = rollout.advantages(coarse, last, jnp.float32(1.0), 0.8)
    seen, _ = rollout.advantages(fine, last, jnp.float32(1.0), 0.8)
    np.testing.assert_allclose(seen[start], expected, rtol=1e-5, atol=1e-6)


def test_steps_without_a_decision_belong_to_the_one_before():
    """A round's reward may come in parts, and its discount later, in steps in which nobody decides."""
    rng = np.random.default_rng(6)
    reward, value, bootstrap = rng.normal(size=(6, 2, 3)), rng.normal(size=(6, 2, 3)), rng.normal(size=(2, 3))
    discount = np.where(rng.random((6, 2)) < 0.5, 0.9, 1.0)
    last = jnp.asarray(bootstrap, jnp.float32)
    expected = rollout.advantages(experience_of(reward, value, discount), last, jnp.float32(1.5), 0.8)
    start, share = np.arange(0, 18, 3), rng.random(reward.shape)
    parts, values = rng.normal(size=(2, 18, 2, 3))
    factors, decides = np.ones((18, 2)), np.zeros((18, 2), bool)
    parts[start], parts[start + 1], parts[start + 2] = share * reward, (1 - share) * reward, 0.0
    values[start], factors[start + 1], decides[start] = value, discount, True
    seen = rollout.advantages(experience_of(parts, values, factors, decides), last, jnp.float32(1.5), 0.8)
    for one, other in zip(seen, expected, strict=True):
        np.testing.assert_allclose(one[start], other, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- rewards and their shaping


def potential_of(config, interval_s: float, world) -> np.ndarray:
    """Phi, float64[P], of one environment's state, as its docstring says it."""
    rule, running = config.reward, world.running
    jobs = np.asarray(world.jobs.duration_s, np.float64)
    phi = np.zeros(world.queue.shape[0])
    for p in range(len(phi)):
        for slot, row in enumerate(np.asarray(running.job[p])):
            if row >= 0:
                phi[p] += float(running.remaining_s[p, slot]) * (float(running.slowdown[p, slot]) - 1.0)
        phi[p] += rule.potential_waiting * sum(jobs[row] for row in np.asarray(world.queue[p]) if row >= 0)
    return -rule.potential * phi / (interval_s * rule.scale)


@pytest.fixture(scope="module")
def history(config, state, played, replay):
    """Every environment's states [T + 1][E], rewards of the environment alone [T, E, P], from the recorded choices."""
    _, experience, _, _ = played
    worlds, gains = state.worlds, []
    states = [jax.device_get(worlds)]
    recorded = experience.obs, experience.menu, experience.choice
    for t in range(config.ppo.steps):
        obs, menu, choice = jax.tree.map(lambda leaf, t=t: leaf[t], recorded)
        worlds, gain = replay(state.draws, worlds, obs, menu, choice)
        states.append(jax.device_get(worlds))
        gains.append(np.asarray(gain))
    environments = range(config.ppo.num_envs)
    return [[jax.tree.map(lambda leaf, i=e: leaf[i], many) for e in environments] for many in states], np.stack(gains)


@pytest.fixture(scope="module")
def intervals_s(setting, state) -> list[float]:
    """The interval of every environment."""
    draws = state.draws
    intervals = (float(setting.worlds.params.interval_s) * np.asarray(draws.pace * draws.interval_factor)).tolist()
    assert len(set(intervals)) == len(intervals)
    return intervals


def newcomers(before, after) -> list[set[int]]:
    """Rows that came into each scheduler's queue from outside."""
    known = {int(row) for row in np.ravel(before.queue)}
    return [{int(row) for row in queue} - known - {-1} for queue in np.asarray(after.queue)]


def arrivals_potential(config, interval_s, before, after) -> np.ndarray:
    """The part of Phi, float64[P], of the jobs that arrived between two states."""
    rule, jobs = config.reward, np.asarray(after.jobs.duration_s, np.float64)
    waiting = [sum(jobs[row] for row in rows) for rows in newcomers(before, after)]
    return -rule.potential * rule.potential_waiting * np.array(waiting) / (interval_s * rule.scale)


@pytest.mark.slower
def test_the_history_is_worth_looking_at(config, history, played):
    """Jobs arrive, run and slow each other down, the clock advances, and several rounds share a boundary."""
    states, _ = history
    _, experience, _, counts = played
    ends = states[-1]
    assert int(counts.placements) > 20 and int(counts.intervals) > 8
    assert (np.asarray(experience.discount) == 1.0).sum() > 8
    assert sum(int(world.next_job) for world in ends) - sum(int(world.next_job) for world in states[0]) > 10
    assert any((np.asarray(world.running.slowdown) > 1.05).any() for many in states for world in many)


@pytest.mark.slower
def test_every_reward_is_gain_plus_change_of_potential_shared(config, intervals_s, history, played, state):
    states, gains = history
    _, experience, _, _ = played
    rule = config.reward
    for t, (now, then) in enumerate(itertools.pairwise(states)):
        for e, (before, after) in enumerate(zip(now, then, strict=True)):
            interval_s = intervals_s[e]
            advanced = int(after.clock) != int(before.clock)
            factor = float(state.draws.interval_factor[e])
            discount = config.ppo.gamma**factor if advanced else 1.0
            np.testing.assert_allclose(experience.discount[t, e], discount, rtol=1e-6)
            phi = potential_of(config, interval_s, after) - arrivals_potential(config, interval_s, before, after)
            own = factor * (gains[t, e] + discount * phi - potential_of(config, interval_s, before))
            shared = (1 - rule.team_share) * own + rule.team_share * own.mean()
            np.testing.assert_allclose(experience.reward[t, e], shared, rtol=1e-4, atol=1e-5)


@pytest.mark.slower
def test_rewards_count_by_what_their_world_is_worth(setting, state):
    worth = np.array([1.0, 0.25, 3.0], np.float32)[: len(setting.worlds.gpus)]

    @jax.jit
    def rewards(worth):
        few = setting.rollout._replace(steps=12, worlds=setting.worlds._replace(worth=worth))
        return rollout.collect(jax.random.key(7), few, state.weights, state.draws, state.worlds)[1].reward

    plain, weighed = rewards(np.ones_like(worth)), rewards(worth)
    np.testing.assert_allclose(weighed, plain * worth[state.draws.cluster][:, None], rtol=1e-6)
    assert (np.asarray(plain) != 0).any((0, 2)).all() and len({*np.asarray(state.draws.cluster).tolist()}) > 1


@pytest.mark.slower
def test_shaping_telescopes_apart_from_arrivals(config, intervals_s, history, played, state):
    """What shaping adds up to does not depend on what was decided, but for the state at the end."""
    states, gains = history
    _, experience, _, _ = played
    for e, interval_s in enumerate(intervals_s):
        # sharing between schedulers keeps their sum
        rewards = np.asarray(experience.reward, np.float64)[:, e].sum(-1) / float(state.draws.interval_factor[e])
        shaping = rewards - gains[:, e].astype(np.float64).sum(-1)
        added, factor, expected = 0.0, 1.0, -potential_of(config, interval_s, states[0][e]).sum()
        for t in range(config.ppo.steps):
            added += factor * shaping[t]
            factor *= float(experience.discount[t, e])
            expected -= factor * arrivals_potential(config, interval_s, states[t][e], states[t + 1][e]).sum()
        expected += factor * potential_of(config, interval_s, states[-1][e]).sum()
        np.testing.assert_allclose(added, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slower
def test_the_counts_counts_what_happened(config, history, played):
    states, _ = history
    _, experience, _, counts = played
    first, last = states[0], states[-1]
    placed = sum(int((np.asarray(world.records.start) >= 0).sum()) for world in last)
    assert int(counts.placements) == placed
    assert int(counts.intervals) == sum(int(b.clock) - int(a.clock) for a, b in zip(first, last, strict=True))
    assert int(counts.forwards) == sum(int(np.asarray(world.records.forwards).sum()) for world in last)
    assert int(counts.decisions) == int(np.asarray(experience.real).sum())
    assert int(counts.illegal) == 0 and all(int(world.illegal) == 0 for world in last)
    assert int(counts.rounds) == config.ppo.steps * config.ppo.num_envs


@pytest.mark.slower
def test_what_is_seen_in_a_round_is_the_state_after_the_choices_before_it(setting, state, history, played):
    states, _ = history
    _, experience, _, _ = played
    params, axes = params_of_all(setting.worlds, state.draws), params_axes(setting.worlds)
    look = jax.jit(jax.vmap(lambda params, world: observe(setting.queue, params, world), in_axes=(axes, 0)))
    for t, worlds in enumerate(states[:-1]):
        seen = look(params, jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds))
        recorded = jax.tree.map(lambda leaf, t=t: leaf[t], experience.obs)
        for name in ("group", "server", "rack", "scheduler", "job"):
            np.testing.assert_allclose(getattr(recorded, name), getattr(seen, name), rtol=1e-4, atol=1e-5, err_msg=name)
        for name in ("job_slot", "job_mask", "forward_mask"):
            np.testing.assert_array_equal(getattr(recorded, name), getattr(seen, name), err_msg=name)
