"""Experience: steps of vmapped environments under the sampled policy, and advantages over them."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.env.environment import transition
from jaxsched.env.knowledge import seen
from jaxsched.env.observation import Observation, observe
from jaxsched.env.rollout import play_rounds
from jaxsched.env.state import EnvParams, State
from jaxsched.networks.hierarchy import Heads, Menu, apply_in_blocks
from jaxsched.policies.learned import Choice, log_prob_and_entropy, option_logits, sample, to_action
from jaxsched.policies.menu import build_menu
from jaxsched.pytree import Pytree
from jaxsched.training.faults import fault_code
from jaxsched.training.setting import Setting
from jaxsched.training.shaping import potential
from jaxsched.training.worlds import Draw, params_axes, params_of_all


class Experience(Pytree):
    """T rounds of E environments; both axes lead everywhere."""

    obs: Observation
    menu: Menu
    choice: Choice
    log_prob: Float32[Array, "T E P"]
    value: Float32[Array, "T E P"]  # in units of the return scale
    reward: Float32[Array, "T E P"]  # shaped and shared
    discount: Float32[Array, "T E"]  # 1 within a boundary, gamma when the clock advanced
    real: Bool[Array, "T E P"]  # the scheduler had something to decide
    fault: Int32[Array, "T E 4"] | None = None  # of debug checks, see `training.faults`


class Counts(Pytree):
    """Sums over a chunk, for the log."""

    rounds: Int32[Array, ""]
    decisions: Int32[Array, ""]
    placements: Int32[Array, ""]
    forwards: Int32[Array, ""]
    intervals: Int32[Array, ""]
    jobs: Int32[Array, ""]
    illegal: Int32[Array, ""]


def collect(
    key: PRNGKeyArray, setting: Setting, weights: PyTree, draws: Draw, states: State
) -> tuple[State, Experience, Float32[Array, "E P"], Counts]:
    """`ppo.steps` rounds of every environment to learn from, and one more for its value.

    Args: `draws` and `states` with a leading axis over environments.
    Returns: states after the further round, experience, the values after the last round of it, and counts.
    """
    network, environments = setting.network, states.clock.shape[0]
    params, axes = params_of_all(setting.worlds, draws), params_axes(setting.worlds)
    look_at_all = jax.vmap(functools.partial(look, setting), in_axes=(axes, 0))
    check_all = jax.vmap(fault_code, in_axes=(axes, 0, 0))
    step_all = jax.vmap(functools.partial(_step, setting), in_axes=(0, axes, 0, 0, 0, 0, 0))

    def play(states: State, key: PRNGKeyArray) -> tuple[State, tuple[Experience, Counts]]:
        obs, menu = look_at_all(params, states)
        heads = apply_in_blocks(network, weights, obs, menu)
        keys = jax.random.split(key, environments)
        after, experience, counts = step_all(keys, params, draws.interval_factor, states, obs, menu, heads)
        if setting.checks:
            said = experience.reward + experience.value + experience.log_prob
            experience = experience.replace(fault=check_all(params, after, said))
        return after, (experience, jax.tree.map(jnp.sum, counts))

    # of the round after the last one only the value is used: to look once more would compile all of the looking twice
    states, _, (rounds, counts) = play_rounds(play, states, jax.random.split(key, setting.config.ppo.steps + 1))
    experience, counts = jax.tree.map(lambda leaf: leaf[:-1], (rounds, counts))
    return states, experience, rounds.value[-1], jax.tree.map(jnp.sum, counts)


def look(setting: Setting, params: EnvParams, state: State) -> tuple[Observation, Menu]:
    """What the schedulers of one environment see of it, by what they may know."""
    state = seen(params, state, setting.static.knows)
    obs = observe(setting.config.queue, params, state)
    return obs, build_menu(params, state, obs)


def _step(
    setting: Setting,
    key: PRNGKeyArray,
    params: EnvParams,
    factor: Float32[Array, ""],
    state: State,
    obs: Observation,
    menu: Menu,
    heads: Heads,
) -> tuple[State, Experience, Counts]:
    """One round of one environment under the sampled policy; its experience has no leading axes yet.

    `factor` is that of its interval, so that rewards and discounts are those of the same time in all environments.
    """
    rule = setting.config.reward
    choice = sample(key, heads, obs, menu)
    log_prob, _ = log_prob_and_entropy(heads, obs, menu, choice)
    _, mask = option_logits(heads, obs, menu)
    before = potential(rule, params, state, jnp.array(False))
    after, gain = transition(setting.static, params, state, to_action(state, obs, menu, choice))
    advanced = after.clock != state.clock
    discount = jnp.where(advanced, setting.config.ppo.gamma**factor, 1.0)
    own = factor * (gain + discount * potential(rule, params, after, advanced) - before)
    shared = (1.0 - rule.team_share) * own + rule.team_share * own.mean()
    real = mask.any(-1) & ~state.waited
    experience = Experience(
        obs=obs, menu=menu, choice=choice, log_prob=log_prob, value=heads.value, reward=shared, discount=discount,
        real=real,
    )  # fmt: skip
    placed = real & choice.act & (choice.option < menu.mask.shape[-1])
    counts = Counts(
        rounds=jnp.int32(1), decisions=real.sum(), placements=placed.sum(),
        forwards=(real & choice.act & ~placed).sum(), intervals=advanced.astype(jnp.int32),
        jobs=(state.queue >= 0).sum() + (state.running.job >= 0).sum(), illegal=after.illegal - state.illegal,
    )  # fmt: skip
    return after, experience, counts


def advantages(
    experience: Experience,
    bootstrap: Float32[Array, "E P"],
    return_scale: Float32[Array, ""],
    decay: float | Float32[Array, ""],
) -> tuple[Float32[Array, "T E P"], Float32[Array, "T E P"]]:
    """Generalised advantage estimates and returns (Schulman et al., 2016), in reward units.

    `bootstrap` are the values after the last round, in units of `return_scale`.
    """
    values = experience.value * return_scale

    def back(carry: tuple[Array, Array], step: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
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
