"""One toy configuration, and its compiled pieces, for every test of this room.

Compiling takes nearly all the time here.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.environment import initial_state
from jaxsched.env.stages import transition
from jaxsched.learning import loop, ppo, rollout
from jaxsched.learning.chunk import initial
from jaxsched.learning.config import NetworkConfig, QueueView, TrainConfig
from jaxsched.learning.draws import params_of
from jaxsched.learning.options import EnvironmentConfig, PPOConfig, ValidationConfig, WorkloadConfig
from jaxsched.learning.setting import Setting, make_setting
from jaxsched.policies.menu import to_action
from jaxsched.workload.jobs import make_job_list, pad_table, to_table

ENVIRONMENTS, STEPS = 4, 16
CONFIG = TrainConfig(
    env=EnvironmentConfig(
        cluster="leaf-spine-4", more_clusters=("torus2d-6",), schedulers=2, running_slots=12, queue_slots=24, rounds=6,
        interval_factor=(0.8, 1.0),
    ),
    queue=QueueView(window=2),
    workload=WorkloadConfig(
        load=(1.2, 2.0), mean_duration_s=900.0, duration_cap_s=3600.0, jobs=64,
        gpu_counts=((1, 0.4), (2, 0.2), (4, 0.2), (8, 0.1), (16, 0.1)), home_skew=(0.0, 0.6), gang_tilt=(-0.3, 0.3),
        pace=(0.5, 2.0),
    ),
    network=NetworkConfig(width=8),
    ppo=PPOConfig(
        num_envs=ENVIRONMENTS, steps=STEPS, chunks=8, epochs=2, minibatches=2, critic_only_chunks=1, restart_share=0.25,
        learning_rate=1e-2, keep=0.7, busy=1.0,
    ),
    validation=ValidationConfig(every=3, seeds=2, jobs=8),
)  # fmt: skip


@pytest.fixture(scope="session")
def config() -> TrainConfig:
    return CONFIG


@pytest.fixture(scope="session")
def setting() -> Setting:
    return make_setting(CONFIG)


@pytest.fixture(scope="session")
def start(setting) -> Callable:
    """`seed -> TrainState`, by the very program that `train` runs."""

    def run(seed: int):
        seeded = setting._replace(seed=seed)
        return jax.jit(lambda: initial(seeded))()

    return run


@pytest.fixture(scope="session")
def state(start):
    """A run's first state, of seed 0."""
    return start(0)


@pytest.fixture(scope="session")
def step(setting) -> Callable:
    """Compiled `TrainState -> (TrainState, metrics)`: the very program that `train` runs, on a copy of the state."""
    program = loop.programs_of(setting).step

    def run(state):
        return program(jax.tree.map(jnp.copy, state))

    run.compiled = program._cache_size
    return run


@pytest.fixture(scope="session")
def play(setting) -> Callable:
    """Compiled `(key, weights, states, params, draws) -> (states, experience, bootstrap, counts)`."""

    def run(key, weights, states, params, draws):
        own = setting.rollout._replace(worlds=setting.worlds._replace(params=params))
        return rollout.collect(key, own, weights, draws, states)

    return jax.jit(run)


@pytest.fixture(scope="session")
def replay(setting) -> Callable:
    """Compiled `(draws, states, obs, menu, choice) -> (states, gain)`: one recorded round again."""

    def one(draw, state, obs, menu, choice):
        action = to_action(state, obs, menu, choice)
        return transition(setting.static, params_of(setting.worlds, draw), state, action)

    return jax.jit(jax.vmap(one))


@pytest.fixture(scope="session")
def played(play, state, setting):
    """`play` of the first state."""
    return play(jax.random.key(7), state.weights, state.worlds, setting.worlds.params, state.draws)


class Learner(NamedTuple):
    """Compiled parts of the estimator. `ppo` has a rate that hardly falls."""

    ppo: PPOConfig
    estimate: Callable  # (experience, bootstrap, scale) -> (advantage, returns)
    select: Callable  # (key, experience, advantage, returns, scale) -> Batch
    update: Callable  # (key, weights, optimizer, batch, learn_policy) -> (weights, optimizer, losses)
    init: Callable  # weights -> fresh optimizer state
    gradient: Callable  # (weights, batch, learn_policy, entropy, value_weight) -> (gradient, losses)


@pytest.fixture(scope="session")
def learner(setting) -> Learner:
    rule = dataclasses.replace(CONFIG.ppo, chunks=500)

    def gradient(weights, batch, learn_policy, entropy, value_weight):
        weighted = dataclasses.replace(rule, entropy=entropy, value_weight=value_weight)
        return jax.grad(ppo.loss, has_aux=True)(weights, setting.network, weighted, batch, learn_policy)

    return Learner(
        ppo=rule,
        estimate=jax.jit(lambda experience, last, scale: rollout.advantages(experience, last, scale, rule.gae_lambda)),
        select=jax.jit(lambda key, *rest: ppo.select(key, rule, *rest)),
        update=jax.jit(lambda key, *rest: ppo.update(key, setting.network, rule, *rest)),
        init=ppo.optimizer(rule).init,
        gradient=jax.jit(gradient),
    )


@pytest.fixture(scope="session")
def batch(played, learner):
    """A batch of real experience."""
    _, experience, bootstrap, _ = played
    advantage, returns = learner.estimate(experience, bootstrap, jnp.float32(1.0))
    return learner.select(jax.random.key(3), experience, advantage, returns, jnp.maximum(returns.std(), 1e-3))


@pytest.fixture(scope="session")
def easy_worlds(setting):
    """`ENVIRONMENTS` worlds of the first cluster where nothing can go wrong: one-GPU jobs for each scheduler in turn.

    Each scheduler gets a first job that outlasts the rollout, and the others last longer still: waiting is no choice on
    an idle partition, nor with a job at hand that would be done before anything that runs.
    """
    interval_s = CONFIG.env.interval_s
    count = CONFIG.workload.jobs
    index = np.arange(count) - 2
    jobs = make_job_list(
        np.maximum(index, 0) * interval_s, np.where(index < 0, 18.5, 19.0) * interval_s, 1, home=np.arange(count) % 2
    )
    table = pad_table(to_table(jobs, interval_s), count)
    world = initial_state(setting.static, setting.worlds.params, table)
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * ENVIRONMENTS), world)


POLICY_HEADS = ("place", "forward", "act", "wait", "source", "target", "belief")
CRITIC = ("critic", "value")


@pytest.fixture(scope="session")
def parts() -> Callable:
    """`weights -> (policy heads, critic, shared layers)`, each a dict of parameters."""

    def split(weights):
        own = weights["params"]
        heads, critic = {name: own[name] for name in POLICY_HEADS}, {name: own[name] for name in CRITIC}
        return heads, critic, {name: own[name] for name in own if name not in (*POLICY_HEADS, *CRITIC)}

    return split
