"""Validation: the deterministic policy on fixed job lists, run until every job has finished."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, PyTree

from jaxsched.dynamics.batching import on_cpu
from jaxsched.env.environment import is_finished, jct_s
from jaxsched.env.queues import Discipline
from jaxsched.env.rollout import one_round, one_turn, play_while
from jaxsched.env.stages import Playing, at_boundary
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.learning.devices import map_shards
from jaxsched.learning.draws import Draw, draw_some, draw_state, params_axes, params_of_all
from jaxsched.learning.options import ValidationConfig
from jaxsched.learning.worlds import Worlds
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.learned import learned_policy
from jaxsched.policies.policy import Policy

MOST_ROUNDS = 20_000
MOST_TURNS = 4 * MOST_ROUNDS  # a boundary has as many turns as rounds, completions and blocks of arrivals


def mean_jct_s(
    static: EnvConfig, params: EnvParams, axes: EnvParams, policy: Policy, states: State
) -> Float32[Array, "E"]:
    """Mean JCT over all jobs of each of `states` after running it to its end, inf if it does not end.

    Args: `params` batched where `axes` say so, `states` with a leading axis.
    """

    key = jax.random.key(0)

    def rounds(params: EnvParams, state: State) -> State:
        def play(state: State, key: Array) -> tuple[State, None]:
            return one_round(static, params, policy, state, key), None

        return play_while(lambda state: ~is_finished(state), play, state, lambda _: key, MOST_ROUNDS)[0]

    def turns(states: State) -> State:
        def play(playing: Playing, key: Array) -> tuple[Playing, None]:
            move = jax.vmap(lambda params, one: one_turn(static, params, policy, one, key)[0], in_axes=(axes, 0))
            return move(params, playing), None

        going = lambda playing: ~jax.vmap(is_finished)(playing.state).all()
        return play_while(going, play, jax.vmap(at_boundary)(states), lambda _: key, MOST_TURNS)[0].state

    done = jax.vmap(rounds, in_axes=(axes, 0))(params, states) if on_cpu() else turns(states)
    return jax.vmap(_mean_jct_s, in_axes=(axes, 0))(params, done)


def _mean_jct_s(params: EnvParams, done: State) -> Float32[Array, ""]:
    jct, kept = jct_s(params, done), done.jobs.home >= 0
    mean = jnp.where(kept, jct, 0.0).sum() / jnp.maximum(kept.sum(), 1)
    return jnp.where(is_finished(done), mean, jnp.inf)


def validation_worlds(
    options: ValidationConfig, training_seed: int | Int32[Array, ""], worlds: Worlds
) -> tuple[Draw, State]:
    """The worlds to validate on, with a leading axis: the same for every training, unless options say otherwise."""
    seed = training_seed if options.seed is None else options.seed
    draw_key, job_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31 - 1))
    draws = draw_some(draw_key, worlds, options.seeds)
    start = jax.vmap(lambda key, draw: draw_state(key, worlds, draw, jnp.float32(options.load), options.jobs))
    return draws, start(jax.random.split(job_key, options.seeds), draws)


def validation_jct_s(
    options: ValidationConfig,
    training_seed: int | Int32[Array, ""],
    worlds: Worlds,
    network: SchedulerNetwork,
    queue: Discipline,
    shards: int,
    weights: PyTree,
) -> Float32[Array, ""]:
    """Mean JCT on worlds that training never draws, see `options`; infinite if a run did not end.

    Times are divided by the pace of their world, so that slow worlds do not outweigh the others.
    """

    def measure(weights: PyTree, own: tuple[Draw, State]) -> tuple[None, Float32[Array, "E"]]:
        draws, states = own
        policy = learned_policy("validation", network, weights, queue)
        params, axes = params_of_all(worlds, draws), params_axes(worlds)
        return None, mean_jct_s(worlds.static, params, axes, policy, states) / draws.pace

    _, jct = map_shards(measure, shards)(weights, validation_worlds(options, training_seed, worlds))
    return jnp.exp(jnp.log(jct).mean()) if options.geometric else jct.mean()
