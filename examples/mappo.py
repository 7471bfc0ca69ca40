"""Multi-agent PPO: the learner of `ppo.py`, with a critic that knows more than the actors.

A scheduler chooses by its own options, as in `ppo.py`. What that is worth is judged by its own features and the mean of
all schedulers' features, so the critic is for partitions of this size only. The actor plays any.

    python examples/mappo.py 0 120      seed and updates, as of ppo.py
"""

import flax.linen as nn
import jax.numpy as jnp
import ppo


class Network(nn.Module):
    """Logarithms of the options' probabilities by a scheduler's own options, values by the features of all."""

    @nn.compact
    def __call__(self, seen):
        hidden = nn.relu(nn.Dense(64)(nn.relu(nn.Dense(64)(seen["options"]))))
        score = nn.Dense(1, kernel_init=nn.initializers.orthogonal(0.01))(hidden)[..., 0]
        log_probs = nn.log_softmax(jnp.where(seen["mask"], score, -1e9))
        return log_probs, self.value(seen["features"])

    def value(self, features):
        """The value of each scheduler."""
        own = nn.relu(nn.Dense(64)(nn.LayerNorm()(features)))
        others = jnp.broadcast_to(own.mean(-2, keepdims=True), own.shape)
        return nn.Dense(1)(nn.relu(nn.Dense(64)(jnp.concatenate([own, others], -1))))[..., 0]


if __name__ == "__main__":
    ppo.main("mappo", Network(), axes=2)
