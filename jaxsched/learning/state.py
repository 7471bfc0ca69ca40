"""The state of a training run: one pytree, one Orbax step."""

import errno
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax import Array
from jaxtyping import Float32, Int32, PyTree, UInt32

from jaxsched.env.stages import Playing
from jaxsched.env.state import State
from jaxsched.errors import UserError
from jaxsched.io.cards import find_changed, named_files
from jaxsched.io.files import shorten
from jaxsched.io.schema import convert
from jaxsched.learning.config import TrainConfig, from_saved, to_dict, validate
from jaxsched.learning.draws import Draw
from jaxsched.machine import versions
from jaxsched.pytree import Pytree

SCHEMA = 6
KEEP_STEPS = 2
_BESIDE_BYTES = 1 << 20  # what a step holds beside its arrays, and more


class _About(msgspec.Struct):
    """What stands beside the arrays of a step."""

    schema: int
    config: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, str] = {}  # that the config names, with their digests; of runs from before none


class TrainState(Pytree):
    """Everything that a run needs to go on as if it had never stopped."""

    weights: PyTree
    optimizer: optax.OptState
    best_weights: PyTree
    best_jct_s: Float32[Array, ""]  # validation
    worlds: State | Playing  # leading axis E
    draws: Draw  # likewise, what tells them apart
    return_scale: Float32[Array, ""]
    key_data: UInt32[Array, "2"]  # of a typed key
    chunk: Int32[Array, ""]  # chunks done


def _manager(folder: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(max_to_keep=KEEP_STEPS, create=True, enable_async_checkpointing=False)
    return ocp.CheckpointManager(folder.absolute(), options=options)


def has_step(folder: Path) -> bool:
    """`folder` holds at least one whole step."""
    if not folder.is_dir():
        return False
    with _manager(folder) as manager:
        return manager.latest_step() is not None


def save(
    folder: Path,
    state: TrainState,
    config: TrainConfig,
    chunks: int | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write one step, numbered by the chunks done; a step is either whole or absent.

    Of several runs' states, stacked, `chunks` says how many all of them have done. `files`: those that the run began
    with (`io.cards.named_files`); None: as they are now. OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + _BESIDE_BYTES
    if shutil.disk_usage(folder).free < needed:  # told before Orbax's threads run into it, each in its own words
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, a step needs {needed / 2**20:,.0f} MiB")
    content = to_dict(config)
    files = named_files(content) if files is None else dict(files)
    about = {"schema": SCHEMA, "config": content, "versions": versions(), "files": files}
    with _signals_later(), _plain_errors(), _manager(folder) as manager:
        args = ocp.args.Composite(state=ocp.args.StandardSave(_without_empty(state)), about=ocp.args.JsonSave(about))
        manager.save(int(state.chunk) if chunks is None else chunks, args=args)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What Orbax could not write is an OSError, said once: its threads and tasks log each what stopped them.

    Some do so only when they are forgotten, so that after a failure their logs stay off.
    """
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    except (ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        full = "RESOURCE_EXHAUSTED" in said or "No space left" in said
        failed = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else OSError(errno.EIO, shorten(said, 300))
        raise failed from None
    for log, disabled in zip(logs, before):
        log.disabled = disabled


@contextmanager
def _signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block has ended: Orbax's threads would go on, and complain."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)


def require_step(folder: Path) -> None:
    """UserError if the folder holds no whole step."""
    if not has_step(folder):
        raise UserError(f"run {folder.parent}: no checkpoint to resume from; start it again without --resume")


def restore(folder: Path, like: TrainState) -> TrainState:
    """The newest whole step, in the shapes of `like`; UserError if there is none."""
    require_step(folder)
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _without_empty(like))
    restored = _read(folder, state=ocp.args.StandardRestore(shapes)).state
    # by way of NumPy: what Orbax returns is committed to a device, which would compile to another program
    empty = lambda leaf: None if leaf is None else jnp.zeros(leaf.shape, leaf.dtype)
    take = lambda leaf, saved: empty(leaf) if saved is None else jnp.array(np.asarray(saved))
    return jax.tree.map(take, like, restored, is_leaf=lambda leaf: leaf is None)


def _without_empty(state: TrainState) -> TrainState:
    """The state without arrays of size 0, which Orbax does not take."""
    return jax.tree.map(lambda leaf: leaf if leaf.size else None, state)


def _read(folder: Path, **items: Any) -> Any:
    """What the newest step holds of `items`. UserError if it cannot be read, for instance since a file is missing."""
    try:
        with _manager(folder) as manager:
            return manager.restore(manager.latest_step(), args=ocp.args.Composite(**items))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        said = shorten(" ".join(str(error).split()), 300)
        raise UserError(
            f"run {folder.parent}: its newest step in {folder} cannot be read ({said}); delete that step to go on from "
            "the one before, if there is one, or start again"
        ) from error


def read_saved_config(folder: Path) -> TrainConfig:
    """The config that the newest step was made with.

    UserError if there is none, its schema is another, or a file that it names holds something else now.
    """
    if not folder.is_dir():
        raise UserError(f"run {folder.parent}: no folder {folder.name}; --resume takes the folder of an earlier run")
    require_step(folder)
    about = convert(_About, _read(folder, about=ocp.args.JsonRestore()).about, f"run {folder.parent}: about")
    if about.schema != SCHEMA:
        raise UserError(f"run {folder.parent}: schema {about.schema}, this version reads schema {SCHEMA}")
    if changed := find_changed(about.files, about.config):
        raise UserError(f"run {folder.parent}: {changed} is not what it was when the run began; start a new run")
    where = f"run {folder.parent}"
    return validate(from_saved(json.loads(json.dumps(about.config)), where), where)
