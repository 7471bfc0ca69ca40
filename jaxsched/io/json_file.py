"""JSON, and logs of lines of it, which a killed process may leave with half a line at their end.

JSON is read strictly: no key twice, no NaN, no number beyond 64 bits, no endless nesting. And written to be read.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from jaxsched.errors import UserError
from jaxsched.io.files import read_text, shorten, write_text
from jaxsched.io.schema import convert

MOST_BYTES = 1 << 26
DEEPEST = 64  # levels
_MOST_DIGITS = 400
_NO_TEXT = re.compile(r"(?<!\\)(?<!\\ud[89ab][0-9a-f]{2})(\\udc[89a-f][0-9a-f])")  # see PEP 383


def read_json(path: str | Path, wanted: str = "a JSON file", most_bytes: int = MOST_BYTES) -> Any:
    """The content of a JSON file. UserError with the line for what is none, and `wanted` for what should be there."""
    return parse_json(read_text(path, most_bytes, wanted), str(path))


def to_json(value: Any, indent: int | None = None) -> str:
    """Finite values as a line, or lines, of JSON. Bytes of a file's name that are no text stand in it as `\\udcff`."""
    return _NO_TEXT.sub(r"\\\1", json.dumps(value, indent=indent, allow_nan=False)) + "\n"


def parse_json(text: str, where: str) -> Any:
    """The value that `text` stands for; UserError that begins with `where` if it is not JSON as we read it."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_int=_whole, parse_float=_number, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise UserError(f"{where}, line {error.lineno}: is not JSON ({error.msg})") from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if "\\ud" in text.lower() and not _is_text(value):
        raise UserError(f"{where}: half of a character (\\ud800 to \\udfff), should be text")
    if _depth(value) > DEEPEST:
        raise _too_deep(where)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shorten(key)!r} stands twice in one object, every key may only once")
            seen.add(key)
    return made


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"the number {shorten(text)} is too large, should have 64 bits at most")
    return int(text)


def _number(text: str) -> float:
    value = float(text) if len(text) <= _MOST_DIGITS else math.inf
    if not math.isfinite(value):
        raise ValueError(f"the number {shorten(text)} should be finite, with at most {_MOST_DIGITS} digits")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} should be a finite number")


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _depth(value: Any) -> int:
    """Levels of lists and objects; stops counting where there are too many."""
    level, depth = [value], 0
    while depth <= DEEPEST:
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        depth += 1
        if not level:
            break
    return depth


def _too_deep(where: str) -> UserError:
    return UserError(f"{where}: lists and objects inside each other, more than {DEEPEST} levels deep")


MOST_LOG_BYTES = 1 << 30


def append(path: Path, row: dict[str, Any]) -> None:
    """Adds one row."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path, kind: type = dict, what: str = "row") -> list[dict[str, Any]]:
    """All whole rows, each a `what`; none where there is no file. UserError with the line for what is no `kind`."""
    return [_read_row(line, kind, what, f"{path}, line {number}") for number, line in enumerate(_lines(path), 1)]


def _read_row(line: str, kind: type, what: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)  # NaN is written and read: a figure that a chunk does not have
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UserError(f"{where}: {shorten(line)!r} should be a row, one object of JSON")
    convert(kind, row, f"{where}: is no {what}", finite=False)
    return row


def truncate(path: Path, rows: int) -> None:
    """Keep the first `rows` rows; later ones, and a half-written last one, will be written again."""
    _rewrite(path, _lines(path)[:rows])


def mend(path: Path) -> None:
    """Drop a half-written last row, if there is one."""
    if path.exists():
        _rewrite(path, _lines(path))


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return read_text(path, MOST_LOG_BYTES).split("\n")[:-1]


def _rewrite(path: Path, lines: list[str]) -> None:
    write_text(path, "".join(line + "\n" for line in lines))
