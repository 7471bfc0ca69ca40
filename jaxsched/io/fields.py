"""Reading one field of a user's file: each function returns the value or raises a one-line `UserError`.

`where` is where the field stands, for instance `nodes.csv:7` or `cluster.yaml: servers[0]`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxsched.errors import UserError


def bad_field(where: str, field: str, value: Any, right: str) -> UserError:
    """The error for a field whose `value` is wrong; `right` says what would be right."""
    return UserError(f"{where}: {field} is {_shown(value)}; it must be {right}")


def parse_whole(text: str, where: str, field: str, minimum: int, maximum: int, meaning: str) -> int:
    """A whole number in [`minimum`, `maximum`] from a CSV cell. `UserError` for NaN, decimals, signs, blanks, words."""
    if not re.fullmatch(r"[0-9]{1,15}", text) or not minimum <= int(text) <= maximum:
        raise bad_field(where, field, text, f"a whole number from {minimum} to {maximum}: {meaning}")
    return int(text)


def check_whole(value: Any, where: str, field: str, minimum: int, maximum: int) -> int:
    """A whole number in [`minimum`, `maximum`] from YAML or a call (no booleans, no floats)."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise bad_field(where, field, value, f"a whole number from {minimum} to {maximum}")
    return value


def check_positive(value: Any, where: str, field: str, unit: str = "") -> float:
    """A number from 1e-9 to 1e9 (safe in float32) from YAML or a call; `unit` is named in the message."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-9 <= value <= 1e9:
        raise bad_field(where, field, value, f"a number above 0, from 1e-9 to 1e9{f' ({unit})' if unit else ''}")
    return float(value)


def check_mapping(value: Any, where: str, valid: Iterable[str]) -> Mapping[str, Any]:
    """A YAML mapping whose keys are all in `valid`; an unknown key is refused by name, with the valid ones."""
    valid = tuple(valid)
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: found {_shown(value)}; expected a mapping with the keys {', '.join(valid)}")
    for key in value:
        if key not in valid:
            raise UserError(f"{where}: unknown key {_shown(key)}; valid keys: {', '.join(valid)}")
    return value


def _shown(value: Any) -> str:
    shown = "empty" if value is None or value == "" else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
