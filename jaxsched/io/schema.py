"""Schemas: what is read from a file is turned into types, strictly, or refused with its place.

msgspec checks the types: it is small, needs nothing else, knows dataclasses and limits of numbers (`Annotated[int,
Meta(ge=1)]`), and takes no value for another one: "false" is no boolean, and 1.0 no whole number.

The `parse_` and `check_` functions read one field of a user's file: each returns the value or raises a one-line
`UserError`. `where` is where the field stands, for instance `nodes.csv:7` or `cluster.yaml: servers[0]`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from jaxsched.errors import UserError
from jaxsched.io.files import shorten

T = TypeVar("T")

Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<place>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `(?P<kind>[^`]+)`(?:, got `[^`]+`)?(?P<limit>.*)", re.DOTALL)
_NAMES = {"array": "list", "object": "mapping", "null": "None"}


def convert(kind: type[T] | Any, value: Any, where: str, *, finite: bool = True) -> T:
    """`value`, plain ones as JSON and YAML have them, as a `kind`. UserError with `where` and the place in it.

    Without `finite` numbers may be NaN or have no end.
    """
    try:
        made = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}{_explain(str(error), value)}") from None
    except (OverflowError, RecursionError) as error:
        raise UserError(f"{where}: {shorten(repr(value))} cannot be read ({error})") from None
    for place, bad in _find_not_finite(value) if finite else ():
        raise UserError(f"{where}{place}: {'NaN' if math.isnan(bad) else bad} should be a finite number")
    return made


def _explain(message: str, value: Any) -> str:
    """What msgspec says, with the value that it is about."""
    found = _PLACE.fullmatch(message)
    assert found is not None
    steps = [index or name for name, index in _STEP.findall(found["place"] or "") if index != "..."]
    shown = [shorten(step if step.isprintable() else repr(step)) for step in steps]
    place = f": {'.'.join(shown)}" if steps else ""
    expected = _EXPECTED.fullmatch(found["what"])
    if expected is None:
        return f"{place}: {found['what'][:1].lower()}{found['what'][1:]}"
    kinds = " or ".join(_NAMES.get(kind, kind) for kind in expected["kind"].split(" | "))
    return f"{place}: {_shown(value, steps)} should be of type {kinds}{expected['limit']}"


def _shown(value: Any, steps: list[str]) -> str:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            break
    return shorten(repr(value))


def _find_not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Places and numbers in `value` that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place and f": {place}", value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in inner:
        yield from _find_not_finite(one, f"{place}.{key}" if place else shorten(str(key)))


def bad_field(where: str, field: str, value: Any, right: str) -> UserError:
    """The error for a field whose `value` is wrong; `right` says what would be right."""
    return UserError(f"{where}: {field} is {_show_field(value)}; it must be {right}")


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
        raise UserError(f"{where}: found {_show_field(value)}; expected a mapping with the keys {', '.join(valid)}")
    for key in value:
        if key not in valid:
            raise UserError(f"{where}: unknown key {_show_field(key)}; valid keys: {', '.join(valid)}")
    return value


def _show_field(value: Any) -> str:
    shown = "empty" if value is None or value == "" else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
