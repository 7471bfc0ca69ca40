"""A sweep's file, and what it asks for: runs, how their policies are measured, programs. Nothing is compiled.

Every mistake is told with the file and the key. Runs share a program if they differ only in sweepable numbers: those
on which no array's shape and no branch of the program depends. `TRACED` ones are arguments of the program; `IN_ARRAYS`
ones are read before, when the worlds are made, whose arrays then are arguments.
"""

import copy
import dataclasses
import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
from msgspec import Meta

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import speed_of_type
from jaxsched.errors import UserError
from jaxsched.io.cards import digest
from jaxsched.io.schema import Count, Positive, Size
from jaxsched.io.yaml_file import read_yaml
from jaxsched.learning.config import TrainConfig, from_dict, load_config, to_dict, validate
from jaxsched.learning.options import EnvironmentConfig
from jaxsched.learning.worlds import training_cluster
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import check_world
from jaxsched.sweeps.rows import ROWS_FILE, read_sweep_rows
from jaxsched.workload.load import WORKLOADS, unknown_workload

EXAMPLE = "configs/sweeps/ablations.yaml"


@dataclasses.dataclass(frozen=True)
class Tests:
    """How every policy is measured; what is empty or 0 is as the policy was trained."""

    cluster: str = ""
    schedulers: int = 0
    workload: str = "philly-like"
    mix: str = "default"
    loads: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (0.85,)
    num_jobs: Size = 300
    seed: int = 1000  # of the first job list
    seeds: Size = 8
    mean_duration_s: float = 0.0
    duration_cap_s: float = 0.0
    interval_s: float = 0.0
    interference: str = ""
    # to compare with
    policies: Annotated[tuple[str, ...], Meta(min_length=1)] = ("pack", "pack:area+backfill", "greedy-wait")


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    variant: str
    changes: dict[str, Any]  # values of the axes, by dotted key
    config: TrainConfig

    @property
    def group(self) -> str:
        """The name of all points that differ in the seed only."""
        values = [spell_change(key, value) for key, value in self.changes.items()]
        return " ".join([self.variant, *values] if self.variant else values) or "base"

    @property
    def name(self) -> str:
        """Unique in the sweep."""
        return f"{self.group} seed={self.config.seed}"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What the file says."""

    path: Path
    points: tuple[Point, ...]
    tests: Tests
    out: Path
    runs_at_once: int  # in one vmapped program, at most; 0: all that share a program on an accelerator, 1 on a CPU

    def id_of(self, point: Point) -> str:
        """A digest of all that the point's row depends on but for versions."""
        return digest([to_dict(point.config), dataclasses.asdict(self.tests)])


def settings_of(tests: Tests, env: EnvironmentConfig) -> Settings:
    """The rules under which a policy that was trained in `env` is measured."""
    own = {name: value for name in ("interval_s", "interference") if (value := getattr(tests, name))}
    return Settings.taken_from(env, rounds=Settings.rounds, failures=env.failures or None, **own)


@dataclasses.dataclass(frozen=True)
class _Top:
    """The keys of the file that are plain; `axes` and `variants` are free mappings."""

    base: str = ""
    seeds: Annotated[tuple[Count, ...], Meta(min_length=1)] = (0,)
    evaluate: Tests = Tests()
    out: str = ""
    runs_at_once: Count = 0


def load_sweep(path: str | Path) -> Sweep:
    """The sweep of a YAML file; `base` is relative to the file, `out` to the current folder. UserError on a mistake."""
    path = Path(path)
    values = read_yaml(path, EXAMPLE)
    if not isinstance(values, dict):
        raise UserError(f"{path}: should be a mapping with base, out and axes or variants; see {EXAMPLE}")
    values = dict(values)
    axes, variants = (_mapping(values.pop(key, None), f"{path}: {key}") for key in ("axes", "variants"))
    if unknown := [key for key in values if key not in _Top.__dataclass_fields__]:
        known = ", ".join([*_Top.__dataclass_fields__, "axes", "variants"])
        raise UserError(f"{path}: unknown key {unknown[0]!r}; valid keys: {known}")
    top = from_dict(_Top, values, str(path))
    for key in ("base", "out"):
        if not getattr(top, key):
            raise UserError(f"{path}: {key} is missing; give {'a config file' if key == 'base' else 'a folder'}")
    try:
        parse_all(top.evaluate.policies)
    except UserError as error:
        raise UserError(f"{path}: evaluate: {error}") from None
    try:
        base = load_config(path.parent / top.base)
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    for key, choices in axes.items():
        if not isinstance(choices, list) or not choices:
            raise UserError(f"{path}: axes: {key}: {choices!r} should be a list of values")
        if key == "seed":
            raise UserError(f"{path}: axes: seed: seeds are listed under `seeds`")
    points = []
    for (variant, changes), values, seed in itertools.product(
        (variants or {"": {}}).items(), itertools.product(*axes.values()), top.seeds
    ):
        own = _mapping(changes, f"{path}: variants: {variant}")
        if both := [key for key in ("seed", *axes) if key in own]:
            other = "`seeds`" if both[0] == "seed" else "the axes"
            raise UserError(f"{path}: variants: {variant}: {both[0]}: is set by {other}, too; leave one out")
        along = dict(zip(axes, values, strict=True))
        where = f"{path}: {f'variants: {variant}' if own else 'axes'}"
        points.append(Point(str(variant), along, change_config(base, {**own, **along, "seed": seed}, where)))
    names = [point.name for point in points]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path}: the point {twice[0]!r} stands twice; name every value and seed once")
    same: dict[str, str] = {}
    for point in points:
        first = same.setdefault(digest(to_dict(point.config)), point.name)
        if first != point.name:
            raise UserError(f"{path}: {first!r} and {point.name!r} are the same run; leave one of them out")
    if top.evaluate.workload not in WORKLOADS and not os.path.exists(top.evaluate.workload):
        raise UserError(f"{path}: evaluate: {unknown_workload(top.evaluate.workload)}")
    for policy, point in itertools.product(parse_all(top.evaluate.policies), points):
        try:
            check_world(policy, settings_of(top.evaluate, point.config.env))
        except UserError as error:
            raise UserError(f"{path}: evaluate: {error}") from None
    _check_names(points, top.evaluate, str(path))
    return Sweep(path, tuple(points), top.evaluate, Path(top.out), top.runs_at_once)


def _check_names(points: list[Point], tests: Tests, where: str) -> None:
    """That all clusters, GPU types and interference models exist: no point may fail for it after days of others."""
    worlds = [point.config.env for point in points]
    trained = {(name, env.schedulers) for env in worlds for name in (env.cluster, *env.more_clusters)}
    tested = {(tests.cluster, tests.schedulers or env.schedulers) for env in worlds if tests.cluster}
    try:
        clusters = [training_cluster(*names) for names in sorted(trained)]
        for cluster in [*clusters, *(get_cluster(*names) for names in sorted(tested - trained))]:
            for gpu_type in sorted({point.config.workload.trace_gpu for point in points} - {""}):
                speed_of_type(cluster, gpu_type)
        for name in sorted({env.interference for env in worlds} | {tests.interference} - {""}):
            interference_model(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def change_config(config: TrainConfig, changes: dict[str, Any], where: str) -> TrainConfig:
    """`config` with other values at dotted keys, as the YAML of a config would have them. UserError on a mistake."""
    values = copy.deepcopy(to_dict(config))
    for key, value in changes.items():
        *rooms, last = str(key).split(".")
        place: Any = values
        for room in rooms:
            place = place.get(room) if isinstance(place, dict) else None
        if not isinstance(place, dict) or (rooms and last not in place):
            raise UserError(f"{where}: {key}: no such key of a training config; it is ROOM.KEY, as in ppo.gamma")
        place[last] = value
    return validate(from_dict(TrainConfig, values, where), where)


def _mapping(value: Any, where: str) -> dict:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: {value!r} should be a mapping of dotted keys to values")
    return value


def spell_change(key: str, value: Any) -> str:
    """How a point's name says the value of an axis, by its dotted key."""
    return f"{key.rpartition('.')[2]}={_short(value)}"


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")).strip('"') if not isinstance(value, float) else f"{value:g}"


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
