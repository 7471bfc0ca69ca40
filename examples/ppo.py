"""PPO on `jaxsched.make`, in JAX, flax and optax alone: a learner to begin from.

All schedulers share one network. It scores every option by the option's own features, so what was learned on one
cluster plays any other. It may not wait while it can act: with that among the options it learns to wait for ever.
The result is judged as all policies are: beside the rules, on jobs that it did not learn from.

    python examples/ppo.py          seed 0, 120 updates: three minutes of CPU time
    python examples/ppo.py 1 30     seed 1, 30 updates
    python examples/ppo.py 0 30 1024    1,024 environments, in turns: for a GPU

`mappo.py` and `graph_ppo.py` are the same learner with other networks.
"""

import functools
import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxsched
from jaxsched.machine import allow_whole_loops

allow_whole_loops()  # before the first array: the clock's loops compile as one function

CLUSTER, WORKLOAD = "leaf-spine-4", "distributed"
JOBS = {"schedulers": 2, "num_jobs": 60, "mean_duration_s": 1800.0, "load": 0.9}
REWARD = {"lost": 1.0}  # time in queues and of slowdowns: who forwards a job is not paid for it as who starts it
ENVS, STEPS, UPDATES = 64, 128, 120  # environments, rounds between updates, updates
EPOCHS, MINIBATCHES, RATE, CLIP = 3, 4, 1e-3, 0.2
DISCOUNT, TRACE, ENTROPY, CRITIC = 0.99, 0.95, 0.003, 0.5
DECIDING = 0.125  # so many of all rounds and schedulers are learned from, first those in which something is decided


class Critic(nn.Module):
    """What a scheduler's options are worth together. It has layers of its own: its errors are large at first."""

    @nn.compact
    def __call__(self, seen):
        hidden = nn.relu(nn.Dense(64)(nn.relu(nn.Dense(64)(seen["options"]))))
        pooled = jnp.where(seen["mask"][..., None], hidden, 0.0).max(-2)
        return nn.Dense(1)(nn.relu(nn.Dense(64)(pooled)))[..., 0]


class Network(nn.Module):
    """Logarithms of the options' probabilities, and the value of what a scheduler sees."""

    @nn.compact
    def __call__(self, seen):
        hidden = nn.relu(nn.Dense(64)(nn.relu(nn.Dense(64)(seen["options"]))))
        score = nn.Dense(1, kernel_init=nn.initializers.orthogonal(0.01))(hidden)[..., 0]
        return nn.log_softmax(jnp.where(seen["mask"], score, -1e9)), Critic()(seen)


class Round(NamedTuple):
    """What each scheduler did in each environment."""

    seen: dict[str, jax.Array]
    option: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array  # the episode ended with this round
    passed: jax.Array  # so many intervals: rounds of one boundary are one moment


def of_option(log_probs, option):
    """Of each scheduler's numbers, one per option, the one of the option that was chosen."""
    return jnp.take_along_axis(log_probs, option[..., None], -1)[..., 0]


def mean_where(some, values):
    """The mean of some of the values, 0 if there are none."""
    return jnp.where(some, values, 0.0).sum() / jnp.maximum(some.sum(), 1)


def make_update(env, network, optimizer, axes=3):
    """A compiled function that plays `STEPS` rounds and learns from them.

    A minibatch is of single schedulers' rounds (3 axes: rounds, environments, schedulers), or of all schedulers' (2),
    for networks that need what the others see.
    """

    def play(weights, carry, key):
        seen, turn = carry
        draw, go = jax.random.split(key)
        log_probs, value = network.apply(weights, seen)
        option = jax.random.categorical(draw, log_probs)
        after, turn, reward, terminated, truncated, info = jax.vmap(env.step)(jax.random.split(go, ENVS), turn, option)
        reward = (reward + reward.mean(-1, keepdims=True)) / 2  # half of it is everybody's
        reward *= 1.0 - DISCOUNT  # values are means over time then: small numbers, which a critic learns soon
        ended, passed = terminated | truncated, info["intervals"]
        of_all = (jnp.broadcast_to(one[:, None], reward.shape) for one in (ended, passed))
        played = Round(seen, option, of_option(log_probs, option), value, reward, *of_all)
        return (after, turn), (played, jnp.where(terminated, info["jct_mean_s"], jnp.nan))

    def advantages(rounds, last):
        def back(carry, step):
            following, traced = carry
            discount, trace = (x**step.passed * (1.0 - step.done) for x in (DISCOUNT, TRACE))
            traced = step.reward + discount * following - step.value + discount * trace * traced
            return (step.value, traced), traced

        return jax.lax.scan(back, (last, jnp.zeros_like(last)), rounds, reverse=True)[1]

    def loss(weights, step, advantage):
        log_probs, value = network.apply(weights, step.seen)
        decides = step.seen["mask"].sum(-1) > 1
        ratio = jnp.exp(of_option(log_probs, step.option) - step.log_prob)
        better = advantage - mean_where(decides, advantage)
        scaled = better / jnp.sqrt(mean_where(decides, better**2) + 1e-8)
        gain = mean_where(decides, jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled))
        entropies = -(jnp.exp(log_probs) * jnp.where(step.seen["mask"], log_probs, 0.0)).sum(-1)
        target = step.value + advantage
        missed = jnp.square(value - target).mean() / (target.var() + 1e-8)  # rewards of any scale weigh alike
        return -gain + CRITIC * missed - ENTROPY * mean_where(decides, entropies)

    def learn(carry, batch):
        weights, momenta = carry
        change, momenta = optimizer.update(jax.grad(loss)(weights, *batch), momenta)
        return (optax.apply_updates(weights, change), momenta), None

    @jax.jit
    def update(weights, momenta, seen, turn, key):
        key, draw, mix = jax.random.split(key, 3)
        played = functools.partial(play, weights)
        (seen, turn), (rounds, jct_s) = jax.lax.scan(played, (seen, turn), jax.random.split(key, STEPS))
        gained = advantages(rounds, network.apply(weights, seen)[1])
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[axes:]), (rounds, gained))
        decides = rounds.seen["mask"].sum(-1) > 1
        decisions, decides = decides.sum(), decides.reshape(*flat[0].done.shape[:1], -1).any(-1)
        drawn = jax.random.uniform(draw, decides.shape) - decides
        rows = jnp.argsort(drawn)[: int(DECIDING * len(drawn)) // MINIBATCHES * MINIBATCHES]
        orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(jax.random.split(mix, EPOCHS))
        batches = jax.tree.map(lambda leaf: leaf[orders.reshape(EPOCHS * MINIBATCHES, -1)], flat)
        (weights, momenta), _ = jax.lax.scan(learn, (weights, momenta), batches)
        return weights, momenta, seen, turn, (jnp.nanmean(jct_s), decisions)

    return update


def show(number, weights, jct_s, decisions):
    """A line for every tenth update."""
    if number % 10 == 0:
        print(f"update {number}: mean JCT {jct_s / 60:.1f} min", flush=True)


def train(env, updates, key, network=None, axes=3, report=show):
    """The network and its weights after so many updates; `report` gets weights, mean JCT and decisions of each."""
    falling = optax.linear_schedule(RATE, 0.0, max(updates, 1) * EPOCHS * MINIBATCHES)
    network, optimizer = network or Network(), optax.chain(optax.clip_by_global_norm(0.5), optax.adam(falling))
    update = make_update(env, network, optimizer, axes)
    key, begin, first = jax.random.split(key, 3)
    seen, turn = jax.vmap(env.reset)(jax.random.split(begin, ENVS))
    weights = network.init(first, seen)
    momenta = optimizer.init(weights)
    for number in range(updates):
        key, draw = jax.random.split(key)
        weights, momenta, seen, turn, told = update(weights, momenta, seen, turn, draw)
        report(number + 1, weights, *told)
    return network, weights


def policy(env, network, weights, name="ppo"):
    """The likeliest option of each scheduler."""
    return env.policy(name, lambda key, seen, weights: jnp.argmax(network.apply(weights, seen)[0], -1), weights)


def main(name="ppo", network=None, axes=3, **shown):
    """Trains by the command line's numbers, and prints a table."""
    global ENVS, STEPS
    usual = (0, UPDATES, ENVS)
    seed, updates, ENVS = (int(sys.argv[i + 1]) if len(sys.argv) > i + 1 else usual[i] for i in range(3))
    in_turns = ENVS >= 1024
    STEPS *= 1 + in_turns  # of which fewer decide
    env = jaxsched.make(
        CLUSTER, WORKLOAD, episodes=64, may_wait=False, reward=REWARD, in_turns=in_turns, **shown, **JOBS
    )
    mine = policy(env, *train(env, updates, jax.random.key(seed), network, axes), name)
    rules = ["random", "pack:sjf+backfill+forward", "greedy-wait:sjf+spread"]
    print(jaxsched.compare(CLUSTER, WORKLOAD, [*rules, mine], seed=1000, seeds=32, **JOBS))


if __name__ == "__main__":
    main()
