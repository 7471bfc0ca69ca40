"""What a sweep will do: its programs and their points, and which of them are finished. Nothing is compiled.

Runs share a program if they differ only in sweepable numbers: those on which no array's shape and no branch of the
program depends. `TRACED` ones are arguments of the program; `IN_ARRAYS` ones are read before, when the worlds are made,
whose arrays then are arguments.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from jaxsched.learning.config import TrainConfig, to_dict
from jaxsched.sweeps.file import Point, Sweep
from jaxsched.sweeps.rows import ROWS_FILE, read_sweep_rows

TRACED = (
    "seed",
    "ppo.learning_rate",
    "ppo.gamma",
    "ppo.gae_lambda",
    "ppo.clip",
    "ppo.entropy",
    "ppo.value_weight",
    "ppo.max_grad_norm",
    "ppo.critic_only_chunks",
    *(f"reward.{field.name}" for field in dataclasses.fields(TrainConfig().reward)),
    "workload.load",
    "workload.home_skew",
    "workload.gang_tilt",
    "workload.pace",
    "env.contention",
    "env.interval_factor",
    "validation.load",
)
IN_ARRAYS = (
    "env.interval_s",
    "env.max_forwards",
    "workload.mean_duration_s",
    "workload.duration_cap_s",
    "workload.gpu_counts",
    "workload.ps_fraction",
    "workload.burstiness",
)
SWEEPABLE = TRACED + IN_ARRAYS


class Program(NamedTuple):
    """Points that share a program, and how many of them are trained at once."""

    points: list[Point]
    runs_at_once: int

    @property
    def differing(self) -> list[str]:
        """The numbers in which the points differ, the seed apart."""
        configs = [flat(point.config) for point in self.points]
        return [key for key in configs[0] if key != "seed" and len({str(one[key]) for one in configs}) > 1]


def programs(sweep: Sweep) -> list[Program]:
    """The sweep's programs, in the order of the file."""
    groups: dict[Any, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(shape_key(point.config), []).append(point)
    most = sweep.runs_at_once or (1 if jax.default_backend() == "cpu" else len(sweep.points))
    return [Program(points, min(most, len(points))) for points in groups.values()]


def plan(sweep: Sweep, memory_mib: Callable[[Program], float] | None = None) -> Iterator[str]:
    """One line per program: its points, how they run, and with `memory_mib` what their shapes need."""
    finished = {row["id"] for row in rows_of(sweep)}
    for number, program in enumerate(programs(sweep), 1):
        names = list(dict.fromkeys(point.group for point in program.points))
        done = sum(sweep.id_of(point) in finished for point in program.points)
        how = "one after the other" if program.runs_at_once == 1 else f"{program.runs_at_once} at once"
        differ = f", differing in {', '.join(program.differing)}" if program.differing else ""
        line = f"program {number}: {len(program.points)} points ({done} finished) of {', '.join(names)}{differ}; {how}"
        yield line if memory_mib is None else f"{line}; at least {memory_mib(program):,.0f} MiB"


def chunks_left(sweep: Sweep) -> int:
    """Chunks of all points that have no row yet; of points that are trained at once, those of one."""
    finished = {row["id"] for row in rows_of(sweep)}
    left = 0
    for program in programs(sweep):
        points = [point for point in program.points if sweep.id_of(point) not in finished]
        left += math.ceil(len(points) / program.runs_at_once) * program.points[0].config.ppo.chunks
    return left


def rows_of(sweep: Sweep) -> list[dict[str, Any]]:
    """The rows of the sweep's points that are finished, in the order of the file and by the names that it has now."""
    by_id = {row["id"]: row for row in read_sweep_rows(sweep.out / ROWS_FILE)}
    wanted = {sweep.id_of(point): point for point in sweep.points}
    return [by_id[one] | names_of(point) for one, point in wanted.items() if one in by_id]


def names_of(point: Point) -> dict[str, Any]:
    """What a row says of its point."""
    return {"point": point.name, "group": point.group, "variant": point.variant, "changes": point.changes}


def flat(config: Any) -> dict[str, Any]:
    """Values by dotted name, as plain ones."""
    flat = {}
    for key, value in json.loads(json.dumps(to_dict(config))).items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def value_of(config: TrainConfig, name: str) -> Any:
    """The value at a dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def replace_values(config: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    """`config` with other values at dotted names."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        config = dataclasses.replace(
            config, **{first: dataclasses.replace(getattr(config, first), **{rest: value}) if rest else value}
        )
    return config


def shape_key(config: TrainConfig) -> TrainConfig:
    """The same for all configs that share a program: every sweepable number is at its default."""
    return replace_values(config, {name: value_of(TrainConfig(), name) for name in SWEEPABLE})
