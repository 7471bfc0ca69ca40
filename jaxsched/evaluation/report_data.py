"""The numbers of a page in little room: JSON and columns of bytes, deflated, as text.

`report_data.js` is the other end. Of every column the first bytes of all numbers come first, then the second ones:
so neighbours are alike, and deflate to half as much.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Num

from jaxsched.errors import UserError

SCRIPT = Path(__file__).with_name("report_data.js")
KINDS = ("float64", "float32", "int32", "uint16", "uint8")
_LEVEL = 9  # zlib's most thorough; 3 s for 15 MB


def packed(values: Num[np.ndarray, "n"], kind: type) -> dict[str, str | int]:
    """A column as plain values, as results keep it: bytes as text, little-endian; of nothing but zeros their number."""
    if not values.any():
        return {"kind": np.dtype(kind).name, "zeros": len(values)}
    return {"kind": np.dtype(kind).name, "base64": base64.b64encode(values.astype(kind).tobytes()).decode("ascii")}


def embedded(data: Mapping[str, Any]) -> str:
    """`data` with its `packed` columns, as `report_data.js` reads it. UserError for a column that is none.

    Base64 of a deflated stream (RFC 1951). Its first 8 bytes are the sizes of all and of the JSON that follows; then
    come the columns. In the JSON, `at` of a column is where it begins; columns that are alike stand there once.
    """
    columns, places = bytearray(), dict[tuple[str, str], int]()

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("base64") is not None and value.get("kind") in KINDS:
            kind, text = value["kind"], value["base64"]
            found = _column(kind, text)
            if (kind, text) not in places:
                places[kind, text] = len(columns)
                columns.extend(found.T.tobytes())
            return {"kind": kind, "at": places[kind, text], "count": len(found)}
        if isinstance(value, Mapping):
            return {key: moved(inner) for key, inner in value.items()}
        return [moved(inner) for inner in value] if isinstance(value, list) else value

    head = json.dumps(moved(data), separators=(",", ":"), allow_nan=False).encode()
    sizes = np.array([8 + len(head) + len(columns), len(head)], "<u4").tobytes()
    deflate = zlib.compressobj(_LEVEL, wbits=-15)
    return base64.b64encode(deflate.compress(sizes + head + columns) + deflate.flush()).decode("ascii")


def _column(kind: str, text: Any) -> Num[np.ndarray, "n bytes"]:
    """The bytes of a column, a line per number."""
    wide = np.dtype(kind).itemsize
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.uint8).reshape(-1, wide)
    except (binascii.Error, TypeError, ValueError):
        raise UserError(f"report: a column of numbers cannot be read, should be the base64 of {kind}") from None
