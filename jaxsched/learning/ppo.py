"""Proximal policy optimisation (Schulman et al., 2017) on the rounds that held a real choice."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.learning.devices import mean_over_shards, sum_over_shards
from jaxsched.learning.options import PPOConfig
from jaxsched.learning.rollout import Experience
from jaxsched.networks.hierarchy import SchedulerNetwork, apply_packed
from jaxsched.policies.learned import log_prob_and_entropy
from jaxsched.pytree import Pytree

Learner = tuple[PyTree, optax.OptState]  # weights and the optimizer's moments


class Batch(Pytree):
    """B rounds to learn from."""

    experience: Experience  # one leading axis B
    advantage: Float32[Array, "B P"]  # normalised
    target: Float32[Array, "B P"]  # returns in units of the return scale


class Losses(Pytree):
    """Means over a chunk's minibatches, for the log."""

    policy: Float32[Array, ""]
    value: Float32[Array, ""]
    entropy: Float32[Array, ""]
    kl: Float32[Array, ""]
    clipped: Float32[Array, ""]
    gradient: Float32[Array, ""]
    left_out: Float32[Array, ""]  # share of the real decisions for which a minibatch had no room


def optimizer(config: PPOConfig) -> optax.GradientTransformation:
    """Adam with clipped gradients and a learning rate that falls linearly to a twentieth over the run."""
    updates = config.chunks * config.epochs * config.minibatches
    rate = optax.linear_schedule(config.learning_rate, config.learning_rate / 20, updates)
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5))


def select(
    key: PRNGKeyArray,
    config: PPOConfig,
    experience: Experience,
    advantage: Float32[Array, "T E P"],
    returns: Float32[Array, "T E P"],
    return_scale: Float32[Array, ""],
) -> Batch:
    """The share `keep` of all steps, flattened to one axis B.

    Those with a real choice come first, then others in which the schedulers decided, each at random.

    Advantages are normalised over all shards.
    """
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (experience, advantage, returns))
    rounds, advantage, returns = flat
    real = rounds.real.any(-1)
    size = int(real.shape[0] * config.keep) // config.minibatches * config.minibatches
    later = jnp.where(real, 0.0, jnp.where(rounds.decides, 1.0, 2.0))
    chosen = jnp.argsort(jax.random.uniform(key, real.shape) + later)[:size]
    rounds, advantage, returns = jax.tree.map(lambda leaf: leaf[chosen], (rounds, advantage, returns))
    weight = rounds.real.astype(jnp.float32)

    def total(array: Float32[Array, "B P"]) -> Float32[Array, ""]:
        return sum_over_shards((weight * array).sum(), config.shards)

    count = jnp.maximum(total(jnp.ones_like(advantage)), 1.0)
    mean = total(advantage) / count
    deviation = jnp.sqrt(total((advantage - mean) ** 2) / count)
    return Batch(experience=rounds, advantage=(advantage - mean) / (deviation + 1e-6), target=returns / return_scale)


def loss(
    weights: PyTree, network: SchedulerNetwork, config: PPOConfig, batch: Batch, learn_policy: Float32[Array, ""]
) -> tuple[Float32[Array, ""], Losses]:
    """Clipped surrogate, Huber value loss and entropy bonus; `learn_policy` 0 trains the critic alone."""
    rounds = batch.experience

    heads, whole = apply_packed(network, weights, rounds.obs, rounds.menu, config.busy)
    log_prob, entropy = jax.vmap(log_prob_and_entropy)(heads, rounds.obs, rounds.menu, rounds.choice)
    real = (rounds.real & whole).astype(jnp.float32)
    count = jnp.maximum(real.sum(), 1.0)
    change = real * (log_prob - rounds.log_prob)
    ratio = jnp.exp(change)
    clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
    gain = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
    policy_loss = -(real * gain).sum() / count
    valued = whole & rounds.decides[:, None]
    missed = optax.huber_loss(heads.value, batch.target)
    value_loss = jnp.where(valued, missed, 0.0).sum() / jnp.maximum(valued.sum(), 1)
    mean_entropy = (real * entropy).sum() / count
    total = learn_policy * (policy_loss - config.entropy * mean_entropy) + config.value_weight * value_loss
    return total, Losses(
        policy=policy_loss,
        value=value_loss,
        entropy=mean_entropy,
        kl=(real * (ratio - 1.0 - change)).sum() / count,
        clipped=(real * (jnp.abs(ratio - 1.0) > config.clip)).sum() / count,
        gradient=jnp.float32(0.0),
        left_out=(rounds.real & ~whole).sum() / jnp.maximum(rounds.real.sum(), 1),
    )


def update(
    key: PRNGKeyArray,
    network: SchedulerNetwork,
    config: PPOConfig,
    weights: PyTree,
    moments: optax.OptState,
    batch: Batch,
    learn_policy: Float32[Array, ""],
    frozen: Sequence[str] = (),
) -> tuple[PyTree, optax.OptState, Losses]:
    """`epochs` passes over `batch` in `minibatches` shuffled parts, with the mean gradient of all shards.

    Parts of the network that are `frozen` stay as they are.
    """
    transform = optimizer(config)
    size = batch.advantage.shape[0]

    def minibatch(carry: Learner, index: Int32[Array, "M"]) -> tuple[Learner, Losses]:
        weights, moments = carry
        part = jax.tree.map(lambda leaf: leaf[index], batch)
        gradient, losses = jax.grad(loss, has_aux=True)(weights, network, config, part, learn_policy)
        gradient = without(mean_over_shards(gradient, config.shards), frozen)
        change, moments = transform.update(gradient, moments, weights)
        weights = optax.apply_updates(weights, change)
        return (weights, moments), losses.replace(gradient=optax.global_norm(gradient))

    def epoch(carry: Learner, key: PRNGKeyArray) -> tuple[Learner, Losses]:
        order = jax.random.permutation(key, size).reshape(config.minibatches, -1)
        return lax.scan(minibatch, carry, order)

    (weights, moments), losses = lax.scan(epoch, (weights, moments), jax.random.split(key, config.epochs))
    return weights, moments, jax.tree.map(jnp.mean, losses)


def without(gradient: PyTree, frozen: Sequence[str]) -> PyTree:
    """The gradient, 0 for the parts of the network that are frozen: Adam leaves these where they are."""
    if not frozen:
        return gradient
    parts = gradient["params"]
    still = {name: jax.tree.map(jnp.zeros_like, part) if name in frozen else part for name, part in parts.items()}
    return gradient | {"params": still}
