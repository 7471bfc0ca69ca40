"""A learned allocation: a small network gives every job a weight in the sum that a rule makes large.

The rule is `pollux` on one GPU type and `sia-greedy` on several. The network sees neither how much work is left nor
the name of the application (docs/semantics.md, section 13).
"""

import functools
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import msgspec
from jaxtyping import Array, Float64
from msgspec import Meta

from jaxsched.adaptive.choosing import by_gain, greedy, harm, values, whole_choices
from jaxsched.adaptive.view import Allocation, AllocationPolicy, View, whole_nodes
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.schema import Text, convert
from jaxsched.policies.registry import OF_PROFILES

WHAT = OF_PROFILES  # what a card says that its folder holds
KINDS = ("one GPU type", "several GPU types")
HIDDEN, FEATURES = 10, 10
NUMBERS = (FEATURES + 1) * HIDDEN + HIDDEN
MOST_LOG = 4.0  # of a weight
_MINUTE = 60.0


def paces(view: View) -> tuple[Float64[Array, "J"], Float64[Array, "J"], Float64[Array, "J"]]:
    """Goodput with the fewest GPUs, with a fair share, and with four times the fewest, on the type where it is most.

    Of each job, in progress a second.
    """
    share = view.total // jnp.maximum(view.active.sum(), 1)

    def at(gpus, t: int) -> Float64[Array, "J"]:
        return view.goodput_at(jnp.clip(gpus, view.least_gpus, view.most_gpus)[:, None], t)[:, 0]

    types = range(len(view.widths))
    fewest = functools.reduce(jnp.maximum, [at(view.least_gpus, t) for t in types])
    fair = functools.reduce(jnp.maximum, [at(share[t], t) for t in types])
    more = functools.reduce(jnp.maximum, [at(4 * view.least_gpus, t) for t in types])
    return fewest, fair, more


def features(view: View) -> Float64[Array, "J F"]:
    """What the network sees of every job: logarithms of minutes, of goodputs and of GPUs, brought near to -1 to 1."""
    fewest, fair, more = paces(view)
    age_s = jnp.maximum(view.age_s, 0.0)  # jobs that are yet to come have no logarithm of it
    return jnp.stack(
        [
            jnp.log1p(view.progress / fair / _MINUTE) / 2 - 1,
            jnp.log1p(age_s / _MINUTE) / 2 - 1,
            jnp.log1p(view.service / _MINUTE) / 2 - 1,
            jnp.log(jnp.maximum(fewest, 1e-9)) / 2,
            jnp.log(jnp.maximum(fair / fewest, 1e-9)),
            jnp.log(jnp.maximum(more / fewest, 1e-9)) * 2 - 2,
            jnp.full(view.gpus.shape, jnp.log(jnp.maximum(view.active.sum(), 1) / view.total.sum())),
            view.restarts / 5.0 - 1,
            (view.gpus > 0) * 1.0,
            jnp.log1p(view.gpus) - 1,
        ],
        axis=-1,
    )


def network(numbers: Float64[Array, "NUMBERS"], view: View) -> Float64[Array, "J"]:
    """Weights of jobs, between `exp(-MOST_LOG)` and `exp(MOST_LOG)`; `numbers` are those of both layers."""
    first = numbers[: (FEATURES + 1) * HIDDEN].reshape(FEATURES + 1, HIDDEN)
    hidden = jnp.tanh(features(view) @ first[:-1] + first[-1])
    return jnp.exp(jnp.clip(hidden @ numbers[-HIDDEN:], -MOST_LOG, MOST_LOG))


def weighted(weight: Float64[Array, "J"], view: View) -> Allocation:
    """The rule, with weights of jobs."""
    if len(view.widths) == 1:
        choices = whole_choices(view)
        return Allocation(gpus=choices[by_gain(harm(view, choices) * weight[:, None], choices, view.total[:1])])
    return greedy(view, values(view) * weight[:, None])


class Card(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the card of a learned allocation holds."""

    what: str
    schema: int
    versions: dict[str, str]
    numbers: dict[str, Annotated[tuple[float, ...], Meta(min_length=NUMBERS, max_length=NUMBERS)]]  # by `KINDS`
    learned_from: dict[str, Any] = {}
    judged: dict[str, Any] = {}
    commands: dict[str, Text] = {}
    limits: Text = ""


def save(folder: Path, numbers: dict[str, list[float]], **card: Any) -> None:
    """Write the folder of a learned allocation. `numbers` are those of the network, by `KINDS`."""
    cards.write_card(folder, WHAT, {"numbers": numbers, **card})


def load(folder: Path, name: str) -> AllocationPolicy:
    """The policy of a folder. UserError if it holds none, or is asked for GPU types that it has not learned."""
    card = convert(Card, cards.read_card(folder, WHAT), f"{WHAT} {folder}: {cards.CARD_FILE}")

    def allocate(view: View) -> Allocation:
        kind = KINDS[len(view.widths) > 1]
        if kind not in card.numbers:
            raise UserError(f"{name}: has learned {', '.join(card.numbers) or 'nothing'}, the cluster has {kind}")
        return weighted(network(jnp.asarray(card.numbers[kind]), view), view)

    return AllocationPolicy(name, allocate, whole_nodes)
