"""The learned policy: from network heads to a joint action, and from a checkpoint's weights to a `Policy`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

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
from jaxsched.networks.hierarchy import KINDS, Heads, Menu, SchedulerNetwork
from jaxsched.policies.base import Policy, place_or_forward
from jaxsched.policies.menu import build_menu
from jaxsched.workload.jobs import make_job_list, to_table

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
CARD_SCHEMA = 1
NETWORK_FIELDS = ("kind", "width", "exchange_rounds", "hierarchy", "prior", "may_wait")
OBSERVATION_FIELDS = ("window", "order", "skip_blocked")
_FAR = -1e9  # finite, so that a fully masked row has no NaN


Sizes = tuple[int, int, int, int]  # of arrays: schedulers, servers of each, GPU groups of a server, racks of each


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


def learned_policy(
    name: str,
    config: EnvConfig,
    network: SchedulerNetwork,
    weights: chex.ArrayTree,
    *,
    max_forwards: int | None = None,
    sizes: Sizes | None = None,
) -> Policy:
    """The deterministic policy of `weights`.

    It forwards a job at most `max_forwards` times, if given. On a cluster of other than the `sizes` it was trained for,
    if given, it raises UserError when it is traced.
    """

    def act(key: Array, obs: Observation, state: State, params: EnvParams) -> Action:
        if sizes is not None and sizes_of(obs) != sizes:
            raise UserError(
                f"checkpoint {name}: its flat network is for clusters of {_said(sizes)}, this one has"
                f" {_said(sizes_of(obs))}; train it here, or take a graph network"
            )
        if max_forwards is not None:
            params = params.replace(max_forwards=jnp.minimum(params.max_forwards, max_forwards))
        obs = observe(config, params, state)  # in the window and order that the weights were trained with

        def decide() -> Action:
            menu = build_menu(config, params, state, obs)
            heads = network.apply(weights, obs, menu)
            return to_action(state, obs, menu, most_likely(heads, obs, menu))

        something = obs.job_mask[:, :-1].any() | obs.forward_mask.any()
        return lax.cond(something, decide, lambda: wait_action(params.cluster))

    return Policy(name, act)


def sizes_of(obs: Observation) -> Sizes:
    """The sizes of the cluster that is observed."""
    p, n, k = obs.group_mask.shape
    return p, n, k, obs.rack.shape[1]


def _said(sizes: Sizes) -> str:
    return "{} schedulers x {} servers x {} GPU groups in {} racks each".format(*sizes)


def save_policy(
    folder: Path, network: SchedulerNetwork, weights: chex.ArrayTree, card: dict, config: EnvConfig | None = None
) -> None:
    """Write `weights.msgpack` and `card.json` (network, what it observes, versions, and `card`) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {name: getattr(network, name) for name in NETWORK_FIELDS}
    seen = {name: getattr(config or EnvConfig(), name) for name in OBSERVATION_FIELDS}
    versions = {"jaxsched": jaxsched.__version__, "jax": jax.__version__, "flax": flax.__version__}
    card = {"schema": CARD_SCHEMA, "network": shape, "observation": seen, "versions": versions} | card
    _write(folder / WEIGHTS_FILE, serialization.to_bytes(weights))
    _write(folder / CARD_FILE, json.dumps(card, indent=2).encode())


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def add_to_card(folder: Path, **entries: Any) -> None:
    """Puts `entries` into the card of the checkpoint in `folder`, in place of those of the same name."""
    _write(folder / CARD_FILE, json.dumps(read_card(folder) | entries, indent=2).encode())


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the checkpoint in `folder`; UserError if there is none, or one of another schema."""
    try:
        card = json.loads((folder / CARD_FILE).read_text())
        schema = card["schema"]
    except OSError:
        raise UserError(f"checkpoint {folder}: no file {CARD_FILE}; name the folder of a checkpoint") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"checkpoint {folder}: {CARD_FILE} is not a card ({' '.join(str(error).split())})") from None
    if schema != CARD_SCHEMA:
        raise UserError(f"checkpoint {folder}: schema {schema}, this version reads schema {CARD_SCHEMA}")
    return card


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's folder holds."""

    name: str
    network: SchedulerNetwork
    seen: dict[str, Any]  # what it observes
    weights: chex.ArrayTree
    max_forwards: int | None
    sizes: Sizes | None  # of the clusters that it is for; None: any

    def policy(self, config: EnvConfig, weights: chex.ArrayTree | None = None) -> Policy:
        """Its policy, in an environment of `config`; with `weights` in place of its own."""
        return learned_policy(
            self.name,
            dataclasses.replace(config, **self.seen),
            self.network,
            self.weights if weights is None else weights,
            max_forwards=self.max_forwards,
            sizes=self.sizes,
        )


def _checked(path: str, card: dict) -> dict:
    """The card, of which network and observation have been checked."""
    network, seen, sizes = {"kind": "graph"} | card["network"], card["observation"], card.get("sizes")
    most = card.get("max_forwards")
    rules = [
        (set(network) == set(NETWORK_FIELDS), f"network must have the keys {', '.join(NETWORK_FIELDS)}"),
        (set(seen) == set(OBSERVATION_FIELDS), f"observation must have the keys {', '.join(OBSERVATION_FIELDS)}"),
        (network.get("kind") in KINDS, f"network: kind must be one of {', '.join(KINDS)}"),
        (_whole(network.get("width"), 1), "network: width must be a whole number of at least 1"),
        (_whole(network.get("exchange_rounds"), 0), "network: exchange_rounds must be a whole number of at least 0"),
        (_whole(seen.get("window"), 1), "observation: window must be a whole number of at least 1"),
        (seen.get("order") in ORDERS, f"observation: order must be one of {', '.join(ORDERS)}"),
        (most is None or _whole(most, 0), "max_forwards must be a whole number of at least 0"),
        (network.get("kind") != "flat" or _are_sizes(sizes), "sizes of a flat network must be four whole numbers"),
    ]
    for holds, message in rules:
        if not holds:
            raise UserError(f"checkpoint {path}: {CARD_FILE}: {message}")
    return card | {"network": network}


def _whole(value: object, lowest: int) -> bool:
    return type(value) is int and value >= lowest


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(_whole(size, 1) for size in value)


def _check_weights(path: str, config: EnvConfig, network: SchedulerNetwork, sizes: Sizes | None, weights) -> None:
    """UserError unless `weights` are finite and have the shapes that `network` gives its parameters."""
    params = make_params(get_cluster("leaf-spine-2", 2))  # a graph network's shapes do not depend on the cluster
    job = to_table(make_job_list(submit_s=0.0, duration_s=1.0, workers=1), 60.0)

    def look() -> tuple[Observation, Menu]:
        state = initial_state(config, params, job)
        obs = observe(config, params, state)
        return obs, build_menu(config, params, state, obs)

    def shapes(tree: chex.ArrayTree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(place): jnp.shape(leaf) for place, leaf in leaves}

    seen = jax.eval_shape(look)
    if sizes is not None:
        seen = _in_sizes(*seen, sizes)
    expected, found = shapes(jax.eval_shape(network.init, jax.random.key(0), *seen)), shapes(weights)
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"checkpoint {path}: {WEIGHTS_FILE}: {name} has shape {found.get(name, 'none')}, where the network of"
                f" {CARD_FILE} in this version has {expected.get(name, 'none')}"
            )
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(weights)):
        raise UserError(f"checkpoint {path}: {WEIGHTS_FILE} holds weights that are not finite numbers")


def _in_sizes(obs: Observation, menu: Menu, sizes: Sizes) -> tuple[Observation, Menu]:
    """The shapes of observation and menu on a cluster of other sizes."""
    p, n, k, t = sizes

    def resized(leaf: Any, *middle: int, keep: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((p, *middle, *leaf.shape[leaf.ndim - keep :]), leaf.dtype)

    obs = Observation(
        group=resized(obs.group, n, k, keep=1),
        group_mask=resized(obs.group_mask, n, k, keep=0),
        server=resized(obs.server, n, keep=1),
        server_rack=resized(obs.server_rack, n, keep=0),
        rack=resized(obs.rack, t, keep=1),
        scheduler=resized(obs.scheduler, keep=1),
        job=resized(obs.job, keep=2),
        job_slot=resized(obs.job_slot, keep=1),
        job_mask=resized(obs.job_mask, keep=1),
        forward_mask=resized(obs.forward_mask, p, keep=0),
    )
    w, c = menu.mask.shape[1:]
    menu = jax.tree.map(lambda leaf: resized(leaf, keep=leaf.ndim - 1), menu)
    return obs, menu.replace(workers=resized(menu.workers, w, c, n * k, keep=0))


def load_checkpoint(path: str, config: EnvConfig | None = None) -> Checkpoint:
    """The checkpoint in a folder; UserError if the folder does not hold one."""
    folder = Path(path)
    for name in (CARD_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise UserError(f"checkpoint {path}: no file {name}; a checkpoint holds {CARD_FILE} and {WEIGHTS_FILE}")
    try:
        card = _checked(path, read_card(folder))
        weights = serialization.msgpack_restore((folder / WEIGHTS_FILE).read_bytes())
        network, seen = SchedulerNetwork(**card["network"]), card["observation"]
        sizes = tuple(card["sizes"]) if network.kind == "flat" else None
        _check_weights(path, dataclasses.replace(config or EnvConfig(), **seen), network, sizes, weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {path}: not a readable checkpoint ({' '.join(str(error).split())})") from error
    return Checkpoint(path, network, seen, jax.tree.map(jnp.asarray, weights), card.get("max_forwards"), sizes)


def load_policy(path: str, config: EnvConfig) -> Policy:
    """The policy of a checkpoint folder; raises UserError if the folder does not hold one."""
    return load_checkpoint(path, config).policy(config)
