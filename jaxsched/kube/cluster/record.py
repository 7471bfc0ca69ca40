"""A recording: one JSON line per change of the cluster and per plan, enough to plan again and to simulate the day.

{"t": 1767225600.0, "kind": "start"}    all that is there follows; the rest has gone while nothing was recorded
{"t": 1767225600.1, "kind": "pods", "type": "ADDED", "object": {...}}    without what nobody reads
{"t": 1767225600.2, "kind": "plan", "placements": {"ns/gang": {"ns/pod": "node"}}}
"""

import contextlib
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.files import read_text
from jaxsched.io.json_file import parse_json
from jaxsched.io.schema import convert
from jaxsched.kube.plan.planner import Plan
from jaxsched.kube.read.objects import KEPT_ANNOTATIONS, mapping, mappings

log = logging.getLogger("jaxsched.kube")

MOST_BYTES = 1 << 30
BLOCK_BYTES = 1 << 16
FIRST_LINE_BYTES = 1 << 23  # more than an object of the API server may have
LINES_BEGIN = b'{"t":'


class Recorder:
    """Appends to a file; a line is whole or, after a crash, the last one. A full disk ends the recording alone."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._now_s, self._path = now_s, path
        try:
            _check_is_recording(path)
            _drop_cut_line(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--record {path}: cannot be written: {error.strerror}") from None
        self._lock = threading.Lock()
        self._write({"t": self._now_s(), "kind": "start"})

    def change(self, kind: str, what: str, raw: Mapping[str, Any]) -> None:
        """An object was ADDED, MODIFIED or DELETED."""
        kept = slim(raw) if kind in ("nodes", "pods") else _without_managers(raw)
        self._write({"t": self._now_s(), "kind": kind, "type": what, "object": kept})

    def plan(self, now_s: float, plan: Plan) -> None:
        """What was decided on the cluster as recorded so far."""
        if plan.placements:
            placed = {one.gang.key: {a.pod.key: a.node for a in one.assignments} for one in plan.placements}
            self._write({"t": now_s, "kind": "plan", "placements": placed})

    def close(self) -> None:
        """Write what is buffered."""
        with self._lock, contextlib.suppress(OSError):
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
                self._file.flush()
            except OSError as error:
                log.error("the recording %s ends: %s; scheduling goes on", self._path, error.strerror)
                with contextlib.suppress(OSError):
                    self._file.close()


def _check_is_recording(path: Path) -> None:
    """UserError for a file with something else in it, which would be spoilt."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        line = file.readline(FIRST_LINE_BYTES)
    try:
        if line.endswith(b"\n"):
            convert(_Line, parse_json(line.decode(), str(path)), str(path))
        elif not (line.startswith(LINES_BEGIN) or LINES_BEGIN.startswith(line)):  # a cut line, or none
            raise ValueError
    except (UserError, ValueError):
        raise UserError(
            f"--record {path}: there is a file that is no recording; name a new one, or one written by --record"
        ) from None


def _drop_cut_line(path: Path) -> None:
    """Take away what a crash left of the last line, which would spoil the next one."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        kept = file.seek(0, os.SEEK_END)
        while kept > 0:
            start = max(kept - BLOCK_BYTES, 0)
            file.seek(start)
            end = file.read(kept - start).rfind(b"\n") + 1
            kept = start + end
            if end:
                break
        file.seek(kept)
        if LINES_BEGIN.startswith(file.read(len(LINES_BEGIN))):
            file.truncate(kept)


def slim(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a node's or pod's JSON that `kube.read` reads."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    kept = ("name", "namespace", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp")
    own = {key: meta[key] for key in kept if meta.get(key)}
    own["annotations"] = {k: v for k, v in mapping(meta, "annotations").items() if k in KEPT_ANNOTATIONS}
    spec = dict(spec)
    for parts in ("containers", "initContainers"):
        if parts in spec:
            kept = ("resources", "ports", "restartPolicy")
            spec[parts] = [{key: one[key] for key in kept if key in one} for one in mappings(spec, parts)]
    conditions = [c for c in mappings(status, "conditions") if c.get("type") in ("Ready", "PodScheduled")]
    kept = ("phase", "reason", "startTime", "allocatable", "nominatedNodeName")
    return {
        "metadata": own,
        "spec": spec,
        "status": {k: status[k] for k in kept if k in status} | {"conditions": conditions},
    }


def _without_managers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An object without the record of who set its fields, which is as long as the object."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        return dict(raw)
    return dict(raw) | {"metadata": {key: metadata[key] for key in metadata if key != "managedFields"}}


class _Object(msgspec.Struct):
    """What every object of the API has, as far as it was recorded."""

    metadata: dict[str, Any]
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Line(msgspec.Struct):
    """One line of a recording; a change has `type` and `object`, a plan has `placements`."""

    t: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    kind: Literal["start", "nodes", "pods", "podgroups", "persistentvolumeclaims", "persistentvolumes", "plan"]
    type: Literal["ADDED", "MODIFIED", "DELETED"] | None = None
    object: dict[str, Any] | None = None
    placements: dict[str, dict[str, str]] | None = None


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording in order. UserError with the line for what is none; a cut last line is left out."""
    text = read_text(path, MOST_BYTES, "a file written by --record")
    lines = text.split("\n")
    if lines[-1]:
        warnings.warn(f"{path}, line {len(lines)}: is cut off, and left out", DoubtfulFile, stacklevel=2)
    for number, content in enumerate(lines[:-1], 1):
        where = f"{path}:{number}"
        try:
            read = convert(_Line, parse_json(content, where), where)
            needed = {"start": (), "plan": ("placements",)}.get(read.kind, ("type", "object"))
            if any(getattr(read, name) is None for name in needed):
                raise UserError(f"{where}: {' or '.join(needed)} is missing")
            if read.object is not None:
                convert(_Object, read.object, f"{where}: object")
        except UserError as error:
            said = str(error).removeprefix(where).lstrip(":, ")
            raise UserError(f"{where}: is no line of a recording ({said}); give a file written by --record") from None
        yield {name: value for name, value in msgspec.structs.asdict(read).items() if value is not None}
