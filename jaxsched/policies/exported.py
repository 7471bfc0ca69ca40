"""A checkpoint's decisions as one StableHLO program: for other runtimes, and to be played without flax or training."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import msgspec
from jax.custom_batching import sequential_vmap
from jaxtyping import PRNGKeyArray, PyTree

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.observation import Choice, Menu, Observation
from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.files import read_bytes, write_bytes
from jaxsched.io.schema import Count, Text, convert
from jaxsched.policies.menu import Offered, menu_policy, shapes_shown
from jaxsched.policies.policy import Policy

if TYPE_CHECKING:
    from jax.export import Exported

WHAT = "exported policy"  # what its card says that the folder holds
PROGRAM_FILE = "policy.stablehlo"
MOST_BYTES = 1 << 28
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
Leaf = tuple[Text, Text, tuple[Count, ...]]  # name, dtype and shape of an array


class Card(msgspec.Struct, kw_only=True):
    """What the card of an exported policy holds."""

    inputs: list[Leaf]  # of the program, in order
    outputs: list[Leaf]
    queue: dict[str, Any]
    forwards: Count | None  # of a job, at most
    platforms: list[Text]
    checkpoint: Text = ""
    looks_ahead: bool = False  # as in `SchedulerNetwork`


def export_policy(
    checkpoint: str | Path, cluster: Cluster, folder: str | Path, platforms: tuple[str, ...] = ("cpu",)
) -> None:
    """Write the decisions of a checkpoint on a cluster as a program in StableHLO, weights included, and a card.

    The program maps what schedulers observe and are offered (`Observation`, `Menu`) to what they do (`Choice`), by
    their most likely choice. The card has name, dtype and shape of all its arrays. It is for clusters of these sizes,
    whatever their links, and for any jobs.

    Args:
        checkpoint: its folder.
        cluster: of `get_cluster`, say.
        folder: made if it is not there.
        platforms: that shall run it, of `PLATFORMS`.

    Raises:
        UserError: there is no such checkpoint or platform, `flatbuffers` is not installed, or the folder cannot be
            written.
    """
    from jaxsched.policies.checkpoint import check_card, load_policy, read_card
    from jaxsched.policies.learned import most_likely

    if not platforms or not set(platforms) <= set(PLATFORMS):
        raise UserError(
            f"export: platforms: {', '.join(platforms) or 'none'} should each be one of {', '.join(PLATFORMS)}"
        )
    jax_export = _library()
    cards.check_free(Path(folder), WHAT, "export")
    weights = load_policy(checkpoint).weights
    network, queue, most, _ = check_card(str(checkpoint), read_card(Path(checkpoint)))

    def decide(obs: Observation, menu: Menu) -> Choice:
        heads: Any = network.apply(weights, obs, menu)  # flax cannot know what it returns
        return most_likely(heads, obs, menu)

    shapes = shapes_shown(queue, cluster, network.looks_ahead)
    tree = jax.tree.structure(shapes)
    flat = jax.jit(lambda *leaves: tuple(jax.tree.leaves(decide(*jax.tree.unflatten(tree, leaves)))))
    program = jax_export.export(flat, platforms=platforms)(*jax.tree.leaves(shapes))
    card = Card(
        inputs=_leaves(shapes),
        outputs=_leaves(jax.eval_shape(decide, *shapes)),
        queue=dataclasses.asdict(queue),
        forwards=most,
        platforms=list(platforms),
        checkpoint=Path(checkpoint).name,
        looks_ahead=network.looks_ahead,
    )
    cards.write_card(Path(folder), WHAT, msgspec.structs.asdict(card))
    write_bytes(Path(folder) / PROGRAM_FILE, bytes(program.serialize()))


def load_exported(folder: str | Path, name: str | None = None) -> Policy:
    """The policy of a folder of `export_policy`, by `name` or else the path.

    UserError if the folder holds none, or `flatbuffers` is not installed; when it is played, on a cluster of other
    sizes.
    """
    card: Card = convert(Card, cards.read_card(Path(folder), WHAT), f"{WHAT} {folder}: {CARD_FILE}")
    program, queue = _program(Path(folder)), Discipline(**card.queue)
    run = sequential_vmap(lambda *leaves: tuple(program.call(*leaves)))  # a program for one world has no batched form

    def choose(key: PRNGKeyArray, offered: Offered, weights: PyTree) -> Choice:
        shown = (offered.observation, offered.menu)
        for wanted, found in zip(card.inputs, _leaves(shown), strict=True):
            if wanted != found:
                raise UserError(f"{WHAT} {folder}: is for {_said(wanted)}, this cluster has {_said(found)}")
        act, option = run(*jax.tree.leaves(shown))
        return Choice(act=act, option=option)

    return menu_policy(name or str(folder), choose, None, queue, card.forwards, card.looks_ahead)


def _program(folder: Path) -> "Exported":
    jax_export = _library()
    content = read_bytes(folder / PROGRAM_FILE, MOST_BYTES)
    try:
        program = jax_export.deserialize(bytearray(content))
    except Exception as error:  # flatbuffers raises whatever a wrong offset leads to
        raise UserError(f"{WHAT} {folder}: {PROGRAM_FILE} is not readable ({type(error).__name__})") from None
    if jax.default_backend() not in [{"cuda": "gpu", "rocm": "gpu"}.get(one, one) for one in program.platforms]:
        raise UserError(f"{WHAT} {folder}: is for {', '.join(program.platforms)}, this is {jax.default_backend()}")
    return program


def _library() -> Any:
    try:
        import flatbuffers  # noqa: F401  # jax.export needs it
        from jax import export
    except ImportError:
        raise UserError("export: needs flatbuffers; install jaxsched[export]") from None
    return export


def _leaves(tree: PyTree) -> list[Leaf]:
    """Name, dtype and shape of the arrays, `observation.group` for one."""
    named = ("observation", "menu")
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = [named[key.idx] if isinstance(key, jax.tree_util.SequenceKey) else str(key).strip(".") for key in path]
        found.append((".".join(keys), str(jnp.dtype(leaf.dtype)), tuple(leaf.shape)))
    return found


def _said(leaf: Leaf) -> str:
    name, dtype, shape = leaf
    return f"{name} {dtype}{list(shape)}"
