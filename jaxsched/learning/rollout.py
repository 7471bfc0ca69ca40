"""Experience: steps of vmapped environments under the sampled policy, and advantages over them.

A step is a round of every environment on a CPU, a turn on an accelerator (`env.stages`), in which some decide and
others are within an interval.

With `train --debug-checks` what must not be after a round comes along as codes: JAX's checkify cannot carry an error
out of loops under vmap, of which training is made.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.dynamics.batching import SHARE, if_needed
from jaxsched.env.checks import FAULTS, Fault, Finding, findings
from jaxsched.env.knowledge import mask_unknown
from jaxsched.env.observation import Choice, Menu, Observation, observe
from jaxsched.env.queues import Discipline
from jaxsched.env.rollout import play_rounds
from jaxsched.env.stages import Playing, state_of, to_decide, transition, turn_with
from jaxsched.env.state import ALWAYS, Action, EnvConfig, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.learning.draws import Draw, params_axes, params_of_all
from jaxsched.learning.options import RewardConfig
from jaxsched.learning.worlds import Worlds
from jaxsched.networks.hierarchy import Heads, SchedulerNetwork, apply_alone, apply_in_blocks
from jaxsched.policies.learned import log_prob_and_entropy, option_logits, sample
from jaxsched.policies.menu import Shares, as_ahead, build_menu, to_action
from jaxsched.pytree import Pytree, zeros_of

DECIDING = Shares(1 / 2, 3 / 16, 9 / 32)  # where schedulers decide: in a turn 46% of environments
UNSOUND = Fault("a reward, value or probability that is not finite", "partition")


def fault_code(params: EnvParams, state: State, said: Float32[Array, "P"]) -> Int32[Array, "4"]:
    """The first thing that is wrong with a state, or with what was said of it (any numbers of each scheduler).

    Returns: its place in `FAULTS`, counted from 1, one further for `said`, 0 if nothing is wrong; its job or partition;
    boundary; round.
    """
    found = *findings(params, state), Finding(UNSOUND, ~jnp.isfinite(said), jnp.arange(said.shape[0]))
    code = jnp.zeros(2, jnp.int32)
    for number, one in reversed([*enumerate(found, 1)]):
        code = jnp.where(one.wrong.any(), jnp.stack([jnp.int32(number), one.names[one.wrong.argmax()]]), code)
    return jnp.concatenate([code, jnp.stack([state.clock, state.round])])


def stop_at_fault(chunk: int, codes: Int32[np.ndarray, "T E 4"], weights: PyTree) -> None:
    """UserError with the first fault of a chunk's rounds; after that, with weights that are not finite."""
    for step, environment in np.argwhere(codes[..., 0] > 0)[:1]:
        number, one, boundary, round_ = codes[step, environment].tolist()
        fault = (*FAULTS, UNSOUND)[number - 1]
        raise UserError(
            f"debug check of chunk {chunk}: {fault.what}: {fault.of} {one} of environment {environment}, "
            f"boundary {boundary}, round {round_}"
        )
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
        raise UserError(f"debug check of chunk {chunk}: weights that are not finite, after its updates")


class Rollout(NamedTuple):
    """How environments are played to learn from them."""

    worlds: Worlds
    network: SchedulerNetwork
    queue: Discipline  # what the schedulers see of it
    reward: RewardConfig
    gamma: float | Float32[Array, ""]  # per `env.interval_s` at pace 1
    steps: int
    checks: bool = False  # what `env.checks` holds is checked after every round

    @property
    def static(self) -> EnvConfig:
        """Shapes and switches of the environments."""
        return self.worlds.static


class Experience(Pytree):
    """T steps of E environments; both axes lead everywhere."""

    obs: Observation
    menu: Menu
    choice: Choice
    log_prob: Float32[Array, "T E P"]
    value: Float32[Array, "T E P"]  # in units of the return scale
    reward: Float32[Array, "T E P"]  # shaped and shared
    discount: Float32[Array, "T E"]  # 1 within a boundary, gamma when the clock advanced
    decides: Bool[Array, "T E"]  # the schedulers decided, and what that brought is known
    real: Bool[Array, "T E P"]  # the scheduler had something to decide
    fault: Int32[Array, "T E 4"] | None = None  # of debug checks, see `learning.rollout`


class Counts(Pytree):
    """Sums over a chunk, for the log."""

    rounds: Int32[Array, ""]  # steps in which the schedulers decided
    decisions: Int32[Array, ""]
    placements: Int32[Array, ""]
    forwards: Int32[Array, ""]
    intervals: Int32[Array, ""]
    jobs: Int32[Array, ""]
    illegal: Int32[Array, ""]


def collect(
    key: PRNGKeyArray, rollout: Rollout, weights: PyTree, draws: Draw, worlds: State | Playing
) -> tuple[State | Playing, Experience, Float32[Array, "E P"], Counts]:
    """`rollout.steps` steps of every environment to learn from, and one more for its value.

    Args: `draws` and `worlds` with a leading axis over environments; they play in turns if they are `Playing`.
    Returns: environments after the further step, experience, the values that stand for what comes after it, and counts.
    """
    environments = draws.pace.shape[0]
    params, axes = params_of_all(rollout.worlds, draws), params_axes(rollout.worlds)
    look_at_all = jax.vmap(functools.partial(look, rollout), in_axes=(axes, 0))
    check_all = jax.vmap(fault_code, in_axes=(axes, 0, 0))
    worth = rollout.worlds.worth[draws.cluster]
    step_all = jax.vmap(functools.partial(_step, rollout), in_axes=(0, axes, 0, 0, 0, 0, 0, 0))

    def judge(worlds: State | Playing) -> tuple[Observation, Menu, Heads]:
        if isinstance(worlds, Playing):
            judge_all = jax.vmap(functools.partial(_judge_where_deciding, rollout, weights), in_axes=(axes, 0))
            return judge_all(params, worlds)
        obs, menu = look_at_all(params, worlds)
        return obs, menu, apply_in_blocks(rollout.network, weights, obs, menu)

    def play(worlds: State | Playing, key: PRNGKeyArray) -> tuple[State | Playing, tuple[Experience, Counts]]:
        obs, menu, heads = judge(worlds)
        keys = jax.random.split(key, environments)
        after, experience, counts = step_all(keys, params, draws.interval_factor, worth, worlds, obs, menu, heads)
        if rollout.checks:
            said = experience.reward + experience.value + experience.log_prob
            experience = experience.replace(fault=check_all(params, state_of(after), said))
        return after, (experience, jax.tree.map(jnp.sum, counts))

    # of the step after the last one only the value is used: to look once more would compile all of the looking twice
    worlds, _, (steps, counts) = play_rounds(play, worlds, jax.random.split(key, rollout.steps + 1))
    experience, bootstrap = _cut_after_last_decision(steps)
    return worlds, experience, bootstrap, jax.tree.map(lambda leaf: leaf[:-1].sum(), counts)


def _cut_after_last_decision(steps: Experience) -> tuple[Experience, Float32[Array, "E P"]]:
    """What T + 1 steps tell up to the last decision of each environment, and its value, which stands for the rest."""
    count = steps.decides.shape[0]
    last = count - 1 - jnp.argmax(steps.decides[::-1], 0)
    known = jnp.arange(count)[:, None] < last
    whole = steps.replace(
        reward=jnp.where(known[..., None], steps.reward, 0.0),
        discount=jnp.where(known, steps.discount, 1.0),
        decides=steps.decides & known,
        real=steps.real & known[..., None],
    )
    bootstrap = jnp.take_along_axis(steps.value, last[None, :, None], 0)[0]
    return jax.tree.map(lambda leaf: leaf[:-1], whole), bootstrap


def look(rollout: Rollout, params: EnvParams, state: State, share: float = SHARE) -> tuple[Observation, Menu]:
    """What the schedulers of one environment see of it, by what they may know."""
    state = mask_unknown(rollout.static, params, state)
    ahead = rollout.network.looks_ahead
    obs = observe(rollout.queue, params, state, weighs=ahead)
    return obs, build_menu(params, state, obs, ahead, rollout.queue, share)


def _judge_where_deciding(
    rollout: Rollout, weights: PyTree, params: EnvParams, world: Playing
) -> tuple[Observation, Menu, Heads]:
    """What the schedulers of one environment see, and what the network says; blank where they do not decide."""

    def judge() -> tuple[Observation, Menu, Heads]:
        obs, menu = look(rollout, params, to_decide(world), DECIDING.jobs)
        return obs, menu, apply_alone(rollout.network, weights, obs, menu, DECIDING.parts)

    return if_needed(world.decides, judge, zeros_of(judge), share=DECIDING.environments)


class _Moved(Pytree):
    """An environment after a step; what is said of schedulers is true or false of all of them."""

    world: State | Playing
    state: State
    gain: Float32[Array, "P"]
    decided: Bool[Array, ""]
    advanced: Bool[Array, ""]  # the clock
    settled: Bool[Array, ""]  # the schedulers can decide again, arrivals apart: what they did is over


def _move(rollout: Rollout, params: EnvParams, world: State | Playing, action: Action) -> _Moved:
    """The environment after a round, or a turn, in which this is what its schedulers do."""
    if isinstance(world, State):
        state, gain = transition(rollout.static, params, world, action)
        yes = jnp.array(True)
        return _Moved(
            world=state, state=state, gain=gain, decided=yes, advanced=state.clock != world.clock, settled=yes
        )
    after, gain = turn_with(rollout.static, params, world, action, ALWAYS)
    advanced = after.state.clock != world.state.clock
    return _Moved(
        world=after, state=after.state, gain=gain, decided=world.decides, advanced=advanced,
        settled=advanced | (world.decides & after.decides),
    )  # fmt: skip


def _step(
    rollout: Rollout,
    key: PRNGKeyArray,
    params: EnvParams,
    factor: Float32[Array, ""],
    worth: Float32[Array, ""],
    world: State | Playing,
    obs: Observation,
    menu: Menu,
    heads: Heads,
) -> tuple[State | Playing, Experience, Counts]:
    """One step of one environment under the sampled policy; its experience has no leading axes yet.

    `factor` is that of its interval, so that rewards and discounts are those of the same time in all environments;
    `worth` as in `Worlds`.
    """
    rule, state = rollout.reward, to_decide(world)
    choice = sample(key, heads, obs, menu)
    log_prob, _ = log_prob_and_entropy(heads, obs, menu, choice)
    _, mask = option_logits(heads, obs, menu)
    action = to_action(state, obs, menu, choice)
    if rollout.network.looks_ahead:
        action = as_ahead(rollout.queue, params, mask_unknown(rollout.static, params, state), action)
    moved = _move(rollout, params, world, action)
    decided, after = moved.decided, moved.state
    discount = jnp.where(moved.advanced, rollout.gamma**factor, 1.0)
    before = jnp.where(decided, potential(rule, params, state, jnp.array(False)), 0.0)
    then = jnp.where(moved.settled, potential(rule, params, after, moved.advanced), 0.0)
    own = factor * worth * (moved.gain + discount * then - before)
    shared = (1.0 - rule.team_share) * own + rule.team_share * own.mean()
    real = mask.any(-1) & ~state.waited
    experience = Experience(
        obs=obs, menu=menu, choice=choice, log_prob=log_prob, value=heads.value, reward=shared, discount=discount,
        decides=decided, real=real,
    )  # fmt: skip
    placed = real & choice.act & (choice.option < menu.mask.shape[-1])
    jobs = (state.queue >= 0).sum() + (state.running.job >= 0).sum()
    counts = Counts(
        rounds=decided.astype(jnp.int32), decisions=real.sum(), placements=placed.sum(),
        forwards=(real & choice.act & ~placed).sum(), intervals=moved.advanced.astype(jnp.int32),
        jobs=jnp.where(decided, jobs, 0), illegal=after.illegal - state.illegal,
    )  # fmt: skip
    return moved.world, experience, counts


def potential(
    reward: RewardConfig, params: EnvParams, state: State, without_arrivals: Bool[Array, ""]
) -> Float32[Array, "P"]:
    """What the present state will cost each scheduler if nothing better is done: Phi of potential-based shaping.

    `Phi = -weight [sum over running of remaining (slowdown - 1) + waiting * sum over queued of duration] / scale`.
    Adding `gamma Phi' - Phi` to the reward leaves the best policy unchanged and tells every single placement what it
    cost (Ng, Harada & Russell, 1999). With `reward.interference` off the first sum is left out. `without_arrivals`
    leaves out the jobs that arrived at this boundary, as in `Phi'`: nobody's decision brought them.
    """
    running = state.running
    active = running.job >= 0
    late = jnp.where(active & reward.interference, running.remaining_s * (running.slowdown - 1.0), 0.0).sum(-1)
    row = jnp.maximum(state.queue, 0)
    counts = (state.queue >= 0) & ~(without_arrivals & (state.jobs.arrival[row] == state.clock))
    waiting = jnp.where(counts, state.jobs.duration_s[row], 0.0).sum(-1)
    return -reward.potential * (late + reward.potential_waiting * waiting) / (params.interval_s * reward.scale)


def advantages(
    experience: Experience,
    bootstrap: Float32[Array, "E P"],
    return_scale: Float32[Array, ""],
    decay: float | Float32[Array, ""],
) -> tuple[Float32[Array, "T E P"], Float32[Array, "T E P"]]:
    """Generalised advantage estimates and returns (Schulman et al., 2016), in reward units; of decisions.

    What a step brings in which nobody decides is part of what the decision before it brought. `bootstrap` are the
    values after the last step, in units of `return_scale`.
    """
    values = experience.value * return_scale

    def back(carry: _Later, step: tuple[Array, Array, Array, Array]) -> tuple[_Later, Array]:
        reward, value, discount, decides = step
        reward, discount = reward + discount * carry.reward, discount * carry.discount
        delta = reward + discount * carry.value - value
        # lambda counts intervals, like gamma: rounds of one boundary are one moment in time
        gae = delta + discount * jnp.where(discount < 1.0, decay, 1.0) * carry.gae
        here = _Later(jnp.zeros_like(reward), jnp.ones_like(discount), value, gae)
        passed = _Later(reward, discount, carry.value, carry.gae)
        return jax.tree.map(lambda new, old: jnp.where(decides, new, old), here, passed), gae

    discount, decides = experience.discount[..., None], experience.decides[..., None]
    nothing = jnp.zeros_like(bootstrap)
    start = _Later(nothing, jnp.ones_like(discount[0]), bootstrap * return_scale, nothing)
    _, gae = lax.scan(back, start, (experience.reward, values, discount, decides), reverse=True)
    return gae, gae + values


class _Later(NamedTuple):
    """What is known of later steps: rewards and discount until the next decision, its value and its advantage."""

    reward: Float32[Array, "E P"]
    discount: Float32[Array, "E 1"]
    value: Float32[Array, "E P"]
    gae: Float32[Array, "E P"]
