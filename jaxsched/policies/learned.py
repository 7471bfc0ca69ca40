"""The learned policy: from network heads to a joint action, and from a checkpoint's weights to a `Policy`."""

import dataclasses
import json
from pathlib import Path

import chex
import flax
import jax
import jax.numpy as jnp
from flax import serialization
from jax import Array, lax

import jaxsched
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.observation import Observation, observe
from jaxsched.env.queues import ORDERS
from jaxsched.env.state import Action, EnvConfig, EnvParams, State, make_params, wait_action
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import Heads, Menu, SchedulerNetwork
from jaxsched.policies.base import Policy, place_or_forward
from jaxsched.policies.menu import build_menu
from jaxsched.workload.jobs import make_job_list, to_table

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
CARD_SCHEMA = 1
NETWORK_FIELDS = ("width", "exchange_rounds", "hierarchy", "prior", "may_wait")
OBSERVATION_FIELDS = ("window", "order", "skip_blocked")
_FAR = -1e9  # finite, so that a fully masked row has no NaN


@chex.dataclass(frozen=True)
class Choice:
    """One decision per scheduler; leading axis P."""

    act: Array  # bool[P], do something rather than wait
    option: Array  # int32[P], index into placements (W * C) followed by forwards (P)


def option_logits(heads: Heads, obs: Observation, menu: Menu) -> tuple[Array, Array]:
    """Logits `float32[P, W * C + P]` of everything that can be done, and which of it is legal, `bool` likewise."""
    p = heads.act.shape[0]
    mask = jnp.concatenate([menu.mask.reshape(p, -1), obs.forward_mask], -1)
    logits = jnp.concatenate([heads.place.reshape(p, -1), heads.forward], -1)
    return jnp.where(mask, logits, _FAR), mask


def sample(key: Array, heads: Heads, obs: Observation, menu: Menu) -> Choice:
    """A choice drawn from the policy; schedulers without a legal option wait."""
    logits, mask = option_logits(heads, obs, menu)
    act_key, option_key = jax.random.split(key)
    act = jax.random.uniform(act_key, heads.act.shape) < jax.nn.sigmoid(heads.act)
    return Choice(act=act & mask.any(-1), option=jax.random.categorical(option_key, logits).astype(jnp.int32))


def most_likely(heads: Heads, obs: Observation, menu: Menu) -> Choice:
    """The mode of each of the two decisions."""
    logits, mask = option_logits(heads, obs, menu)
    return Choice(act=(heads.act > 0) & mask.any(-1), option=jnp.argmax(logits, -1).astype(jnp.int32))


def log_prob_and_entropy(heads: Heads, obs: Observation, menu: Menu, choice: Choice) -> tuple[Array, Array]:
    """Log-probability and entropy `float32[P]` of a choice; both are 0 where no option is legal."""
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


def to_action(state: State, obs: Observation, menu: Menu, choice: Choice) -> Action:
    """The environment's action for a choice: the GPU group of every worker and PS, a forward, or waiting."""
    p, w, c, nk = menu.workers.shape
    schedulers = jnp.arange(p)
    place = choice.act & (choice.option < w * c)
    placement = jnp.minimum(choice.option, w * c - 1)
    workers = menu.workers.reshape(p, w * c, nk)[schedulers, placement].astype(jnp.int32)
    slot = jnp.take_along_axis(obs.job_slot, (placement // c)[:, None], -1)[:, 0]
    forward = choice.act & ~place
    target = jnp.clip(choice.option - w * c, 0, p - 1)
    return place_or_forward(state, place, slot, workers, forward, obs.job_slot[:, -1], target)


def learned_policy(name: str, config: EnvConfig, network: SchedulerNetwork, weights: chex.ArrayTree) -> Policy:
    """The deterministic policy of `weights`."""

    def act(key: Array, obs: Observation, state: State, params: EnvParams) -> Action:
        obs = observe(config, params, state)  # in the window and order that the weights were trained with

        def decide() -> Action:
            menu = build_menu(config, params, state, obs)
            heads = network.apply(weights, obs, menu)
            return to_action(state, obs, menu, most_likely(heads, obs, menu))

        something = obs.job_mask[:, :-1].any() | obs.forward_mask.any()
        return lax.cond(something, decide, lambda: wait_action(params.cluster))

    return Policy(name, act)


def save_policy(
    folder: Path, network: SchedulerNetwork, weights: chex.ArrayTree, card: dict, config: EnvConfig | None = None
) -> None:
    """Write `weights.msgpack` and `card.json` (network, what it observes, versions, and `card`) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {name: getattr(network, name) for name in NETWORK_FIELDS}
    seen = {name: getattr(config or EnvConfig(), name) for name in OBSERVATION_FIELDS}
    versions = {"jaxsched": jaxsched.__version__, "jax": jax.__version__, "flax": flax.__version__}
    card = {"schema": CARD_SCHEMA, "network": shape, "observation": seen, "versions": versions} | card
    for name, content in (
        (WEIGHTS_FILE, serialization.to_bytes(weights)),
        (CARD_FILE, json.dumps(card, indent=2).encode()),
    ):
        partial = folder / f".{name}.partial"
        partial.write_bytes(content)
        partial.replace(folder / name)


def _read_card(path: str) -> tuple[dict, dict]:
    """The network's and the observation's fields of a checkpoint's card, checked."""
    card = json.loads((Path(path) / CARD_FILE).read_text())
    if card["schema"] != CARD_SCHEMA:
        raise UserError(f"checkpoint {path}: schema {card['schema']}, this version reads schema {CARD_SCHEMA}")
    network, seen = card["network"], card["observation"]
    rules = [
        (set(network) == set(NETWORK_FIELDS), f"network must have the keys {', '.join(NETWORK_FIELDS)}"),
        (set(seen) == set(OBSERVATION_FIELDS), f"observation must have the keys {', '.join(OBSERVATION_FIELDS)}"),
        (_whole(network.get("width"), 1), "network: width must be a whole number of at least 1"),
        (_whole(network.get("exchange_rounds"), 0), "network: exchange_rounds must be a whole number of at least 0"),
        (_whole(seen.get("window"), 1), "observation: window must be a whole number of at least 1"),
        (seen.get("order") in ORDERS, f"observation: order must be one of {', '.join(ORDERS)}"),
    ]
    for holds, message in rules:
        if not holds:
            raise UserError(f"checkpoint {path}: {CARD_FILE}: {message}")
    return network, seen


def _whole(value: object, lowest: int) -> bool:
    return type(value) is int and value >= lowest


def _check_weights(path: str, config: EnvConfig, network: SchedulerNetwork, weights: chex.ArrayTree) -> None:
    """UserError unless `weights` are finite and have the shapes that `network` gives its parameters."""
    params = make_params(get_cluster("leaf-spine-2", 2))  # no parameter's shape depends on the cluster
    job = to_table(make_job_list(submit_s=0.0, duration_s=1.0, workers=1), 60.0)

    def init(key: Array) -> chex.ArrayTree:
        state = initial_state(config, params, job)
        obs = observe(config, params, state)
        return network.init(key, obs, build_menu(config, params, state, obs))

    def shapes(tree: chex.ArrayTree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(place): jnp.shape(leaf) for place, leaf in leaves}

    expected, found = shapes(jax.eval_shape(init, jax.random.key(0))), shapes(weights)
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"checkpoint {path}: {WEIGHTS_FILE}: {name} has shape {found.get(name, 'none')}, where the network of"
                f" {CARD_FILE} in this version has {expected.get(name, 'none')}"
            )
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(weights)):
        raise UserError(f"checkpoint {path}: {WEIGHTS_FILE} holds weights that are not finite numbers")


def load_policy(path: str, config: EnvConfig) -> Policy:
    """The policy of a checkpoint folder; raises UserError if the folder does not hold one."""
    folder = Path(path)
    for name in (CARD_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise UserError(f"checkpoint {path}: no file {name}; a checkpoint holds {CARD_FILE} and {WEIGHTS_FILE}")
    try:
        shape, seen = _read_card(path)
        weights = serialization.msgpack_restore((folder / WEIGHTS_FILE).read_bytes())
        network, config = SchedulerNetwork(**shape), dataclasses.replace(config, **seen)
        _check_weights(path, config, network, weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {path}: not a readable checkpoint ({' '.join(str(error).split())})") from error
    return learned_policy(path, config, network, jax.tree.map(jnp.asarray, weights))
