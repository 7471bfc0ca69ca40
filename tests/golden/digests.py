"""Exact results as a few hexadecimal digits, and their arrays."""

import hashlib
from typing import Any

import numpy as np

from . import adapter

DIGITS = 16


def arrays_of(outcome: Any) -> dict[str, np.ndarray]:
    """All that is exact of a run, in types that do not depend on who keeps it. Empty where something is not kept."""
    found = {
        "status": outcome.status,
        "partition": outcome.partition,
        "start_s": outcome.start_s,
        "finish_s": outcome.finish_s,
        "forwards": outcome.forwards,
        "workers": outcome.workers,
        "end_s": outcome.end_s,
        "cut_off": outcome.cut_off is not None,
        **adapter.stopped_columns(outcome),
    }
    if outcome.stats.engine == "jax":
        found |= {"ps": outcome.ps, "gpu": outcome.gpu}
    if outcome.interruptions is not None:
        tries = outcome.attempts
        for name in ("job", "partition", "start_s", "end_s", "restart_s", "ended", "workers"):
            found[f"attempts_{name}"] = getattr(tries, name)
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return np.where(np.isnan(array), np.nan, array).astype(np.float64) + 0.0
    return array.astype(np.int64)


def digest(arrays: dict[str, Any]) -> str:
    """Of all arrays, by name."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.kind} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()[:DIGITS]


def digest_of_text(text: str | bytes) -> str:
    """Of a text or bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:DIGITS]
