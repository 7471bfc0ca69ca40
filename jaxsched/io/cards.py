"""Folders of a model: `weights.msgpack` (arrays, no pickle) and `card.json` (all else that is known of it).

Every card says `what` the folder holds, the `schema` and the `versions` that it was made with. The same content gives
the same bytes.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from jaxsched import shipped
from jaxsched.errors import UserError
from jaxsched.io.files import read_bytes, read_text, shorten, write_bytes, write_text
from jaxsched.io.json_file import parse_json
from jaxsched.io.schema import Text, convert
from jaxsched.machine import versions

WEIGHTS_FILE, CARD_FILE = "weights.msgpack", "card.json"
SCHEMA = 1
MOST_CARD_BYTES, MOST_WEIGHTS_BYTES = 1 << 24, 1 << 30
ADDED = ("figures", "curve", "commands")  # to a card that is there already


class _Head(msgspec.Struct):
    """What every card says."""

    what: str
    schema: int
    versions: dict[str, str]


class Evaluation(msgspec.Struct, kw_only=True):
    """One recorded evaluation."""

    command: Text
    jct_mean_s: dict[str, float | None]
    jct_ci95_s: dict[str, tuple[float, float] | None] = {}
    ratio_to_best_baseline: dict[str, float | None] = {}
    jobs: dict[str, Any] = {}
    versions: dict[str, str] = {}
    files: dict[str, str] = {}  # that the command names, and their digests


def write(folder: Path, what: str, weights: Any, card: dict[str, Any]) -> None:
    """Make `folder` one that holds a `what`: dicts of arrays, and a card. UserError if it cannot be written."""
    try:
        from flax import serialization  # an eighth of a second, which names of models do not need

        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / WEIGHTS_FILE, serialization.msgpack_serialize(weights))
    except OSError as error:
        raise _unwritable(folder, what, error) from None
    write_card(folder, what, card)


def write_card(folder: Path, what: str, card: dict[str, Any]) -> None:
    """Make `folder` one that holds a `what` of which all stands in the card. UserError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_card(folder, {"what": what, "schema": SCHEMA, "versions": versions()} | card)
    except OSError as error:
        raise _unwritable(folder, what, error) from None


def update(folder: Path, what: str, **entries: Any) -> None:
    """Put `entries` into the card of `folder`, in place of those of the same name."""
    _write_card(folder, read_card(folder, what) | entries)


def read(folder: Path, what: str) -> tuple[Any, dict[str, Any]]:
    """Weights and card of a folder of `what`. UserError if it does not hold one, or weights that are not finite."""
    from flax import serialization

    card = read_card(folder, what)
    try:
        content = read_bytes(folder / WEIGHTS_FILE, MOST_WEIGHTS_BYTES)
    except UserError as error:
        raise _find_missing(folder, what, WEIGHTS_FILE, error) from None
    try:
        weights = serialization.msgpack_restore(content)
        leaves = jax.tree.leaves(weights)
        kinds = {str(np.asarray(leaf).dtype) for leaf in leaves} - {"float32", "float64"}
        finite = not kinds and all(np.isfinite(leaf).all() for leaf in leaves)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} is not readable ({' '.join(str(error).split())})") from None
    if kinds:
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} holds {', '.join(sorted(kinds))}, should be float32")
    if not finite:
        raise UserError(f"{what} {folder}: {WEIGHTS_FILE} holds weights that are not finite numbers")
    return weights, card


def what_of(folder: Path) -> str | None:
    """What a folder's card says that it holds; None if it says nothing that can be read."""
    try:
        card = parse_json(read_text(folder / CARD_FILE, MOST_CARD_BYTES), CARD_FILE)
    except UserError:
        return None
    return str(card["what"]) if isinstance(card, dict) and "what" in card else None


SHIPPED = "fitted"  # names the folder that comes with the package


def locate(name: str | Path, what: str) -> Path:
    """A folder of `what` by its path, or the shipped one (`fitted`). UserError if this copy has none."""
    return shipped_folder(what) if str(name) == SHIPPED else Path(name)


def shipped_folder(what: str) -> Path:
    """The folder `checkpoints/WHAT`, which comes with the package; UserError if this copy has none."""
    found = shipped.find(shipped.CHECKPOINTS, what)
    if found is not None:
        return found
    raise UserError(f"the fitted model {what!r} does not come with this copy of jaxsched; fit one and name its folder")


def check_free(folder: Path, what: str, option: str) -> None:
    """UserError if a folder that is to be written holds something else than a `what`."""
    there = what_of(folder)
    if there not in (None, what):
        raise UserError(f"{option} {folder}: holds something else, {there!r}; choose another folder")


def read_card(folder: Path, what: str) -> dict[str, Any]:
    """The card of a folder of `what`. UserError if there is none, or one of something else or of another schema."""
    try:
        content = read_text(folder / CARD_FILE, MOST_CARD_BYTES)
    except UserError as error:
        raise _find_missing(folder, what, CARD_FILE, error) from None
    try:
        card = parse_json(content, f"{what} {folder}: {CARD_FILE}")
    except UserError as error:
        raise UserError(f"{error}; this is not a readable card") from None
    head = convert(_Head, card, f"{what} {folder}: {CARD_FILE} is not a readable card")
    if head.what != what:
        raise UserError(f"{what} {folder}: {CARD_FILE} is of {shorten(head.what)!r}, should be of {what!r}")
    if head.schema != SCHEMA:
        raise UserError(f"{what} {folder}: schema {head.schema}, this version reads schema {SCHEMA}")
    return card


def digest(content: Any) -> str:
    """The first characters of the SHA-256 of `content` as JSON, and of the files and folders that it names."""
    text, named = json.dumps(content, sort_keys=True), named_files(content)
    return hashlib.sha256((text + json.dumps(named, sort_keys=True) * bool(named)).encode()).hexdigest()[:16]


def named_files(content: Any) -> dict[str, str]:
    """Digests of the files, and of the folders with a card, that texts of `content` name: name -> SHA-256.

    A folder counts if its name is a path, ./NAME at least: words such as `default` name what comes with jaxsched.
    """
    names = [text.partition(".py:")[0] + ".py" * (".py:" in text) for text in _texts(content)]
    folders = [name for name in names if os.sep in name and os.path.isfile(Path(name) / CARD_FILE)]
    files = {name: _digest_file(name, *_stat(name)) for name in names if os.path.isfile(name)}
    return files | {name: _digest_folder(Path(name)) for name in folders}


def find_changed(files: Mapping[str, str], content: Any) -> str | None:
    """The first name of which `files`, an earlier `named_files`, and those of `content` now say another digest."""
    now = named_files(content)
    return next((name for name, was in sorted(files.items()) if now.get(name, was) != was), None)


def _texts(content: Any) -> Iterator[str]:
    """All texts in lists and values of mappings, however deep."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for one in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(one)


def _stat(name: str) -> tuple[int, ...]:
    """What changes with a file."""
    found = os.stat(name)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _digest_file(name: str, *stat: int) -> str:
    """`stat`: of the file; where it is the same, so is it."""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_folder(folder: Path) -> str:
    """Of its weights, and of what its card says but for what may be added later."""
    card = parse_json(read_text(folder / CARD_FILE, MOST_CARD_BYTES), f"{folder}: {CARD_FILE}")
    said = {key: value for key, value in card.items() if key not in ADDED} if isinstance(card, dict) else card
    path = str(folder / WEIGHTS_FILE)
    weights = _digest_file(path, *_stat(path)) if os.path.isfile(path) else ""
    return hashlib.sha256((json.dumps(said, sort_keys=True) + weights).encode()).hexdigest()


def _write_card(folder: Path, card: dict[str, Any]) -> None:
    write_text(folder / CARD_FILE, json.dumps(card, indent=1, sort_keys=True) + "\n")


def _unwritable(folder: Path, what: str, error: OSError) -> UserError:
    return UserError(f"{what} {folder}: cannot be written: {error.strerror}")


def _find_missing(folder: Path, what: str, name: str, error: UserError) -> UserError:
    if "no such file" not in str(error) and "Not a directory" not in str(error):
        return UserError(f"{what} {error}")
    return UserError(f"{what} {folder}: no file {name}; name a folder that has one")
