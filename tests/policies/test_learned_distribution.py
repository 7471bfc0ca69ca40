"""The learned policy's distribution against brute force."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import Choice, Menu, Observation
from jaxsched.networks.hierarchy import Heads
from jaxsched.policies.learned import log_prob_and_entropy, most_likely, option_logits, sample

P, K, W, NK = 4, 6, 2, 4
OPTIONS = K + P


def made_up(seed: int = 0, spread: float = 1.0) -> tuple[Heads, Observation, Menu]:
    """Random heads; scheduler 0 may do anything, 1 only place, 2 only forward, 3 nothing at all."""
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return jnp.asarray(spread * rng.normal(size=shape), jnp.float32)

    mask = rng.random((P, K)) < 0.7
    mask[0, 0] = mask[1, 4] = True
    mask[2:] = False
    forward_mask = ~np.eye(P, dtype=bool)
    forward_mask[1], forward_mask[2, 1], forward_mask[3] = False, False, False
    obs = Observation(
        group=None, group_mask=None, server=None, server_rack=None, rack=None, scheduler=None, job=None,
        job_slot=jnp.asarray(rng.permuted(np.tile(np.arange(W + 1), (P, 1)), axis=1), jnp.int32),
        job_mask=None, forward_mask=jnp.asarray(forward_mask),
    )  # fmt: skip
    menu = Menu(
        rank=jnp.asarray(np.tile(np.arange(K) * W // K, (P, 1)), jnp.int32),
        workers=jnp.asarray(rng.integers(0, 3, (P, K, NK)), jnp.int8),
        order=None, features=None, log_stake=None, brief=None, mask=jnp.asarray(mask),
    )  # fmt: skip
    return Heads(place=floats(P, K), forward=floats(P, P), act=floats(P), value=floats(P)), obs, menu


def legal_options(obs: Observation, menu: Menu) -> np.ndarray:
    return np.concatenate([menu.mask, obs.forward_mask], -1)


def brute_force(heads: Heads, obs: Observation, menu: Menu) -> np.ndarray:
    """Probabilities float64[P, 1 + OPTIONS]: of waiting, then of every option."""
    legal = legal_options(obs, menu)
    logits = np.concatenate([heads.place, heads.forward], -1).astype(np.float64)
    probabilities = np.zeros((P, 1 + OPTIONS))
    for p in range(P):
        acts = 1 / (1 + math.exp(-float(heads.act[p]))) if legal[p].any() else 0.0
        weights = [math.exp(x) if ok else 0.0 for x, ok in zip(logits[p], legal[p], strict=True)]
        probabilities[p, 0] = 1 - acts
        probabilities[p, 1:] = acts * np.array(weights) / max(sum(weights), 1e-300)
    return probabilities


def every_choice() -> list[Choice]:
    """Waiting (with whatever option), then acting with each."""
    wait = Choice(act=jnp.zeros(P, bool), option=jnp.full(P, 2, jnp.int32))
    return [wait] + [Choice(act=jnp.ones(P, bool), option=jnp.full(P, i, jnp.int32)) for i in range(OPTIONS)]


@pytest.mark.parametrize("seed", range(3))
def test_log_probabilities_are_those_of_brute_force_and_sum_to_one(seed):
    heads, obs, menu = made_up(seed, spread=2.0)
    log_probs = np.stack([log_prob_and_entropy(heads, obs, menu, choice)[0] for choice in every_choice()], -1)
    expected, some = brute_force(heads, obs, menu), legal_options(obs, menu).any(-1)
    np.testing.assert_allclose(np.exp(log_probs.astype(np.float64))[some].sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs)[some], expected[some], rtol=1e-4, atol=1e-7)
    assert (log_probs[~some] == 0).all() and np.isfinite(log_probs).all()


@pytest.mark.parametrize("seed", range(3))
def test_entropy_is_that_of_brute_force(seed):
    heads, obs, menu = made_up(seed, spread=2.0)
    _, entropy = log_prob_and_entropy(heads, obs, menu, every_choice()[0])
    probabilities = brute_force(heads, obs, menu)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    np.testing.assert_allclose(entropy, -(probabilities * logs).sum(-1), rtol=1e-4, atol=1e-5)
    assert float(entropy[3]) == 0.0


def test_sampling_follows_the_probabilities_and_never_takes_a_masked_option():
    heads, obs, menu = made_up(1)
    count = 20_000
    draw = jax.jit(jax.vmap(lambda key: sample(key, heads, obs, menu)))
    choice = draw(jax.random.split(jax.random.key(0), count))
    act, option = np.asarray(choice.act), np.asarray(choice.option)
    expected, legal = brute_force(heads, obs, menu), legal_options(obs, menu)
    for p in range(P):
        taken = option[act[:, p], p]
        assert legal[p][taken].all()
        seen = np.concatenate([[(~act[:, p]).mean()], np.bincount(taken, minlength=OPTIONS) / count])
        error = np.sqrt(expected[p] * (1 - expected[p]) / count)
        assert (np.abs(seen - expected[p]) <= 4.5 * error + 1e-9).all()
    assert not act[:, 3].any()


def test_log_probability_of_a_sample_has_the_entropy_as_its_mean():
    heads, obs, menu = made_up(2)
    keys = jax.random.split(jax.random.key(1), 20_000)
    log_prob, entropy = jax.vmap(lambda key: log_prob_and_entropy(heads, obs, menu, sample(key, heads, obs, menu)))(
        keys
    )
    np.testing.assert_allclose(-log_prob.mean(0), entropy[0], atol=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_most_likely_takes_the_mode_of_both_decisions(seed):
    heads, obs, menu = made_up(seed)
    choice = most_likely(heads, obs, menu)
    probabilities, legal = brute_force(heads, obs, menu), legal_options(obs, menu)
    for p in range(P):
        assert bool(choice.act[p]) == (probabilities[p, 0] < 0.5 and legal[p].any())
        if legal[p].any():
            assert int(choice.option[p]) == probabilities[p, 1:].argmax()


@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan])
def test_masked_logits_do_not_matter_however_large(bad):
    heads, obs, menu = made_up(3)
    loud = heads.replace(
        place=jnp.where(menu.mask, heads.place, bad), forward=jnp.where(obs.forward_mask, heads.forward, bad)
    )
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), *[option_logits(h, obs, menu) for h in (heads, loud)])
    )
    for key in jax.random.split(jax.random.key(0), 20):
        choice, other = sample(key, heads, obs, menu), sample(key, loud, obs, menu)
        assert (choice.act == other.act).all() and (choice.option == other.option).all()
    assert (most_likely(loud, obs, menu).option == most_likely(heads, obs, menu).option).all()


def test_a_policy_that_may_not_wait_waits_only_if_it_must():
    heads, obs, menu = made_up(2)
    sure = heads.replace(act=jnp.full(P, 1e9))  # what the network says with may_wait=False
    some = legal_options(obs, menu).any(-1)
    act = jax.vmap(lambda key: sample(key, sure, obs, menu).act)(jax.random.split(jax.random.key(0), 200))
    assert (np.asarray(act) == some).all() and (np.asarray(most_likely(sure, obs, menu).act) == some).all()
    log_probs = np.stack([log_prob_and_entropy(sure, obs, menu, choice)[0] for choice in every_choice()], -1)
    np.testing.assert_allclose(np.exp(log_probs[some, 1:]).sum(-1), 1.0, rtol=1e-5)
    assert (np.exp(log_probs[some, 0]) == 0).all()


@pytest.mark.parametrize("spread", [1.0, 50.0, 1e4])
def test_values_and_gradients_stay_finite(spread):
    heads, obs, menu = made_up(4, spread)

    @jax.jit
    def of(heads, choice):
        return jax.value_and_grad(lambda h: sum(x.sum() for x in log_prob_and_entropy(h, obs, menu, choice)))(heads)

    for choice in (every_choice()[0], most_likely(heads, obs, menu), sample(jax.random.key(0), heads, obs, menu)):
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(of(heads, choice)))
    _, gradient = of(heads, every_choice()[0])
    assert not gradient.act[3].any() and not gradient.place[3].any() and not gradient.forward[3].any()
    assert not jnp.where(menu.mask, 0.0, gradient.place).any()
