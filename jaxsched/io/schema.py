"""Schemas: what is read from a file is turned into types, strictly, or refused with its place.

msgspec checks the types: it is small, needs nothing else, knows dataclasses and limits of numbers (`Annotated[int,
Meta(ge=1)]`), and takes no value for another one: "false" is no boolean, and 1.0 no whole number.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from jaxsched.errors import UserError
from jaxsched.io.inputs import shortened

T = TypeVar("T")

Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=1, le=1 << 20)]

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<place>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `(?P<kind>[^`]+)`(?:, got `[^`]+`)?(?P<limit>.*)", re.DOTALL)
_NAMES = {"array": "list", "object": "mapping", "null": "None"}


def converted(kind: type[T] | Any, value: Any, where: str) -> T:
    """`value`, plain ones as JSON and YAML have them, as a `kind`. UserError with `where` and the place in it."""
    try:
        made = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}{_explained(str(error), value)}") from None
    except (OverflowError, RecursionError) as error:
        raise UserError(f"{where}: {shortened(repr(value))} cannot be read ({error})") from None
    for place, bad in _not_finite(value):
        raise UserError(f"{where}{place}: {'NaN' if math.isnan(bad) else bad} should be a finite number")
    return made


def _explained(message: str, value: Any) -> str:
    """What msgspec says, with the value that it is about."""
    found = _PLACE.fullmatch(message)
    assert found is not None
    steps = [index or name for name, index in _STEP.findall(found["place"] or "") if index != "..."]
    shown = [shortened(step if step.isprintable() else repr(step)) for step in steps]
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
    return shortened(repr(value))


def _not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Places and numbers in `value` that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place and f": {place}", value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in inner:
        yield from _not_finite(one, f"{place}.{key}" if place else shortened(str(key)))
