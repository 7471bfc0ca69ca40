"""Antithetic evolution strategies with rank weights (Salimans et al., 2017), and the state of a run.

They need only runs that are compared. The state is one small file, replaced whole after each generation.
"""

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.io.files import read_text, write_text
from jaxsched.io.json_file import parse_json
from jaxsched.io.schema import Count, convert
from jaxsched.learning.evolved.config import EvolvedConfig
from jaxsched.learning.evolved.tasks import TASKS, Strategy

SMALLEST = 1e-3  # as Adam's
KEPT = 0.9  # of the average, per generation
STATE_FILE = "evolved.json"
SCHEMA = 3
MOST_BYTES = 1 << 20
ARRAYS = ("point", "average", "momentum", "squares")  # of a search


@dataclasses.dataclass(frozen=True)
class Search:
    """A point and what is known of the way; everything that is needed to go on."""

    point: Float64[np.ndarray, "numbers"]
    average: Float64[np.ndarray, "numbers"]  # of the points so far, the latest count most: it is what is judged
    momentum: Float64[np.ndarray, "numbers"]
    squares: Float64[np.ndarray, "numbers"]
    generation: int = 0


def begin(point: Float64[np.ndarray, "numbers"]) -> Search:
    """At that point."""
    return Search(point, point, np.zeros_like(point), np.zeros_like(point))


def candidates(
    search: Search, rng: np.random.Generator, strategy: Strategy
) -> tuple[Float64[np.ndarray, "pairs numbers"], list]:
    """Directions, and the points on both sides: `+` and `-` of the first, of the second, ..."""
    directions = rng.normal(size=(strategy.pairs, len(search.point)))
    points = [search.point + sign * strategy.sigma * one for one in directions for sign in (1.0, -1.0)]
    return directions, points


def move(
    search: Search,
    directions: Float64[np.ndarray, "pairs numbers"],
    costs: Float64[np.ndarray, "lists candidates"],
    strategy: Strategy,
) -> Search:
    """The next point, away from the candidates that cost most; only their order on each list counts."""
    rank = costs.argsort(kind="stable").argsort(kind="stable") / (costs.shape[-1] - 1) - 0.5
    plus, minus = rank.mean(0).reshape(strategy.pairs, 2).T
    slope = ((plus - minus)[:, None] * directions).mean(0)
    momentum = strategy.momentum * search.momentum + (1.0 - strategy.momentum) * slope
    squares = strategy.squares * search.squares + (1.0 - strategy.squares) * slope**2
    generation = search.generation + 1
    scale = np.sqrt(squares / (1.0 - strategy.squares**generation)) + SMALLEST
    point = search.point - strategy.step * momentum / scale
    average = KEPT * search.average + (1.0 - KEPT) * point
    return Search(point, average, momentum, squares, generation)


@dataclasses.dataclass(frozen=True)
class EvolvedState:
    """Everything that a run needs to go on as if it had never stopped."""

    search: Search
    best: np.ndarray  # the numbers of the policy
    best_ratio: float | None = None  # of its mean completion times to those of the rule; None: not judged yet
    best_generation: int = 0
    first_ratio: float | None = None  # as `best_ratio`, where learning starts; runs from before do not have it


class _Saved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    schema: int
    config: EvolvedConfig
    jobs: str  # digest of what is learned from
    point: list[float]
    average: list[float]
    momentum: list[float]
    squares: list[float]
    generation: Count
    best: list[float]
    best_ratio: float | None
    best_generation: Count
    first_ratio: float | None = None
    command: str


def save(run_dir: Path, state: EvolvedState, config: EvolvedConfig, jobs: str, command: str) -> None:
    """Write it; floats are written so that the same ones are read."""
    content = {
        "schema": SCHEMA,
        "config": dataclasses.asdict(config),
        "jobs": jobs,
        **{name: getattr(state.search, name).tolist() for name in ARRAYS},
        "generation": state.search.generation,
        "best": state.best.tolist(),
        "best_ratio": state.best_ratio,
        "best_generation": state.best_generation,
        "first_ratio": state.first_ratio,
        "command": command,
    }
    write_text(run_dir / STATE_FILE, json.dumps(content, indent=1) + "\n")


def _read(run_dir: Path) -> _Saved:
    where = f"run {run_dir}: {STATE_FILE}"
    values = parse_json(read_text(run_dir / STATE_FILE, MOST_BYTES), where)
    saved: _Saved = convert(_Saved, values, where)
    if min(saved.squares, default=0.0) < 0.0:
        raise UserError(f"{where}: squares has {min(saved.squares):g}, should be at least 0")
    if saved.schema != SCHEMA:
        raise UserError(f"{where}: schema {saved.schema}, this version reads schema {SCHEMA}")
    count = len(TASKS[saved.config.learn].begin)
    for name in (*ARRAYS, "best"):
        if len(getattr(saved, name)) != count:
            raise UserError(f"{where}: {name} has {len(getattr(saved, name))} numbers, should have {count}")
    return saved


def read_saved_config(run_dir: Path) -> EvolvedConfig:
    """What the run was told. UserError if the file is not as `save` writes it."""
    return _read(run_dir).config


def restore(run_dir: Path, config: EvolvedConfig, jobs: str) -> tuple[EvolvedState, str]:
    """The state, and the command that began the run. UserError if the file is bad, or is of something else."""
    saved = _read(run_dir)
    if saved.config != config:
        raise UserError(f"run {run_dir}: holds a run of another configuration; name a new folder")
    if saved.jobs != jobs:
        named = f"the jobs of its workload {saved.config.workload}, its cluster {saved.config.cluster} or its law"
        raise UserError(f"run {run_dir}: {named} are not what they were when it began; start a new run")
    arrays = (np.array(getattr(saved, name)) for name in ARRAYS)
    search = Search(*arrays, generation=saved.generation)
    best = np.array(saved.best), saved.best_ratio, saved.best_generation
    return EvolvedState(search, *best, saved.first_ratio), saved.command
