"""A policy on disk: weights and a card that says what they are, and back to a `Policy`."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import PyTree
from msgspec import Meta

from jaxsched.cluster.presets import get_cluster
from jaxsched.env.observation import Menu, Observation
from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE
from jaxsched.io.schema import Count, Size, Text, convert
from jaxsched.networks import KINDS, MOST_EXCHANGES, MOST_WIDTH
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.learned import Sizes, learned_policy
from jaxsched.policies.menu import shapes_shown
from jaxsched.policies.policy import Policy

WHAT = "checkpoint"  # what its card says that the folder holds
OLD_NETWORK_FIELDS = ("kind", "width", "exchange_rounds", "hierarchy", "prior", "may_wait")
LATER_NETWORK_FIELDS = ("looks_ahead",)  # that cards of earlier versions do not have
NETWORK_FIELDS = OLD_NETWORK_FIELDS + LATER_NETWORK_FIELDS
QUEUE_FIELDS = ("order", "window")
LATER_FIELDS = tuple(field.name for field in dataclasses.fields(Discipline) if field.name not in QUEUE_FIELDS)


def save_policy(
    folder: str | Path,
    network: SchedulerNetwork,
    weights: PyTree,
    queue: Discipline,
    card: dict[str, Any],
    *,
    max_forwards: int | None = None,
    sizes: Sizes | None = None,
) -> None:
    """Write the folder of a `learned_policy`.

    Args:
        folder: made if it is not there.
        network: what the weights are of.
        weights: as `network.init` has them.
        queue: what the policy sees of queues.
        card: what else its card says.
        max_forwards: of a job, at most.
        sizes: of the cluster, if the network is for these only.

    Raises:
        UserError: the folder cannot be written.
    """
    shape = {name: getattr(network, name) for name in NETWORK_FIELDS}
    needs = {"network": shape, "queue": dataclasses.asdict(queue), "max_forwards": max_forwards, "sizes": sizes}
    cards.write(Path(folder), WHAT, weights, needs | card)


def add_to_card(folder: Path, **entries: Any) -> None:
    """Puts `entries` into the card of the checkpoint in `folder`, in place of those of the same name."""
    cards.update(folder, WHAT, **entries)


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the checkpoint in `folder`; UserError if there is none, one of another schema, or not as `Card`."""
    card = cards.read_card(folder, WHAT)
    check_card(str(folder), card)
    return card


_LIMITS = {  # of what a card names as sizes: beyond them compiling would not end
    "kind": Literal[KINDS],
    "width": Annotated[int, Meta(ge=1, le=MOST_WIDTH)],
    "exchange_rounds": Annotated[int, Meta(ge=0, le=MOST_EXCHANGES)],
    "window": Annotated[int, Meta(ge=1, le=1 << 16)],
    "order": Text,
}


def _struct(name: str, of: type, required: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """A schema of these fields of a class, no others; those that are left out are as the class has them."""
    hints = get_type_hints(of)
    fields = [(field, _LIMITS.get(field, hints[field])) for field in required]
    fields += [(field, hints[field], getattr(of, field)) for field in optional]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


class Card(msgspec.Struct, kw_only=True):
    """What the card of a checkpoint holds. The rest is there where it was trained here."""

    network: _struct("Network", SchedulerNetwork, OLD_NETWORK_FIELDS, LATER_NETWORK_FIELDS)  # pyright: ignore[reportInvalidTypeForm]
    queue: _struct("Queue", Discipline, QUEUE_FIELDS, LATER_FIELDS)  # pyright: ignore[reportInvalidTypeForm]
    max_forwards: Count | None
    sizes: tuple[Size, Size, Size, Size] | None
    config: dict[str, dict[str, Any] | int] = {}
    chunk: Count = 0
    validation_jct_s: float | None = None
    curve: list[tuple[Count, float | None]] = []
    commands: dict[str, Text] = {}
    figures: list[cards.Evaluation] = []
    limits: Text = ""
    device: Text = ""


def check_card(path: str, card: dict[str, Any]) -> tuple[SchedulerNetwork, Discipline, int | None, Sizes | None]:
    """Network, queue discipline, forwards per job and cluster sizes of a card. UserError on what is not as `Card`."""
    where = f"checkpoint {path}: {CARD_FILE}"
    read: Card = convert(Card, card, where)
    flat = read.network.kind == "flat"
    if flat and read.sizes is None:
        raise UserError(f"{where}: sizes of a flat network must be four whole numbers")
    try:
        discipline = Discipline(**msgspec.structs.asdict(read.queue))
    except UserError as error:
        raise UserError(f"{where}: queue: {error}") from None
    network = SchedulerNetwork(**msgspec.structs.asdict(read.network))
    return network, discipline, read.max_forwards, read.sizes if flat else None


def _check_weights(
    path: str, queue: Discipline, network: SchedulerNetwork, sizes: Sizes | None, weights: PyTree
) -> None:
    """UserError unless `weights` are finite and have the shapes that `network` gives its parameters."""
    expected = _shapes_of(queue, network, sizes)  # pyright: ignore[reportArgumentType]  # flax makes it hashable
    found = _shapes(weights)
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"checkpoint {path}: {WEIGHTS_FILE}: {name} has shape {found.get(name, 'none')}, where the network of"
                f" {CARD_FILE} in this version has {expected.get(name, 'none')}"
            )


@functools.lru_cache(maxsize=32)
def _shapes_of(queue: Discipline, network: SchedulerNetwork, sizes: Sizes | None) -> dict[str, str]:
    """What `_shapes` says of the network's parameters; a sweep's policies have the same."""
    # a graph network's shapes do not depend on the cluster
    obs, menu = shapes_shown(queue, get_cluster("leaf-spine-2", 2), network.looks_ahead)
    if sizes is not None:
        obs, menu = _in_sizes(obs, menu, sizes)
    return _shapes(jax.eval_shape(network.init, jax.random.key(0), obs, menu))


def _shapes(tree: PyTree) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(place): f"{leaf.dtype} {leaf.shape}" for place, leaf in leaves}


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
    """The policy of a checkpoint's folder.

    Args:
        path: the folder.
        name: of the policy in tables; the path if None.

    Raises:
        UserError: the folder holds none, or its card or weights are not as they should be.
    """
    try:
        weights, card = cards.read(Path(path), WHAT)
        network, queue, max_forwards, sizes = check_card(str(path), card)
        _check_weights(str(path), queue, network, sizes, weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {path}: not a readable checkpoint ({' '.join(str(error).split())})") from error
    weights = jax.tree.map(jnp.asarray, weights)
    return learned_policy(name or str(path), network, weights, queue, max_forwards=max_forwards, sizes=sizes)
