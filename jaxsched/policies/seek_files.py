"""Numbers by which jobs are sent to other partitions, on disk: a card that holds them, and back to a `Policy`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.schema import converted
from jaxsched.policies.evolved_card import EvolvedCard
from jaxsched.policies.policy import Policy
from jaxsched.policies.seek_weights import LARGEST, SeekWeights
from jaxsched.policies.spec import parse_spec
from jaxsched.semantics import SEEK_INPUTS

WHAT = "seeking"  # what its card says that the folder holds
PLAYED = "greedy-wait:sjf+spread+lifetime+reserve"  # all of such a policy but the numbers

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]


class Card(EvolvedCard):
    """What the card of such a policy holds."""

    numbers: Annotated[tuple[Number, ...], Meta(min_length=SEEK_INPUTS, max_length=SEEK_INPUTS)]


def save_seeking(folder: Path, weights: SeekWeights, card: dict[str, Any]) -> None:
    """Write the folder: a card with the numbers, versions, and `card`. UserError if it cannot be written."""
    cards.write_card(folder, WHAT, {"numbers": weights.numbers} | card)


def read_card(folder: str | Path) -> Card:
    """The card of a folder. UserError if there is none, or one that is not as it should be."""
    return converted(Card, cards.read_card(Path(folder), WHAT), f"{WHAT} {folder}: {CARD_FILE}")


def read_seeking(folder: str | Path) -> SeekWeights:
    """The numbers of a folder. UserError if it does not hold any."""
    return SeekWeights(read_card(folder).numbers)


def load_policy(folder: str | Path, name: str | None = None) -> Policy:
    """The policy of a folder, by `name` or else the path. UserError if the folder does not hold one."""
    return policy_of(read_seeking(folder), name or str(folder))


def policy_of(weights: SeekWeights, name: str) -> Policy:
    """`greedy-wait` that sends jobs by these numbers. It needs run times, or estimates of them."""
    return Policy(name, dataclasses.replace(parse_spec(PLAYED), seek=weights))
