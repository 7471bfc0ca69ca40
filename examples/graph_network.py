"""A graph network of one's own, the smallest learner that trains it, and a table beside rules."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxsched
from jaxsched.machine import allow_whole_loops

allow_whole_loops()  # before the first array: the clock's loops compile as one function

JOBS = {"schedulers": 2, "num_jobs": 60, "mean_duration_s": 1800.0, "load": 0.9}
ENVS, STEPS, DISCOUNT, UPDATES = 16, 128, 0.98, {"first": 0, "mine": 100}


class Network(nn.Module):
    """Messages along every edge, both ways; options and schedulers are the last nodes, and scores are read there."""

    @nn.compact
    def __call__(self, seen):
        graph = seen["graph"]
        nodes, count, real = nn.Dense(32)(graph.nodes), graph.nodes.shape[0], graph.edges[:, -1:]
        for _ in range(3):
            loudness = real * nn.sigmoid(nn.Dense(32)(graph.edges))
            down = jax.ops.segment_sum(loudness * nodes[graph.senders], graph.receivers, count)
            up = jax.ops.segment_sum(loudness * nodes[graph.receivers], graph.senders, count)
            nodes += nn.relu(nn.Dense(32)(nn.LayerNorm()(jnp.concatenate([nodes, down, up], -1))))
        nodes, (p, options) = nn.LayerNorm()(nodes), seen["mask"].shape
        score = nn.Dense(1, kernel_init=nn.initializers.zeros)(nodes[-p * options :]).reshape(p, options)
        value = nn.Dense(1)(nodes[-p * options - p : -p * options])[:, 0]
        return nn.log_softmax(jnp.where(seen["mask"], score, -1e9)), value


def train(env, updates, key, network, rate=1e-3):
    """The weights after so many updates, each a step up the gradient of what `STEPS` rounds brought."""
    optimizer, apply = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate)), jax.vmap(network.apply, (None, 0))

    def play(weights, carry, key):
        (seen, turn), draws = carry, jax.random.split(key, 1 + ENVS)
        option = jax.random.categorical(draws[0], apply(weights, seen)[0])
        after, turn, reward, terminated, truncated, info = jax.vmap(env.step)(draws[1:], turn, option)
        keep = DISCOUNT ** info["intervals"] * ~(terminated | truncated)  # rounds of one boundary are one moment
        return (after, turn), (seen, option, reward, keep[:, None])

    def loss(weights, seen, option, returns):
        log_probs, value = jax.vmap(apply, (None, 0))(weights, seen)
        chosen = jnp.take_along_axis(log_probs, option[..., None], -1)[..., 0] * (seen["mask"].sum(-1) > 1)
        better = returns - value
        return (0.5 * better**2 / returns.var() - chosen * jax.lax.stop_gradient(better) / returns.std()).mean()

    @jax.jit
    def update(weights, momenta, carry, key):
        carry, rounds = jax.lax.scan(lambda *step: play(weights, *step), carry, jax.random.split(key, STEPS))
        add = lambda later, step: (step[0] + step[1] * later,) * 2
        returns = jax.lax.scan(add, apply(weights, carry[0])[1], rounds[2:], reverse=True)[1]
        change, momenta = optimizer.update(jax.grad(loss)(weights, *rounds[:2], returns), momenta)
        return optax.apply_updates(weights, change), momenta, carry, rounds[2].sum(0).mean()

    carry = jax.vmap(env.reset)(jax.random.split(key, ENVS))
    weights = network.init(key, jax.tree.map(lambda leaf: leaf[0], carry[0]))
    momenta = optimizer.init(weights)
    for number, draw in enumerate(jax.random.split(key, updates), 1):
        weights, momenta, carry, reward = update(weights, momenta, carry, draw)
        print(f"update {number} of {updates}: {reward:.2f} of reward in {STEPS} rounds", flush=True)
    return weights


if __name__ == "__main__":
    env = jaxsched.make("leaf-spine-4", "distributed", observation="graph", may_wait=False, episodes=64, **JOBS)
    act = lambda key, seen, weights: jnp.argmax(Network().apply(weights, seen)[0], -1)
    mine = [env.policy(name, act, train(env, count, jax.random.key(0), Network())) for name, count in UPDATES.items()]
    policies = ["random", "greedy-wait:sjf+spread", *mine]
    print(jaxsched.compare("leaf-spine-4", "distributed", policies, seed=1000, seeds=16, **JOBS))
