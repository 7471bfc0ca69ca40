"""A policy on disk: weights and a card that says what they are, and back to a `Policy`."""

import dataclasses
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxsched import cards
from jaxsched.cards import CARD_FILE, WEIGHTS_FILE
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.observation import Observation, observe
from jaxsched.env.queues import ORDERS
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import KINDS, Menu, SchedulerNetwork
from jaxsched.policies.base import Policy
from jaxsched.policies.learned import Sizes, learned_policy
from jaxsched.policies.menu import build_menu
from jaxsched.workload.jobs import make_job_list, to_table

WHAT = "checkpoint"  # what its card says that the folder holds
NETWORK_FIELDS = ("kind", "width", "exchange_rounds", "hierarchy", "prior", "may_wait")
OBSERVATION_FIELDS = ("window", "order", "skip_blocked", "reserve")


def save_policy(
    folder: Path, network: SchedulerNetwork, weights: chex.ArrayTree, card: dict, config: EnvConfig | None = None
) -> None:
    """Write the policy and its card (network, what it observes, versions, and `card`) into `folder`."""
    shape = {name: getattr(network, name) for name in NETWORK_FIELDS}
    seen = {name: getattr(config or EnvConfig(), name) for name in OBSERVATION_FIELDS}
    cards.write(folder, WHAT, weights, {"network": shape, "observation": seen} | card)


def add_to_card(folder: Path, **entries: Any) -> None:
    """Puts `entries` into the card of the checkpoint in `folder`, in place of those of the same name."""
    cards.update(folder, WHAT, **entries)


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the checkpoint in `folder`; UserError if there is none, or one of another schema."""
    return cards.read_card(folder, WHAT)


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
    network, sizes = {"kind": "graph"} | card["network"], card.get("sizes")
    seen = {"reserve": False} | card["observation"]
    most = card.get("max_forwards")
    rules = [
        (set(network) == set(NETWORK_FIELDS), f"network must have the keys {', '.join(NETWORK_FIELDS)}"),
        (set(seen) == set(OBSERVATION_FIELDS), f"observation must have the keys {', '.join(OBSERVATION_FIELDS)}"),
        (network.get("kind") in KINDS, f"network: kind must be one of {', '.join(KINDS)}"),
        (_whole(network.get("width"), 1), "network: width must be a whole number of at least 1"),
        (_whole(network.get("exchange_rounds"), 0), "network: exchange_rounds must be a whole number of at least 0"),
        (_whole(seen.get("window"), 1), "observation: window must be a whole number of at least 1"),
        (type(seen.get("reserve")) is bool, "observation: reserve must be true or false"),
        (seen.get("order") in ORDERS, f"observation: order must be one of {', '.join(ORDERS)}"),
        (most is None or _whole(most, 0), "max_forwards must be a whole number of at least 0"),
        (network.get("kind") != "flat" or _are_sizes(sizes), "sizes of a flat network must be four whole numbers"),
    ]
    for holds, message in rules:
        if not holds:
            raise UserError(f"checkpoint {path}: {CARD_FILE}: {message}")
    return card | {"network": network, "observation": seen}


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
    options = menu.mask.shape[1]
    menu = jax.tree.map(lambda leaf: resized(leaf, keep=leaf.ndim - 1), menu)
    return obs, menu.replace(workers=resized(menu.workers, options, n * k, keep=0))


def load_checkpoint(path: str, config: EnvConfig | None = None) -> Checkpoint:
    """The checkpoint in a folder; UserError if the folder does not hold one."""
    try:
        weights, card = cards.read(Path(path), WHAT)
        card = _checked(path, card)
        network, seen = SchedulerNetwork(**card["network"]), card["observation"]
        sizes = tuple(card["sizes"]) if network.kind == "flat" else None
        _check_weights(path, dataclasses.replace(config or EnvConfig(), **seen), network, sizes, weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {path}: not a readable checkpoint ({' '.join(str(error).split())})") from error
    return Checkpoint(path, network, seen, jax.tree.map(jnp.asarray, weights), card.get("max_forwards"), sizes)


def load_policy(path: str, config: EnvConfig) -> Policy:
    """The policy of a checkpoint folder; raises UserError if the folder does not hold one."""
    return load_checkpoint(path, config).policy(config)
