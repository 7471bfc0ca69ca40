"""The update: which rounds it learns from, what its gradient is, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import Choice
from jaxsched.env.state import reward_weights
from jaxsched.learning.options import PPOConfig
from jaxsched.learning.ppo import Batch, optimizer, select
from jaxsched.learning.rollout import Experience
from jaxsched.networks.hierarchy import BELIEF
from jaxsched.policies.learned import log_prob_and_entropy

# ------------------------------------------------------------------------------------------------------------ selection


def numbered(real: np.ndarray) -> tuple[Experience, jnp.ndarray, jnp.ndarray]:
    """Rounds `[T, E, P]` that carry their own number, with advantages and returns."""
    rng = np.random.default_rng(0)
    number = np.arange(real[..., 0].size, dtype=np.float32).reshape(*real.shape[:2], 1) * np.ones(real.shape[-1])
    rounds = Experience(
        obs=None, menu=None, choice=None, value=None, reward=None, discount=None,
        log_prob=jnp.asarray(number), real=jnp.asarray(real), decides=jnp.ones(real.shape[:2], bool),
    )  # fmt: skip
    advantage = rng.normal(3.0, 2.0, real.shape).astype(np.float32)
    return rounds, jnp.asarray(advantage), jnp.asarray(2.0 * advantage)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("keep", [0.3, 0.7, 1.0])
def test_rounds_with_a_choice_come_first(share, keep):
    rule = PPOConfig(keep=keep, minibatches=4)
    real = np.random.default_rng(int(10 * share)).random((10, 6, 2)) < share
    batch = select(jax.random.key(0), rule, *numbered(real), jnp.float32(4.0))
    size = int(60 * keep) // 4 * 4
    chosen = np.asarray(batch.experience.log_prob)[:, 0].astype(int)
    assert chosen.shape == (size,) and len(set(chosen)) == size
    real_rounds = set(np.flatnonzero(real.any(-1).reshape(-1)))
    taken = set(chosen) & real_rounds
    assert len(taken) == min(size, len(real_rounds))
    # every row is whole: advantage and target are those of the round
    _, advantage, returns = numbered(real)
    np.testing.assert_allclose(batch.target, np.asarray(returns).reshape(60, 2)[chosen] / 4.0, rtol=1e-6)
    np.testing.assert_array_equal(batch.experience.real, real.reshape(60, 2)[chosen])
    order = np.argsort(np.asarray(advantage).reshape(60, 2)[chosen].reshape(-1))
    assert (np.diff(np.asarray(batch.advantage).reshape(-1)[order]) >= 0).all()


def test_advantages_are_normalised_over_the_real_decisions():
    real = np.random.default_rng(1).random((10, 6, 2)) < 0.5
    batch = select(jax.random.key(0), PPOConfig(keep=1.0, minibatches=4), *numbered(real), jnp.float32(1.0))
    counted = np.asarray(batch.advantage)[np.asarray(batch.experience.real)]
    assert abs(counted.mean()) < 1e-5 and abs(counted.std() - 1.0) < 1e-4


def test_selection_is_random_and_repeatable():
    real = np.random.default_rng(2).random((10, 6, 2)) < 0.8
    rule = PPOConfig(keep=0.3, minibatches=2)
    draw = [
        np.asarray(select(jax.random.key(k), rule, *numbered(real), jnp.float32(1.0)).experience.log_prob)
        for k in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert (draw[0] != draw[2]).any()


def test_without_any_choice_nothing_becomes_nan():
    real = np.zeros((4, 4, 2), bool)
    batch = select(jax.random.key(0), PPOConfig(keep=1.0, minibatches=2), *numbered(real), jnp.float32(1.0))
    assert bool(jnp.isfinite(batch.advantage).all())


# ------------------------------------------------------------------------------------------------------------- gradient


def norm(tree) -> float:
    return float(np.sqrt(sum(float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(tree))))


def test_a_batch_has_the_shapes_of_its_config(config, batch):
    size = (
        int(config.ppo.num_envs * config.ppo.steps * config.ppo.keep) // config.ppo.minibatches * config.ppo.minibatches
    )
    assert batch.advantage.shape == batch.target.shape == (size, config.env.schedulers)
    assert all(leaf.shape[0] == size for leaf in jax.tree.leaves(batch))
    assert int(batch.experience.real.sum()) > 20


def test_at_the_weights_of_the_rollout_every_ratio_is_one(state, learner, batch):
    _, losses = learner.gradient(state.weights, batch, 1.0, 0.0, 0.0)
    real = np.asarray(batch.experience.real)
    assert abs(float(losses.kl)) < 1e-5 and float(losses.clipped) == 0.0
    np.testing.assert_allclose(losses.policy, -np.asarray(batch.advantage)[real].mean(), atol=1e-5)


def test_without_advantage_and_entropy_the_policy_is_left_alone(state, learner, batch, parts):
    still = batch.replace(advantage=jnp.zeros_like(batch.advantage))
    gradient, _ = learner.gradient(state.weights, still, 1.0, 0.0, 0.0)
    assert norm(gradient) == 0.0
    gradient, _ = learner.gradient(state.weights, still, 1.0, 0.0, 0.5)
    heads, critic, shared = parts(gradient)
    assert norm(heads) == 0.0 and norm(critic) > 0 and norm(shared) > 0


@pytest.mark.slower
def test_the_critic_alone_leaves_the_policy_heads_but_not_the_shared_layers(state, learner, batch, parts):
    alone, _ = learner.gradient(state.weights, batch, 0.0, 0.01, 0.5)
    still = batch.replace(advantage=jnp.zeros_like(batch.advantage))
    of_values, _ = learner.gradient(state.weights, still, 1.0, 0.0, 0.5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), alone, of_values)
    weights, _, _ = learner.update(jax.random.key(0), state.weights, learner.init(state.weights), batch, 0.0)
    before, after = parts(state.weights), parts(weights)
    jax.tree.map(np.testing.assert_array_equal, before[0], after[0])
    change = [norm(jax.tree.map(lambda a, b: a - b, *pair)) for pair in zip(before, after, strict=True)]
    assert change[1] > 1e-3 and change[2] > 1e-3


def test_policy_and_value_gradients_do_not_mix(state, learner, batch, parts):
    gradient, _ = learner.gradient(state.weights, batch, 1.0, 0.01, 0.0)
    heads, critic, shared = parts(gradient)
    assert norm(heads) > 0 and norm(shared) > 0 and norm(critic) == 0.0


def test_entropy_bonus_points_to_more_entropy(state, learner, batch):
    still = batch.replace(advantage=jnp.zeros_like(batch.advantage))
    gradient, before = learner.gradient(state.weights, still, 1.0, 1.0, 0.0)
    stepped = jax.tree.map(lambda w, g: w - 0.01 * g / norm(gradient), state.weights, gradient)
    _, after = learner.gradient(stepped, still, 1.0, 1.0, 0.0)
    assert float(after.entropy) > float(before.entropy) + 1e-4


def test_what_was_no_decision_teaches_the_policy_nothing(state, learner, batch):
    real = batch.experience.real
    other = batch.replace(
        advantage=jnp.where(real, batch.advantage, 100.0),
        experience=batch.experience.replace(log_prob=jnp.where(real, batch.experience.log_prob, -50.0)),
    )
    expected, losses = learner.gradient(state.weights, batch, 1.0, 0.01, 0.0)
    seen, same = learner.gradient(state.weights, other, 1.0, 0.01, 0.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), losses, same)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), expected, seen)


@pytest.mark.parametrize(
    ("shift", "sign", "learns"), [(-1.0, 1, False), (-1.0, -1, True), (1.0, -1, False), (1.0, 1, True)]
)
def test_the_ratio_is_clipped_on_the_side_of_the_gain(state, learner, batch, shift, sign, learns):
    """`shift` moves the old log-probability: -1 makes every ratio e, 1 makes it 1/e."""
    old = batch.experience.replace(log_prob=batch.experience.log_prob + shift)
    moved = batch.replace(experience=old, advantage=jnp.full_like(batch.advantage, float(sign)))
    gradient, losses = learner.gradient(state.weights, moved, 1.0, 0.0, 0.0)
    assert float(losses.clipped) == pytest.approx(1.0)
    assert (norm(gradient) > 0) == learns
    bounded = {(-1.0, 1): 1.2, (1.0, -1): 0.8}.get((shift, sign), np.exp(-shift))
    np.testing.assert_allclose(losses.policy, -sign * bounded, rtol=1e-4)


def test_an_update_is_finite_and_repeatable(state, learner, batch):
    moments = learner.init(state.weights)
    one, other = (learner.update(jax.random.key(4), state.weights, moments, batch, 1.0) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(one))
    steps = learner.ppo.epochs * learner.ppo.minibatches
    counts = [int(leaf) for leaf in jax.tree.leaves(one[1]) if leaf.ndim == 0]
    assert counts and set(counts) == {steps}


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def log_probs(setting):
    """Compiled `(weights, rounds, choice) -> float32[B, P]`."""

    def one(weights, obs, menu, choice):
        return log_prob_and_entropy(setting.network.apply(weights, obs, menu), obs, menu, choice)[0]

    each = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
    return lambda weights, rounds, choice: each(weights, rounds.obs, rounds.menu, choice)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_updates_make_likelier_what_had_an_advantage(state, learner, batch, log_probs, sign):
    """Random advantages: a few passes must raise the probability of the good choices and lower that of the bad ones."""
    rounds = batch.experience
    draw = jax.random.rademacher(jax.random.key(11), batch.advantage.shape, jnp.float32)
    taught = Batch(experience=rounds, advantage=sign * draw, target=rounds.value)
    weights, moments = state.weights, learner.init(state.weights)
    for turn in range(10):
        weights, moments, _ = learner.update(jax.random.key(turn), weights, moments, taught, 1.0)
    change = log_probs(weights, rounds, rounds.choice) - log_probs(state.weights, rounds, rounds.choice)
    for wanted in (1.0, -1.0):
        among = np.asarray(rounds.real & (taught.advantage == wanted))
        assert wanted * np.asarray(change)[among].mean() > 0.03


@pytest.mark.slower
@pytest.mark.parametrize(("worth", "learned"), [(1.0, "act"), (-1.0, "wait")])
def test_it_learns_to_start_jobs_if_waiting_costs_and_to_wait_if_it_pays(
    setting, state, play, learner, easy_worlds, log_probs, worth, learned
):
    """One-GPU jobs on an empty cluster, from a policy that tosses a coin; a queued job costs `worth` per interval."""
    params = setting.worlds.params.replace(reward=reward_weights(lost=worth))
    zero = jnp.zeros_like(state.draws.strength)
    draws = state.draws.replace(strength=zero, pace=zero + 1.0, cluster=jnp.zeros_like(state.draws.cluster))
    weights = {"params": state.weights["params"] | {"belief": jnp.zeros(len(BELIEF))}}
    moments = learner.init(weights)

    def chance(weights) -> float:
        """Mean probability of acting where waiting is a choice, over a rollout."""
        _, experience, _, _ = play(jax.random.key(99), weights, easy_worlds, params, draws)
        rounds = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), experience)
        wait = Choice(act=jnp.zeros_like(rounds.choice.act), option=rounds.choice.option)
        waits = np.exp(np.asarray(log_probs(weights, rounds, wait)))[np.asarray(rounds.real)]
        waits = waits[waits > 0]  # where it must act, waiting has no probability at all
        assert len(waits) > 10
        return float(1 - waits.mean())

    assert 0.35 < chance(weights) < 0.65
    key = jax.random.key(5)
    for _ in range(25):
        key, roll, pick, learn = jax.random.split(key, 4)
        _, experience, bootstrap, _ = play(roll, weights, easy_worlds, params, draws)
        advantage, returns = learner.estimate(experience, bootstrap, jnp.float32(1.0))
        batch = learner.select(pick, experience, advantage, returns, jnp.float32(1.0))
        weights, moments, _ = learner.update(learn, weights, moments, batch, 1.0)
    after = chance(weights)
    assert (after > 0.9) if learned == "act" else (after < 0.1), after


def test_the_learning_rate_falls_to_a_twentieth(config):
    rule = dataclasses.replace(config.ppo, max_grad_norm=1e9)
    updates = rule.chunks * rule.epochs * rule.minibatches
    weights = jnp.ones(3)
    transform = optimizer(rule)
    moments, sizes = transform.init(weights), []
    for _ in range(updates + 1):
        change, moments = transform.update(jnp.ones(3), moments, weights)
        sizes.append(-float(jnp.asarray(change)[0]))
    np.testing.assert_allclose([sizes[0], sizes[-1]], [rule.learning_rate, rule.learning_rate / 20], rtol=1e-2)
    assert (np.diff(sizes) < 0).all()
