"""Validation: the deterministic policy on fixed job lists, run until every job has finished."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.env.environment import is_finished, transition
from jaxsched.env.observation import observe
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.base import Policy
from jaxsched.policies.learned import learned_policy
from jaxsched.training.config import TrainConfig
from jaxsched.training.worlds import draw_state
from jaxsched.workload.sampler import SamplerParams

MOST_ROUNDS = 20_000


def mean_jct_s(static: EnvConfig, params: EnvParams, policy: Policy, states: State) -> Array:
    """float32[]: mean JCT over all jobs of `states` (leading axis) after running each to its end."""

    def one(state: State) -> State:
        key = jax.random.key(0)

        def step(carry):
            state, rounds = carry
            action = policy(key, observe(static, params, state), state, params)
            return transition(static, params, state, action)[0], rounds + 1

        return lax.while_loop(lambda c: ~is_finished(c[0]) & (c[1] < MOST_ROUNDS), step, (state, 0))[0]

    done = jax.vmap(one)(states)
    records, jobs = done.records, done.jobs
    whole = (records.finish - jobs.arrival).astype(jnp.float32) * params.interval_s
    jct = whole + records.finish_offset_s + jobs.lead_s
    return jnp.where(jax.vmap(is_finished)(done).all(), jct.mean(), jnp.inf)


def make_validation(
    config: TrainConfig, static: EnvConfig, params: EnvParams, jobs: SamplerParams, network: SchedulerNetwork
) -> Callable[[chex.ArrayTree], float]:
    """From weights to mean JCT on seeds that training never draws, compiled; infinite if a run did not end."""
    rule = config.validation
    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), 2**31 - 1), rule.seeds)

    @jax.jit
    def run(weights: chex.ArrayTree) -> Array:
        states = jax.vmap(lambda key: draw_state(key, static, params, jobs, jnp.float32(rule.load), rule.jobs))(keys)
        return mean_jct_s(static, params, learned_policy("validation", static, network, weights), states)

    return lambda weights: float(run(weights))
