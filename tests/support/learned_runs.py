"""Workloads that the learned policy runs, and weights for it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.env.environment import SHOWN, initial_state, is_finished
from jaxsched.env.observation import Menu, Observation, observe
from jaxsched.env.rollout import one_round, play_while
from jaxsched.env.state import ALWAYS, EnvParams, State
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.learned import learned_policy
from jaxsched.policies.menu import build_menu
from tests.support import strategies

SHAPE = strategies.SHAPES["three"]
CONFIG, QUEUE = SHAPE.config(), dataclasses.replace(SHOWN, window=2)
NET = SchedulerNetwork(width=8)
MOST_ROUNDS = 600  # such a workload takes some 40


@functools.cache
def untrained():
    """Weights as training starts with them."""
    case = a_case()
    start = strategies.jit_start(CONFIG)(case.params, case.table)
    return jax.jit(lambda params, state: NET.init(jax.random.key(0), *offered(params, state)))(case.params, start)


def shaped(seed: int):
    """Random weights of the network's shapes, for what does not play them: nothing is compiled."""
    case = a_case()
    start = jax.eval_shape(functools.partial(initial_state, CONFIG), case.params, case.table)
    init = lambda params, state: NET.init(jax.random.key(0), *offered(params, state))
    leaves, tree = jax.tree.flatten(jax.eval_shape(init, case.params, start))
    rng = np.random.default_rng(seed)
    return tree.unflatten([jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves])


def noisy(seed: int, spread: float = 0.5):
    """Weights that no training would give."""
    leaves, tree = jax.tree.flatten(untrained())
    rng = np.random.default_rng(seed)
    return tree.unflatten([leaf + jnp.asarray(spread * rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves])


def offered(params: EnvParams, state: State) -> tuple[Observation, Menu]:
    obs = observe(QUEUE, params, state)
    return obs, build_menu(params, state, obs)


def a_case(seed: int = 1, **fixed) -> strategies.Case:
    return strategies.random_case(seed, "three", **fixed)


@functools.cache
def busy_case() -> strategies.Case:
    """All jobs come at once."""
    case = a_case(0)
    return dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(len(case.jobs))))


@functools.cache
def jit_offered():
    return jax.jit(offered)


@functools.cache
def jit_run():
    """Compiled `(weights, params, state, most) -> (State, rounds)`: to the end, or `most` decision rounds."""

    def run(weights, params: EnvParams, state: State, most):
        policy = dataclasses.replace(learned_policy("it", NET, weights, QUEUE), asked=ALWAYS)

        def play(state: State, key):
            return one_round(CONFIG, params, policy, state, key), None

        key = jax.random.key(0)
        state, _, rounds = play_while(lambda state: ~is_finished(state), play, state, lambda _: key, most)
        return state, rounds

    return jax.jit(run)


@functools.cache
def mid_run_state() -> State:
    """Of `busy_case`: jobs in every queue and on the servers, some of them to be forwarded."""
    case = busy_case()
    state, _ = run(untrained(), case, 6)
    obs, _ = jit_offered()(case.params, state)
    if not ((state.queue >= 0).any(-1).all() and (state.running.job >= 0).any(-1).all() and obs.forward_mask.any()):
        raise RuntimeError("not the state that these tests need")
    return state


def run(weights, case: strategies.Case, most: int = MOST_ROUNDS) -> tuple[State, int]:
    state, rounds = jit_run()(weights, case.params, strategies.jit_start(CONFIG)(case.params, case.table), most)
    return state, int(rounds)
