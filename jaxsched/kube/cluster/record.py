"""A recording: one JSON line per change of the cluster and per plan, enough to plan again and to simulate the day.

{"t": 1767225600.1, "kind": "pods", "type": "ADDED", "object": {...}}    as `objects.slim` leaves it
{"t": 1767225600.2, "kind": "plan", "placements": {"ns/gang": {"ns/pod": "node"}}}
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxsched.errors import UserError
from jaxsched.kube.planning.objects import slim
from jaxsched.kube.planning.plan import Plan

KINDS = ("nodes", "pods", "podgroups", "persistentvolumeclaims")


class Recorder:
    """Appends to a file; a line is whole or, after a crash, the last one."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--record {path}: cannot be written: {error.strerror}") from None
        self._lock = threading.Lock()

    def change(self, kind: str, what: str, raw: Mapping[str, Any]) -> None:
        """An object was ADDED, MODIFIED or DELETED."""
        kept = slim(raw) if kind in ("nodes", "pods") else {k: raw[k] for k in raw if k != "managedFields"}
        self._write({"t": time.time(), "kind": kind, "type": what, "object": kept})

    def plan(self, now_s: float, plan: Plan) -> None:
        """What was decided on the cluster as recorded so far."""
        if plan.placements:
            placed = {one.gang.key: {a.pod.key: a.node for a in one.assignments} for one in plan.placements}
            self._write({"t": now_s, "kind": "plan", "placements": placed})

    def close(self) -> None:
        """Write what is buffered."""
        with self._lock:
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
                self._file.flush()


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording in order. UserError with the line for what is none; a cut last line is left out."""
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a file written by --record") from None
    with file:
        for number, text in enumerate(file, 1):
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
                known = line["kind"] in KINDS and isinstance(line["object"], dict) and line["type"] in _TYPES
                if not (
                    line["t"] >= 0 and (known or (line["kind"] == "plan" and isinstance(line["placements"], dict)))
                ):
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f"{path}:{number}: is no line of a recording; give a file written by --record"
                ) from None
            yield line


_TYPES = ("ADDED", "MODIFIED", "DELETED")
