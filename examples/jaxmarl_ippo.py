"""Independent PPO on any environment of JaxMARL, and on jaxsched's: the same lines train both.

In the style of the feed-forward IPPO among JaxMARL's baselines: all agents share one network. It asks the environment
for legal actions. Where an environment does not say, all are legal. Needs the extra `marl`, and `six`, which
gymnax uses.

It shows that the adapter fits, not that this learner schedules well. In 60 updates the mean return rises from -27.7 to
-21.4 on MPE_simple_spread_v3. On jaxsched it shows no gain: docs/learning.md says what learning takes there.

    python examples/jaxmarl_ippo.py MPE_simple_spread_v3
    python examples/jaxmarl_ippo.py jaxsched
"""

import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import optax
from jaxmarl.wrappers.baselines import LogWrapper

ENVS, STEPS, UPDATES = 32, 128, 60  # environments, rounds between updates, updates
EPOCHS, MINIBATCHES, RATE, CLIP = 4, 4, 1e-3, 0.2
DISCOUNT, TRACE, ENTROPY, CRITIC = 0.99, 0.95, 0.01, 0.5


class Network(nn.Module):
    """Logits of the actions and the value of an observation."""

    actions: int

    @nn.compact
    def __call__(self, seen):
        def tower(out, scale):
            x = nn.LayerNorm()(seen)
            for _ in range(2):
                x = nn.tanh(nn.Dense(64)(x))
            return nn.Dense(out, kernel_init=nn.initializers.orthogonal(scale))(x)

        return tower(self.actions, 0.01), tower(1, 1.0)[..., 0]


class Step(NamedTuple):
    """One decision of each agent in each environment."""

    seen: jax.Array
    legal: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def train(env, key, updates=UPDATES):
    """The weights, and of every update the mean return of the episodes that ended in it (NaN: none ended)."""
    env = LogWrapper(env)
    agents = env.agents
    network = Network(env.action_space(agents[0]).n)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE))

    def stacked(by_agent):
        return jnp.stack([by_agent[agent] for agent in agents], 1)  # [environments, agents, ...]

    def legal_actions(state):
        try:
            return stacked(jax.vmap(env.get_avail_actions)(state.env_state)).astype(bool)
        except NotImplementedError:
            return jnp.ones((ENVS, len(agents), network.actions), bool)

    def judge(weights, seen, legal):
        logits, value = network.apply(weights, seen)
        return jax.nn.log_softmax(jnp.where(legal, logits, -1e9)), value

    def play(carry, key):
        weights, seen, state = carry
        legal = legal_actions(state)
        log_probs, value = judge(weights, seen, legal)
        draw, act = jax.random.split(key)
        action = jax.random.categorical(draw, log_probs)
        named = {agent: action[:, i] for i, agent in enumerate(agents)}
        after, state, reward, done, info = jax.vmap(env.step)(jax.random.split(act, ENVS), state, named)
        chosen = jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0]
        ended = jnp.broadcast_to(done["__all__"][:, None], action.shape)
        step = Step(seen, legal, action, chosen, value, stacked(reward), ended)
        return (weights, stacked(after), state), (step, info["returned_episode_returns"], ended)

    def advantages(steps, last):
        def back(carry, step):
            following, traced = carry
            going = 1.0 - step.done
            delta = step.reward + DISCOUNT * following * going - step.value
            traced = delta + DISCOUNT * TRACE * going * traced
            return (step.value, traced), traced

        return jax.lax.scan(back, (last, jnp.zeros_like(last)), steps, reverse=True)[1]

    def loss(weights, step, advantage):
        log_probs, value = judge(weights, step.seen, step.legal)
        chosen = jnp.take_along_axis(log_probs, step.action[..., None], -1)[..., 0]
        ratio, target = jnp.exp(chosen - step.log_prob), advantage + step.value
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled).mean()
        spread = -(jnp.exp(log_probs) * jnp.where(step.legal, log_probs, 0.0)).sum(-1).mean()
        missed = jnp.square(value - target).mean() / (target.var() + 1e-8)  # rewards of any scale weigh alike
        return -gain + CRITIC * missed - ENTROPY * spread

    def learn(carry, batch):
        weights, momenta = carry
        change, momenta = optimizer.update(jax.grad(loss)(weights, *batch), momenta)
        return (optax.apply_updates(weights, change), momenta), None

    def update(carry, key):
        weights, momenta, seen, state = carry
        key, draw = jax.random.split(key)
        (_, seen, state), (steps, returns, ended) = jax.lax.scan(
            play, (weights, seen, state), jax.random.split(key, STEPS)
        )
        flat = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[3:]),
            (steps, advantages(steps, judge(weights, seen, legal_actions(state))[1])),
        )
        orders = jax.vmap(lambda key: jax.random.permutation(key, len(flat[1])))(jax.random.split(draw, EPOCHS))
        batches = jax.tree.map(lambda leaf: leaf[orders.reshape(EPOCHS * MINIBATCHES, -1)], flat)
        (weights, momenta), _ = jax.lax.scan(learn, (weights, momenta), batches)
        return (weights, momenta, seen, state), jnp.mean(returns, where=ended)

    @jax.jit
    def run(key):
        first, reset, rest = jax.random.split(key, 3)
        seen, state = jax.vmap(env.reset)(jax.random.split(reset, ENVS))
        seen = stacked(seen)
        weights = network.init(first, seen)
        carry = (weights, optimizer.init(weights), seen, state)
        (weights, *_), returns = jax.lax.scan(update, carry, jax.random.split(rest, updates))
        return weights, returns

    return run(key)


def environment(name):
    """One of JaxMARL's, or `jaxsched`: two schedulers that share 32 GPUs."""
    if name != "jaxsched":
        return jaxmarl.make(name)
    import jaxsched
    from jaxsched.adapters.jaxmarl_env import JaxMarlEnv
    from jaxsched.machine import allow_whole_loops

    allow_whole_loops()  # before the first array: the clock's loops compile as one function
    jobs = {"num_jobs": 30, "mean_duration_s": 1800.0, "load": 0.9}
    return JaxMarlEnv(jaxsched.make("leaf-spine-4", schedulers=2, may_wait=False, **jobs))


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "jaxsched"
    for number, mean in enumerate(train(environment(name), jax.random.key(0))[1].tolist()):
        print(f"update {number + 1}: mean return {mean:.2f}")
