"""The learned policy: from network heads to a choice on a menu."""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, PRNGKeyArray, PyTree

from jaxsched.env.knowledge import ESTIMATES
from jaxsched.env.observation import Choice, Menu, Observation
from jaxsched.env.queues import Discipline
from jaxsched.env.state import POSSIBLE, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import Heads, SchedulerNetwork, apply_alone
from jaxsched.policies.base import Act, Judge, Judgement
from jaxsched.policies.menu import BUSY, Offered, build_menu, look, menu_act, menu_policy
from jaxsched.policies.policy import Policy

_FAR = -1e9  # finite, so that a fully masked row has no NaN


Sizes = tuple[int, int, int, int]  # of arrays: schedulers, servers of each, GPU groups of a server, racks of each


def option_logits(
    heads: Heads, obs: Observation, menu: Menu
) -> tuple[Float32[Array, "P options"], Bool[Array, "P options"]]:
    """Logits of everything that can be done, K placements and P forwards, and which of it is legal."""
    mask = jnp.concatenate([menu.mask, obs.forward_mask], -1)
    logits = jnp.concatenate([heads.place, heads.forward], -1)
    return jnp.where(mask, logits, _FAR), mask


def sample(key: PRNGKeyArray, heads: Heads, obs: Observation, menu: Menu) -> Choice:
    """A choice drawn from the policy; schedulers without a legal option wait."""
    logits, mask = option_logits(heads, obs, menu)
    act_key, option_key = jax.random.split(key)
    act = jax.random.uniform(act_key, heads.act.shape) < jax.nn.sigmoid(heads.act)
    return Choice(act=act & mask.any(-1), option=jax.random.categorical(option_key, logits).astype(jnp.int32))


def most_likely(heads: Heads, obs: Observation, menu: Menu) -> Choice:
    """The mode of each of the two decisions."""
    logits, mask = option_logits(heads, obs, menu)
    return Choice(act=(heads.act > 0) & mask.any(-1), option=jnp.argmax(logits, -1).astype(jnp.int32))


def log_prob_and_entropy(
    heads: Heads, obs: Observation, menu: Menu, choice: Choice
) -> tuple[Float32[Array, "P"], Float32[Array, "P"]]:
    """Log-probability and entropy of a choice; both are 0 where no option is legal."""
    logits, mask = option_logits(heads, obs, menu)
    some = mask.any(-1)
    log_p = jax.nn.log_softmax(logits)
    of_option = jnp.take_along_axis(log_p, choice.option[:, None], -1)[:, 0]
    acts, waits = jax.nn.log_sigmoid(heads.act), jax.nn.log_sigmoid(-heads.act)
    log_prob = jnp.where(choice.act, acts + of_option, waits)
    p_act = jnp.exp(acts)
    of_options = -jnp.where(mask, jnp.exp(log_p) * log_p, 0.0).sum(-1)
    entropy = -(p_act * acts + (1.0 - p_act) * waits) + p_act * of_options
    return jnp.where(some, log_prob, 0.0), jnp.where(some, entropy, 0.0)


def learned_policy(
    name: str,
    network: SchedulerNetwork,
    weights: PyTree,
    queue: Discipline,
    *,
    max_forwards: int | None = None,
    sizes: Sizes | None = None,
) -> Policy:
    """The policy that does what is most likely by a network.

    Args:
        name: in tables.
        network: what the weights are of.
        weights: as `network.init` has them.
        queue: what the policy sees of queues, as in training.
        max_forwards: of a job, at most; None: as the world allows.
        sizes: of the cluster that it was trained for; on another it raises UserError when it is traced. None: any.
    """
    if sizes is None:
        try:
            act, judge = _graph_act(network, queue, max_forwards)  # pyright: ignore[reportArgumentType]  # flax makes it hashable
        except TypeError:  # the queue's order is an object that has no hash
            act, judge = _graph_act.__wrapped__(network, queue, max_forwards)
        return Policy(name, act, weights, asked=POSSIBLE, needs=ESTIMATES, judge=judge)

    def choose(key: PRNGKeyArray, offered: Offered, weights: PyTree) -> Choice:
        obs = offered.observation
        if sizes_of(obs) != sizes:
            raise UserError(
                f"checkpoint {name}: its flat network is for clusters of {_said(sizes)}, this one has"
                f" {_said(sizes_of(obs))}; train it here, or take a graph network"
            )
        return _likeliest(network, weights, obs, offered.menu)

    return menu_policy(name, choose, weights, queue, max_forwards, network.looks_ahead)


@functools.lru_cache(maxsize=32)
def _graph_act(network: SchedulerNetwork, queue: Discipline, max_forwards: int | None) -> tuple[Act, Judge]:
    """The same functions for all weights of a network, so that these share a compiled program."""

    def choose(key: PRNGKeyArray, offered: Offered, weights: PyTree) -> Choice:
        return _likeliest(network, weights, offered.observation, offered.menu)

    def judge(state: State, params: EnvParams, weights: PyTree) -> Judgement:
        params, obs = look(queue, max_forwards, state, params, network.looks_ahead)
        menu = build_menu(params, state, obs, network.looks_ahead, queue)
        heads = cast(Heads, network.apply(weights, obs, menu))
        logits, _ = option_logits(heads, obs, menu)
        _, entropy = log_prob_and_entropy(heads, obs, menu, most_likely(heads, obs, menu))
        chances = jax.nn.softmax(logits)
        return Judgement(act=jax.nn.sigmoid(heads.act), option=chances.max(-1), entropy=entropy, value=heads.value)

    return menu_act(choose, queue, max_forwards, network.looks_ahead), judge


def _likeliest(network: SchedulerNetwork, weights: PyTree, obs: Observation, menu: Menu) -> Choice:
    return most_likely(apply_alone(network, weights, obs, menu, BUSY.parts), obs, menu)


def sizes_of(obs: Observation) -> Sizes:
    """The sizes of the cluster that is observed."""
    p, n, k = obs.group_mask.shape
    return p, n, k, obs.rack.shape[1]


def _said(sizes: Sizes) -> str:
    return "{} schedulers x {} servers x {} GPU groups in {} racks each".format(*sizes)
