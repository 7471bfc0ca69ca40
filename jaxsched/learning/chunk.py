"""One chunk of training, a pure function of a run's state: collect, estimate, update, restart some environments."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, PRNGKeyArray, PyTree, Shaped

from jaxsched.dynamics.batching import ACCELERATOR
from jaxsched.env.observation import observe
from jaxsched.env.stages import Playing, at_boundary
from jaxsched.env.state import State
from jaxsched.learning import rollout
from jaxsched.learning.devices import map_shards, mean_over_shards, place, shard_key, sum_over_shards
from jaxsched.learning.draws import Draw, draw_worlds
from jaxsched.learning.options import PPOConfig
from jaxsched.learning.ppo import Batch, Losses, optimizer, select, update
from jaxsched.learning.setting import Setting, trace_for_path
from jaxsched.learning.state import TrainState
from jaxsched.learning.untrained import first_weights
from jaxsched.learning.validation import validation_jct_s
from jaxsched.policies.menu import build_menu

Environments = tuple[State | Playing, Draw]
Metrics = dict[str, Shaped[Array, "..."]]  # scalars, but for the codes of debug checks


@trace_for_path
def initial(setting: Setting) -> TrainState:
    """Fresh weights and environments from the config's seed. Pure: the same config gives the same state."""
    params, network = setting.worlds.params, setting.network
    weight_key, world_key, run_key = jax.random.split(jax.random.key(setting.seed), 3)
    states, draws = draw_worlds(world_key, setting.worlds, setting.ppo.num_envs)
    one = jax.tree.map(lambda leaf: leaf[0], states)
    obs = observe(setting.queue, params, one, weighs=network.looks_ahead)
    menu = build_menu(params, one, obs, network.looks_ahead, setting.queue)
    weights = network.init(weight_key, obs, menu)
    weights = first_weights(setting.start.checkpoint, setting.start.freeze, network, weights)
    return TrainState(
        weights=weights,
        optimizer=optimizer(setting.ppo).init(weights),
        best_weights=weights,
        best_jct_s=jnp.float32(jnp.inf),
        worlds=_begin(setting, states),
        draws=draws,
        return_scale=jnp.float32(0.0),
        key_data=jax.random.key_data(run_key),
        chunk=jnp.int32(0),
    )


def _begin(setting: Setting, states: State) -> State | Playing:
    """Fresh environments as they are played: on an accelerator between turns."""
    return jax.vmap(at_boundary)(states) if setting.path == ACCELERATOR else states


@trace_for_path
def chunk(setting: Setting, state: TrainState) -> tuple[TrainState, Metrics]:
    """The state after one chunk, and its row of the log; to be jitted with `state` donated."""
    learn = map_shards(functools.partial(_chunk, setting), setting.ppo.shards)
    (state, metrics), environments = learn(*_split(state))
    return _join(state, environments), metrics


@trace_for_path
def validate(setting: Setting, weights: PyTree) -> Float32[Array, ""]:
    """`validation_jct_s` of weights, in seconds."""
    return validation_jct_s(
        setting.validation, setting.seed, setting.worlds, setting.network, setting.queue, setting.ppo.shards, weights
    )


def _split(state: TrainState) -> tuple[TrainState, Environments]:
    """What all shards have in common, and the environments that they share out."""
    return state.replace(worlds=None, draws=None), (state.worlds, state.draws)


def place_state(state: TrainState, shards: int) -> TrainState:
    """The state on the devices where `chunk` leaves it."""
    return _join(*place(*_split(state), shards))


def _join(state: TrainState, environments: Environments) -> TrainState:
    worlds, draws = environments
    return state.replace(worlds=worlds, draws=draws)


def _chunk(
    setting: Setting, state: TrainState, environments: Environments
) -> tuple[tuple[TrainState, Metrics], Environments]:
    """`chunk` of one shard, in and out of which come the environments apart."""
    ppo, (worlds, draws) = setting.ppo, environments
    key, *keys = jax.random.split(jax.random.wrap_key_data(state.key_data), 5)
    play, pick, learn, again = (shard_key(one, ppo.shards) for one in keys)
    with jax.named_scope("play"):
        worlds, experience, bootstrap, counts = rollout.collect(play, setting.rollout, state.weights, draws, worlds)
    with jax.named_scope("estimate"):
        batch, scale = _estimate(pick, ppo, state.return_scale, experience, bootstrap)
    learn_policy = (state.chunk >= ppo.critic_only_chunks).astype(jnp.float32)
    with jax.named_scope("learn"):
        weights, opt_state, losses = update(
            learn, setting.network, ppo, state.weights, state.optimizer, batch, learn_policy, setting.start.freeze
        )
    metrics = _metrics(experience, counts, losses, scale, ppo.shards)
    if experience.fault is not None:
        metrics["fault"] = experience.fault
    after = state.replace(
        weights=weights, optimizer=opt_state, return_scale=scale, key_data=jax.random.key_data(key),
        chunk=state.chunk + 1,
    )  # fmt: skip
    return (after, metrics), _restart(again, setting, after.chunk, (worlds, draws))


def _estimate(
    key: PRNGKeyArray,
    ppo: PPOConfig,
    return_scale: Float32[Array, ""],
    experience: rollout.Experience,
    bootstrap: Float32[Array, "E P"],
) -> tuple[Batch, Float32[Array, ""]]:
    """What to learn from, and the return scale from here on: a running spread of the returns, 0 at first."""
    first = return_scale == 0
    scale = jnp.where(first, 1.0, return_scale)
    advantage, returns = rollout.advantages(experience, bootstrap, scale, ppo.gae_lambda)
    decided = jnp.broadcast_to(experience.decides[..., None], returns.shape)
    count = jnp.maximum(sum_over_shards(decided.sum(), ppo.shards), 1)
    mean = lambda array: sum_over_shards(jnp.where(decided, array, 0.0).sum(), ppo.shards) / count
    spread = jnp.maximum(jnp.sqrt(mean((returns - mean(returns)) ** 2)), 1e-3)
    new_scale = jnp.where(first, spread, 0.95 * return_scale + 0.05 * spread)
    return select(key, ppo, experience, advantage, returns, new_scale), new_scale


def _metrics(
    experience: rollout.Experience,
    counts: rollout.Counts,
    losses: Losses,
    return_scale: Float32[Array, ""],
    shards: int,
) -> Metrics:
    """The chunk's row of the log, over all shards."""
    reward, counts = sum_over_shards((experience.reward.mean(-1).sum(), counts), shards)
    rounds = jnp.maximum(counts.rounds, 1).astype(jnp.float32)
    return {
        "reward": reward / rounds,
        "decisions": counts.decisions,
        "placements": counts.placements,
        "forwards": counts.forwards,
        "intervals": counts.intervals,
        "jobs_in_system": counts.jobs / rounds,
        "illegal": counts.illegal,
        "return_scale": return_scale,
        **{f"loss_{name}": value for name, value in vars(mean_over_shards(losses, shards)).items()},
    }


def _restart(key: PRNGKeyArray, setting: Setting, done: Int32[Array, ""], environments: Environments) -> Environments:
    """Replace the next share of a shard's environments, in turn, by fresh ones; `done` are the chunks so far."""
    ppo = setting.ppo
    size = ppo.num_envs // ppo.shards
    count = int(size * ppo.restart_share)
    if count == 0:
        return environments
    index = (done * count + jnp.arange(count)) % size
    put = lambda old, new: old.at[index].set(new)
    states, draws = draw_worlds(key, setting.worlds, count)
    return jax.tree.map(put, environments, (_begin(setting, states), draws))
