"""Experience: steps of vmapped environments under the sampled policy, and advantages over them."""

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.env.environment import transition
from jaxsched.env.observation import Observation, observe
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.networks.hierarchy import Menu, SchedulerNetwork
from jaxsched.policies.learned import Choice, log_prob_and_entropy, option_logits, sample, to_action
from jaxsched.policies.menu import build_menu
from jaxsched.training.config import TrainConfig
from jaxsched.training.shaping import potential


@chex.dataclass(frozen=True)
class Experience:
    """Leading axes [T, E] (rounds, environments), then P where it is per scheduler."""

    obs: Observation
    menu: Menu
    choice: Choice
    log_prob: Array  # float32[T, E, P]
    value: Array  # float32[T, E, P], in units of the return scale
    reward: Array  # float32[T, E, P], shaped and shared
    discount: Array  # float32[T, E], 1 within a boundary, gamma when the clock advanced
    real: Array  # bool[T, E, P], the scheduler had something to decide


@chex.dataclass(frozen=True)
class Tally:
    """Sums over a chunk, for the log."""

    rounds: Array
    decisions: Array
    placements: Array
    forwards: Array
    intervals: Array
    jobs: Array
    illegal: Array


def collect(
    key: Array,
    config: TrainConfig,
    static: EnvConfig,
    network: SchedulerNetwork,
    weights: chex.ArrayTree,
    params: EnvParams,
    axes: EnvParams,
    states: State,
) -> tuple[State, Experience, Array, Tally]:
    """`config.ppo.steps` rounds of every environment.

    Args: `params` with the leaves that `axes` marks batched over environments.
    Returns: states, experience, the value after the last round `float32[E, P]`, and a tally.
    """
    shape = config.reward

    def one(key: Array, params: EnvParams, state: State):
        obs = observe(static, params, state)
        menu = build_menu(static, params, state, obs)
        heads = network.apply(weights, obs, menu)
        choice = sample(key, heads, obs, menu)
        log_prob, _ = log_prob_and_entropy(heads, obs, menu, choice)
        _, mask = option_logits(heads, obs, menu)
        before = potential(shape, params, state, jnp.array(False))
        after, gain = transition(static, params, state, to_action(state, obs, menu, choice))
        advanced = after.clock != state.clock
        discount = jnp.where(advanced, config.ppo.gamma, 1.0)
        own = gain + discount * potential(shape, params, after, advanced) - before
        share = shape.team_share
        shared = (1.0 - share) * own + share * own.mean()
        real = mask.any(-1) & ~state.waited
        step = Experience(
            obs=obs, menu=menu, choice=choice, log_prob=log_prob, value=heads.value, reward=shared,
            discount=discount, real=real,
        )  # fmt: skip
        placed = real & choice.act & (choice.option < menu.mask[0].size)
        counts = Tally(
            rounds=jnp.int32(1), decisions=real.sum(), placements=placed.sum(),
            forwards=(real & choice.act & ~placed).sum(), intervals=advanced.astype(jnp.int32),
            jobs=(state.queue >= 0).sum() + (state.running.job >= 0).sum(), illegal=after.illegal - state.illegal,
        )  # fmt: skip
        return after, step, counts

    batched = jax.vmap(one, in_axes=(0, axes, 0))
    environments = states.clock.shape[0]

    def step(states: State, key: Array):
        after, experience, counts = batched(jax.random.split(key, environments), params, states)
        return after, (experience, jax.tree.map(jnp.sum, counts))

    states, (experience, counts) = lax.scan(step, states, jax.random.split(key, config.ppo.steps))

    def last_value(params: EnvParams, state: State) -> Array:
        obs = observe(static, params, state)
        return network.apply(weights, obs, build_menu(static, params, state, obs)).value

    bootstrap = jax.vmap(last_value, in_axes=(axes, 0))(params, states)
    return states, experience, bootstrap, jax.tree.map(jnp.sum, counts)


def advantages(experience: Experience, bootstrap: Array, return_scale: Array, decay: float) -> tuple[Array, Array]:
    """Generalised advantage estimates and returns (Schulman et al., 2016), `float32[T, E, P]`, in reward units."""
    values = experience.value * return_scale

    def back(carry: tuple[Array, Array], step: tuple[Array, Array, Array]):
        following, value_after = carry
        reward, value, discount = step
        discount = discount[:, None]
        delta = reward + discount * value_after - value
        # lambda counts intervals, like gamma: rounds of one boundary are one moment in time
        gae = delta + discount * jnp.where(discount < 1.0, decay, 1.0) * following
        return (gae, value), gae

    start = (jnp.zeros_like(bootstrap), bootstrap * return_scale)
    _, gae = lax.scan(back, start, (experience.reward, values, experience.discount), reverse=True)
    return gae, gae + values
