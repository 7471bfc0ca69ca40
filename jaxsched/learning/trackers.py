"""Metrics of a training run for TensorBoard and Weights & Biases, beside the run's own `metrics.jsonl`; and profiles.

Both need the extra `track`. Nothing leaves the machine: W&B writes an offline run, which `wandb sync FOLDER` uploads.
"""

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxsched.errors import UserError

PROFILED = 3  # chunks
Row = Mapping[str, float]
Log = Callable[[dict[str, float], int], None]  # (figures, chunk)
STEP = "chunk"


@contextlib.contextmanager
def _tensorboard(run: Path, config: Mapping[str, Any]) -> Iterator[Log]:
    """Into `RUN/tensorboard`."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(run / "tensorboard")) as writer:

        def log(figures: dict[str, float], chunk: int) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, chunk)

        yield log


@contextlib.contextmanager
def _wandb(run: Path, config: Mapping[str, Any]) -> Iterator[Log]:
    """Into an offline run below `RUN/wandb`; `WANDB_MODE=online` sends it to the server as well."""
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    with wandb.init(project="jaxsched", name=run.name, dir=str(run), config=dict(config), mode=mode) as logged:
        yield lambda figures, chunk: logged.log(figures, step=chunk)


def _options() -> jax.profiler.ProfileOptions:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # the program's own operations: Python does nothing within a chunk
    return options


TRACKERS = {"tensorboard": (_tensorboard, "tensorboardX"), "wandb": (_wandb, "wandb")}  # and the package of each


def check_trackers(names: tuple[str, ...]) -> None:
    """UserError on an unknown tracker, or one whose package is not there."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--track: {name!r} should be one of {', '.join(TRACKERS)}")
        package = TRACKERS[name][1]
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--track {name}: needs {package}; install the extra: pip install 'jaxsched[track]'")


@contextlib.contextmanager
def open_trackers(
    names: tuple[str, ...], run: Path, config: Mapping[str, Any], profile: Path | None = None
) -> Iterator[Callable[[Row], None]]:
    """Passes rows of metrics on to all trackers of `names`, which begin with the first row. Errors as above.

    A figure that a chunk does not have is left out. Where there is a folder `profile`, what JAX's profiler records of
    the chunks after the first one, which waits for its program, comes into it.
    """
    check_trackers(names)
    logs: list[Log] = []
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as recording:
        chunks = 0

        def track(row: Row) -> None:
            nonlocal chunks
            chunks += 1
            if profile is not None and chunks == 1:
                recording.enter_context(jax.profiler.trace(str(profile), profiler_options=_options()))
            if chunks == 1 + PROFILED:
                recording.close()
            if not logs:
                logs.extend(stack.enter_context(TRACKERS[name][0](run, config)) for name in names)
            figures = {name: float(value) for name, value in row.items() if name != "chunks" and math.isfinite(value)}
            for log in logs:
                log(figures, int(row[STEP]))

        yield track
