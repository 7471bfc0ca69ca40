"""What a training run is told: one frozen dataclass of the options of its parts, read from YAML.

Here the options of `learning.options` are put together, read, and checked against each other. A misspelt key is refused
by name.
"""

import dataclasses
import difflib
import typing
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from jaxsched.dynamics.batching import PATHS
from jaxsched.env.queues import BASIC, Discipline, check_shown
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.io.schema import convert
from jaxsched.io.yaml_file import read_yaml
from jaxsched.learning.options import (
    EnvironmentConfig,
    PPOConfig,
    RewardConfig,
    Rules,
    Seed,
    StartConfig,
    ValidationConfig,
    WorkloadConfig,
)
from jaxsched.networks import KINDS, MOST_EXCHANGES, MOST_WIDTH

T = TypeVar("T")
AUTO = "auto"
MOST_TOGETHER = 1 << 28  # of what is allocated for every environment: a mistyped size must not take all memory


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """See `networks.hierarchy.SchedulerNetwork`."""

    kind: str = "graph"  # or "flat": an MLP on all arrays of a scheduler, for clusters of one size
    width: Annotated[int, Meta(ge=1, le=MOST_WIDTH)] = 32
    exchange_rounds: Annotated[int, Meta(ge=0, le=MOST_EXCHANGES)] = 1
    hierarchy: bool = True
    prior: bool = True
    may_wait: bool = True
    looks_ahead: bool = False  # menus say what waiting would bring

    def rules(self) -> Rules:
        """What must hold."""
        return [(self.kind in KINDS, f"kind must be one of {', '.join(KINDS)}")]


@dataclasses.dataclass(frozen=True)
class MachineConfig:
    """What the programs of a run are made for."""

    path: str = AUTO  # cpu: rounds, environment by environment; accelerator: turns of all in step; auto: by the device

    def rules(self) -> Rules:
        """What must hold."""
        return [(self.path in (AUTO, *PATHS), f"path must be one of {', '.join((AUTO, *PATHS))}")]


@dataclasses.dataclass(frozen=True)
class QueueView(Discipline):
    """What the learned schedulers see of a queue: a discipline, with these defaults."""

    order: str = "sjf"
    backfill: bool = True
    reserve: bool = True
    window: Annotated[int, Meta(ge=1, le=1 << 16)] = 4


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A whole run."""

    seed: Seed = 0
    env: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    queue: QueueView = dataclasses.field(default_factory=QueueView)
    workload: WorkloadConfig = dataclasses.field(default_factory=WorkloadConfig)
    network: NetworkConfig = dataclasses.field(default_factory=NetworkConfig)
    reward: RewardConfig = dataclasses.field(default_factory=RewardConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    validation: ValidationConfig = dataclasses.field(default_factory=ValidationConfig)
    start: StartConfig = dataclasses.field(default_factory=StartConfig)
    machine: MachineConfig = dataclasses.field(default_factory=MachineConfig)


def to_dict(config: TrainConfig) -> dict:
    """Plain nested dict, as `from_dict` reads it."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Any, where: str = "config", default: T | None = None) -> T:
    """A config dataclass from nested plain values; what they leave out is as in `default` (None: `kind()`).

    UserError on an unknown key or a value of the wrong kind.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: {shorten(repr(values))} should be a mapping of keys to values")
    hints, base = typing.get_type_hints(kind, include_extras=True), kind() if default is None else default
    made = {}
    for key, value in values.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key)[:60], hints, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(hints)}"
            raise UserError(f"{where}: unknown key {shorten(repr(key))}; {hint}")
        place = f"{where}: {key}"
        if dataclasses.is_dataclass(hints[key]):
            made[key] = from_dict(typing.cast(type, hints[key]), value, place, getattr(base, key))
        else:
            made[key] = convert(hints[key], value, place)
    try:
        return dataclasses.replace(typing.cast(Any, base), **made)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def from_saved(values: Any, where: str) -> TrainConfig:
    """The config that a run or a card was written with, see `from_dict`.

    Before validation had a seed of its own, its worlds were drawn with that of training, and so they still are.
    """
    part = values.get("validation", {}) if isinstance(values, dict) else None
    if isinstance(part, dict):
        values = values | {"validation": {"seed": None} | part}
    return from_dict(TrainConfig, values, where)


def load_config(path: str | Path) -> TrainConfig:
    """The config of a YAML file; UserError naming file, key and what would be right."""
    values = read_yaml(path, "configs/quickstart.yaml")
    if values is None:
        raise UserError(f"{path}: is empty; see configs/quickstart.yaml for an example")
    return validate(from_dict(TrainConfig, values, str(path)), str(path))


def validate(config: TrainConfig, where: str = "config") -> TrainConfig:
    """`config`, if its numbers are within limits and make sense together; UserError otherwise."""
    config = from_dict(TrainConfig, to_dict(config), where)
    for part in dataclasses.fields(config):
        options = getattr(config, part.name)
        try:
            broken = [message for holds, message in getattr(options, "rules", list)() if not holds]
        except UserError as error:
            raise UserError(f"{where}: {part.name}: {error}") from None
        if broken:
            raise UserError(f"{where}: {part.name}: {broken[0]}")
    for holds, message in _rules(config):
        if not holds:
            raise UserError(f"{where}: {message}")
    check_shown(config.queue, config.network.looks_ahead)
    return config


def _rules(config: TrainConfig) -> Rules:
    """What must hold of several parts together."""
    ppo, env, jobs, check = config.ppo, config.env, config.workload, config.validation
    slots = env.running_slots + env.queue_slots + jobs.jobs
    return [
        (check.seeds % ppo.shards == 0, f"ppo: {ppo.shards} shards must divide validation: seeds ({check.seeds})"),
        (
            config.queue.order in BASIC and not config.queue.preempt,
            f"queue: order must be one of {', '.join(BASIC)}, without preempt: the others are for the event loop",
        ),
        (
            ppo.num_envs * max(ppo.steps, slots) <= MOST_TOGETHER and check.seeds * check.jobs <= MOST_TOGETHER,
            f"ppo: num_envs times steps, or times slots and jobs, must be at most {MOST_TOGETHER:,}",
        ),
    ]


def quickstart_config() -> TrainConfig:
    """A few minutes on two cores: eight servers, two schedulers."""
    return TrainConfig()


def describe_limits(config: TrainConfig) -> str:
    """What a policy is trained on, in a few sentences: beyond it nothing is known until it is measured."""
    env, jobs = config.env, config.workload

    def span(limits: tuple[float, float]) -> str:
        low, high = limits
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    load, gangs = "offered load", ", ".join(f"{size}" for size, _ in jobs.gpu_counts)
    what = (
        f"gangs of {gangs} GPUs, mean run time {jobs.mean_duration_s:g} s and at most {jobs.duration_cap_s:g} s times"
        " the first of these"
    )
    if jobs.trace:
        share = "" if jobs.until == 1.0 else f"the first {jobs.until:.0%} of "
        what = f"stretches of {share}{Path(jobs.trace).name}"
    elif jobs.own:
        load, what = "load of these worlds times", "jobs and models of these worlds"
    return (
        f"Trained on {', '.join((env.cluster, *env.more_clusters))} with {env.schedulers} scheduler(s), decisions every"
        f" {env.interval_s:g} s times {span(jobs.pace)} times {span(env.interval_factor)}, {load}"
        f" {span(jobs.load)}, {env.interference} interference times {span(env.contention)}, {what}, exact durations."
        " Beyond these nothing is known but what is measured."
        + _describe_start(config.start)
        + ("" if config.network.kind != "flat" else " For clusters of the same sizes only.")
    )


def _describe_start(start: StartConfig) -> str:
    frozen = f", but for {', '.join(start.freeze)}, which stayed as they were" if start.freeze else ""
    return f" Begun with the weights of {start.checkpoint}{frozen}." if start.checkpoint else ""
