"""Schemas: what is read from a file is turned into types, strictly, or refused with its place.

msgspec checks the types: it is small, needs nothing else, knows dataclasses and limits of numbers (`Annotated[int,
Meta(ge=1)]`), and takes no value for another one: "false" is no boolean, and 1.0 no whole number.
"""

import math
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from jaxsched.errors import UserError
from jaxsched.inputs import shortened

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
    if (bad := _not_finite(value)) is not None:
        raise UserError(f"{where}: {'NaN' if math.isnan(bad) else bad} should be a finite number")
    return made


def _explained(message: str, value: Any) -> str:
    """What msgspec says, with the value that it is about."""
    found = _PLACE.fullmatch(message)
    assert found is not None
    steps = [index or name for name, index in _STEP.findall(found["place"] or "") if index != "..."]
    place = f": {'.'.join(steps)}" if steps else ""
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


def _not_finite(value: Any) -> float | None:
    """Some number in `value` that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((bad for one in inner if (bad := _not_finite(one)) is not None), None)
