"""Policies of a few learned numbers, on disk: a card that holds the numbers and says what they were learned from.

There are two kinds: tables of levels, which order jobs, and numbers by which jobs are sent to other partitions.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from jaxsched.env.levels import LevelTable
from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.schema import Count, Text, convert
from jaxsched.policies.policy import Policy
from jaxsched.policies.spec import LARGEST_SEEK, SeekWeights, parse_spec
from jaxsched.semantics import HIGHEST_LEVEL, RUN_BINS, SEEK_INPUTS, WIDTH_CLASSES

LEVELS, SEEKING = KINDS = ("levels", "seeking")  # what a card says that its folder holds
RULES = {  # what such a policy is with numbers by hand
    LEVELS: "pack:mlfq+backfill+consolidate+preempt+spread",
    SEEKING: "greedy-wait",
}

Level = Annotated[int, Meta(ge=-HIGHEST_LEVEL, le=HIGHEST_LEVEL)]
Row = Annotated[tuple[Level, ...], Meta(min_length=RUN_BINS, max_length=RUN_BINS)]
Number = Annotated[float, Meta(ge=-LARGEST_SEEK, le=LARGEST_SEEK)]


class Card(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every card holds beside the numbers; after `versions` only one of what was learned here does."""

    what: str
    schema: int
    versions: dict[str, str]
    learned_from: dict[str, Any] = {}
    config: dict[str, Any] = {}
    generation: Count = 0  # 0: where learning starts
    ratio: float | None = None  # mean completion times over the rule's, on the lists by which it was chosen
    curve: list[tuple[Count, float]] = []  # generations, and mean completion times over the rule's
    commands: dict[str, Text] = {}
    figures: list[cards.Evaluation] = []
    limits: Text = ""
    files: dict[str, str] = {}  # that the run began with, and their digests


class LevelsCard(Card):
    """The card of a table of levels."""

    levels: Annotated[tuple[Row, ...], Meta(min_length=WIDTH_CLASSES, max_length=WIDTH_CLASSES)]
    margin: Annotated[int, Meta(ge=0, le=HIGHEST_LEVEL)]
    rule: ClassVar[str] = RULES[LEVELS]  # cards do not say it

    @property
    def numbers_of_policy(self) -> LevelTable:
        """The table."""
        return LevelTable(self.levels, self.margin)


class SeekingCard(Card):
    """The card of numbers by which jobs are sent to other partitions."""

    numbers: Annotated[tuple[Number, ...], Meta(min_length=SEEK_INPUTS, max_length=SEEK_INPUTS)]
    rule: Text  # that they are part of

    @property
    def numbers_of_policy(self) -> SeekWeights:
        """The numbers."""
        return SeekWeights(self.numbers)


_CARDS: dict[str, type[LevelsCard] | type[SeekingCard]] = {LEVELS: LevelsCard, SEEKING: SeekingCard}


def save(folder: Path, numbers: LevelTable | SeekWeights, card: dict[str, Any]) -> None:
    """Write the folder of a policy: a card with its numbers, the rule that they are part of, versions, and `card`.

    Raises:
        UserError: it cannot be written.
    """
    what = LEVELS if isinstance(numbers, LevelTable) else SEEKING
    rule = {"rule": RULES[SEEKING]} if what == SEEKING else {}
    cards.write_card(folder, what, dataclasses.asdict(numbers) | rule | card)


def read_card(folder: str | Path, what: str) -> LevelsCard | SeekingCard:
    """The card of a folder that holds `what`, one of `KINDS`.

    Raises:
        UserError: there is none, or one that is not as it should be.
    """
    return convert(_CARDS[what], cards.read_card(Path(folder), what), f"{what} {folder}: {CARD_FILE}")


def load_policy(folder: str | Path, what: str, name: str | None = None) -> Policy:
    """The policy of a folder that holds `what`, by `name` or else the path. UserError: see `read_card`."""
    card = read_card(folder, what)
    try:
        return policy_of(card.numbers_of_policy, card.rule, name or str(folder))
    except UserError as error:
        raise UserError(f"{what} {folder}: {CARD_FILE}: rule: {error}") from None


def policy_of(numbers: LevelTable | SeekWeights, rule: str, name: str) -> Policy:
    """The policy of these numbers, which is `rule` with them.

    By a table it needs to know nothing, and stops jobs where it may. To send jobs it needs run times, or estimates.
    """
    spec = parse_spec(rule)
    if isinstance(numbers, SeekWeights):
        return Policy(name, dataclasses.replace(spec, seek=numbers))
    return Policy(name, dataclasses.replace(spec, queue=dataclasses.replace(spec.queue, order=numbers)))
