"""What the cards of policies of a few numbers have in common, whatever the numbers are."""

from typing import Any

import msgspec

from jaxsched.io.schema import Count, Text


class EvolvedCard(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the card of such a policy holds beside its numbers; after `versions` only what was learned here has."""

    what: str
    schema: int
    versions: dict[str, str]
    learned_from: dict[str, Any] = {}
    config: dict[str, Any] = {}
    generation: Count = 0  # 0: where learning starts
    ratio: float | None = None  # mean completion times over the rule's, on the lists by which it was chosen
    curve: list[tuple[Count, float]] = []  # generations, and mean completion times over the rule's
    commands: dict[str, Text] = {}
    figures: list[dict[str, Any]] = []
    limits: Text = ""
