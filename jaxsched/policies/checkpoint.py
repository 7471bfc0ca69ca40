"""A policy on disk: weights and a card that says what they are, and back to a `Policy`."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxsched import cards
from jaxsched.cards import CARD_FILE, WEIGHTS_FILE
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.observation import Observation, observe
from jaxsched.env.queues import SWITCHES, Discipline
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import Menu, SchedulerNetwork
from jaxsched.networks.kinds import KINDS
from jaxsched.policies.base import Policy
from jaxsched.policies.learned import Sizes, learned_policy
from jaxsched.policies.menu import build_menu
from jaxsched.workload.jobs import make_job_list, to_table

WHAT = "checkpoint"  # what its card says that the folder holds
NETWORK_FIELDS = ("kind", "width", "exchange_rounds", "hierarchy", "prior", "may_wait")
QUEUE_FIELDS = tuple(field.name for field in dataclasses.fields(Discipline))
LATER = (*SWITCHES, "hysteresis", "quantum")  # what cards of earlier versions may not have


def save_policy(
    folder: Path,
    network: SchedulerNetwork,
    weights: PyTree,
    queue: Discipline,
    card: dict[str, Any],
    *,
    max_forwards: int | None = None,
    sizes: Sizes | None = None,
) -> None:
    """Write the folder of a `learned_policy`: its weights and a card with all else of it, versions, and `card`."""
    shape = {name: getattr(network, name) for name in NETWORK_FIELDS}
    needs = {"network": shape, "queue": dataclasses.asdict(queue), "max_forwards": max_forwards, "sizes": sizes}
    cards.write(folder, WHAT, weights, needs | card)


def add_to_card(folder: Path, **entries: Any) -> None:
    """Puts `entries` into the card of the checkpoint in `folder`, in place of those of the same name."""
    cards.update(folder, WHAT, **entries)


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the checkpoint in `folder`; UserError if there is none, or one of another schema."""
    return cards.read_card(folder, WHAT)


def _checked(path: str, card: dict) -> tuple[SchedulerNetwork, Discipline, int | None, Sizes | None]:
    """Network, queue discipline, forwards per job and the cluster sizes that a card names, all checked."""
    network, queue, most, sizes = card["network"], card["queue"], card["max_forwards"], card["sizes"]
    rules = [
        (set(network) == set(NETWORK_FIELDS), f"network must have the keys {', '.join(NETWORK_FIELDS)}"),
        ({*queue, *LATER} == set(QUEUE_FIELDS), f"queue must have the keys {', '.join(QUEUE_FIELDS)}"),
        (network.get("kind") in KINDS, f"network: kind must be one of {', '.join(KINDS)}"),
        (_whole(network.get("width"), 1), "network: width must be a whole number of at least 1"),
        (_whole(network.get("exchange_rounds"), 0), "network: exchange_rounds must be a whole number of at least 0"),
        (_whole(queue.get("window"), 1), "queue: window must be a whole number of at least 1"),
        *((type(queue.get(name, False)) is bool, f"queue: {name} must be true or false") for name in SWITCHES),
        (most is None or _whole(most, 0), "max_forwards must be a whole number of at least 0"),
        (network.get("kind") != "flat" or _are_sizes(sizes), "sizes of a flat network must be four whole numbers"),
    ]
    for holds, message in rules:
        if not holds:
            raise UserError(f"checkpoint {path}: {CARD_FILE}: {message}")
    try:
        discipline = Discipline(**queue)
    except UserError as error:
        raise UserError(f"checkpoint {path}: {CARD_FILE}: queue: {error}") from None
    return SchedulerNetwork(**network), discipline, most, tuple(sizes) if network["kind"] == "flat" else None


def _whole(value: object, lowest: int) -> bool:
    return type(value) is int and value >= lowest


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(_whole(size, 1) for size in value)


def _check_weights(
    path: str, queue: Discipline, network: SchedulerNetwork, sizes: Sizes | None, weights: PyTree
) -> None:
    """UserError unless `weights` are finite and have the shapes that `network` gives its parameters."""
    params = make_params(get_cluster("leaf-spine-2", 2))  # a graph network's shapes do not depend on the cluster
    job = to_table(make_job_list(submit_s=0.0, duration_s=1.0, workers=1), 60.0)

    def look() -> tuple[Observation, Menu]:
        state = initial_state(EnvConfig(), params, job)
        obs = observe(queue, params, state)
        return obs, build_menu(params, state, obs)

    def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(place): jnp.shape(leaf) for place, leaf in leaves}

    obs, menu = jax.eval_shape(look)
    if sizes is not None:
        obs, menu = _in_sizes(obs, menu, sizes)
    expected, found = shapes(jax.eval_shape(network.init, jax.random.key(0), obs, menu)), shapes(weights)
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"checkpoint {path}: {WEIGHTS_FILE}: {name} has shape {found.get(name, 'none')}, where the network of"
                f" {CARD_FILE} in this version has {expected.get(name, 'none')}"
            )


def _in_sizes(obs: Observation, menu: Menu, sizes: Sizes) -> tuple[Observation, Menu]:
    """The shapes of observation and menu on a cluster of other sizes."""
    p, n, k, t = sizes

    def resized(leaf: Any, *middle: int, keep: int) -> Any:  # a shape, where the types have arrays
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


def load_policy(path: str | Path, name: str | None = None) -> Policy:
    """The policy of a checkpoint's folder, by `name` or else the path. UserError if the folder does not hold one."""
    try:
        weights, card = cards.read(Path(path), WHAT)
        network, queue, max_forwards, sizes = _checked(str(path), card)
        _check_weights(str(path), queue, network, sizes, weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {path}: not a readable checkpoint ({' '.join(str(error).split())})") from error
    weights = jax.tree.map(jnp.asarray, weights)
    return learned_policy(name or str(path), network, weights, queue, max_forwards=max_forwards, sizes=sizes)
