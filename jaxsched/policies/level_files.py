"""Tables of levels on disk: a card that holds the table and says what it was learned from, and back to a `Policy`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jaxsched.env.level_table import LevelTable
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE
from jaxsched.io.schema import converted
from jaxsched.policies.evolved_card import EvolvedCard
from jaxsched.policies.policy import Policy
from jaxsched.policies.spec import parse_spec
from jaxsched.semantics import HIGHEST_LEVEL, RUN_BINS, WIDTH_CLASSES

WHAT = "levels"  # what its card says that the folder holds
PLAYED = "pack:{order}+backfill+consolidate+preempt+spread"  # all of such a policy but the table

Level = Annotated[int, Meta(ge=-HIGHEST_LEVEL, le=HIGHEST_LEVEL)]
Row = Annotated[tuple[Level, ...], Meta(min_length=RUN_BINS, max_length=RUN_BINS)]


class Card(EvolvedCard):
    """What the card of a table holds."""

    levels: Annotated[tuple[Row, ...], Meta(min_length=WIDTH_CLASSES, max_length=WIDTH_CLASSES)]
    margin: Annotated[int, Meta(ge=0, le=HIGHEST_LEVEL)]


def save_levels(folder: Path, table: LevelTable, card: dict[str, Any]) -> None:
    """Write the folder of a table: a card with it, versions, and `card`. UserError if it cannot be written."""
    cards.write_card(folder, WHAT, {"levels": table.levels, "margin": table.margin} | card)


def read_card(folder: str | Path) -> Card:
    """The card of a table's folder. UserError if there is none, or one that is not as it should be."""
    return converted(Card, cards.read_card(Path(folder), WHAT), f"{WHAT} {folder}: {CARD_FILE}")


def read_levels(folder: str | Path) -> LevelTable:
    """The table of a folder. UserError if it does not hold one."""
    card = read_card(folder)
    return LevelTable(card.levels, card.margin)


def load_policy(folder: str | Path, name: str | None = None) -> Policy:
    """The policy of a table's folder, by `name` or else the path. UserError if the folder does not hold one."""
    return policy_of(read_levels(folder), name or str(folder))


def policy_of(table: LevelTable, name: str) -> Policy:
    """The policy that plays by a table: it needs to know nothing, and stops jobs where it may."""
    spec = parse_spec(PLAYED.format(order="mlfq"))
    return Policy(name, dataclasses.replace(spec, queue=dataclasses.replace(spec.queue, order=table)))
