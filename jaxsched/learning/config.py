"""What a training run is: one frozen dataclass, read from YAML. A misspelt key is refused by name."""

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from jaxsched.cluster.outages import parse_rates
from jaxsched.dynamics.batching import PATHS
from jaxsched.env.knowledge import HISTORY, KNOWLEDGE, NOTHING, RUNTIMES
from jaxsched.env.queues import Discipline
from jaxsched.env.state import MOST_FORWARDS, preemption
from jaxsched.errors import UserError
from jaxsched.io.inputs import shortened
from jaxsched.io.schema import converted
from jaxsched.io.yaml_file import read_yaml
from jaxsched.networks.kinds import KINDS, MOST_EXCHANGES, MOST_WIDTH
from jaxsched.workload.mixes import get_mix

T = TypeVar("T")
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class WorkloadConfig:
    """The jobs to train on; ranges (low, high) are drawn anew for every environment."""

    load: tuple[float, float] = (0.6, 1.0)
    mean_duration_s: float = 3600.0
    duration_cap_s: float = 28800.0
    gpu_counts: tuple[tuple[int, float], ...] = ((1, 0.6), (2, 0.08), (4, 0.14), (8, 0.12), (16, 0.04), (32, 0.02))
    ps_fraction: float = 0.5
    mix: str = "default"  # of models: a name of `workload.mixes`, or models with commas between
    burstiness: float = 1.5
    home_skew: tuple[float, float] = (0.3, 0.3)  # home h has weight (h + 1)^-skew
    gang_tilt: tuple[float, float] = (0.0, 0.0)  # gangs are drawn with weights times size^tilt
    pace: tuple[float, float] = (1.0, 1.0)  # factor of all times, the interval included; log-uniform
    jobs: int = 512  # per environment
    trace_gpu: str = ""  # GPU type that run times are on; "": the reference type of each cluster


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """The cluster to train on."""

    cluster: str = "leaf-spine-8"
    more_clusters: tuple[str, ...] = ()  # every environment draws one of all
    schedulers: int = 2
    interval_s: float = 300.0
    interval_factor: tuple[float, float] = (1.0, 1.0)  # of the interval alone, drawn per environment; log-uniform
    running_slots: int = 32
    queue_slots: int = 64
    rounds: int = 16
    max_forwards: int = 2  # of a job; 0 = schedulers keep what arrives
    interference: str = "analytic"  # as `--interference` of the command line
    contention: tuple[float, float] = (0.5, 1.5)  # its strength, drawn per environment, 1 = as it is
    knows: str = RUNTIMES  # what the schedulers know of run times, as `--knows` of the command line
    preemption: bool = False  # as `--preemption`: running jobs may be stopped, by whoever does; what that costs:
    restart_s: float = 60.0
    checkpoint_s: float = 0.0
    min_run_s: float = 0.0
    failures: str = ""  # as `--failures`: servers fail, drawn anew for every environment; "": none does


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """See `networks.hierarchy.SchedulerNetwork`."""

    kind: str = "graph"  # or "flat": an MLP on all arrays of a scheduler, for clusters of one size
    width: int = 32
    exchange_rounds: int = 1
    hierarchy: bool = True
    prior: bool = True
    may_wait: bool = True


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """See `env.reward` and `learning.shaping`; all terms are divided by `scale`."""

    jobs: float = 0.0
    lost: float = 1.0
    progress: float = 0.0
    interference: bool = True  # False: slowdowns count neither in `lost` nor in the potential
    scale: float = 20.0
    potential: float = 1.0  # weight of the shaping, 0 = off
    potential_waiting: float = 0.3
    team_share: float = 0.5  # share of the reward that is the mean over all schedulers


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """The estimator."""

    num_envs: int = 64
    steps: int = 96  # per chunk and environment: decision rounds, or turns on an accelerator
    chunks: int = 60
    epochs: int = 2
    minibatches: int = 8
    keep: float = 0.5  # share of the rounds that are learned from, those with real choices first
    busy: float = 0.75  # share of the menus in a minibatch that may hold something; what is beyond is not learned from
    learning_rate: float = 2e-3
    gamma: float = 0.98  # per `env.interval_s` at pace 1; 1 between rounds of one boundary
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy: float = 0.003
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    critic_only_chunks: int = 2
    restart_share: float = 1 / 6  # of the environments, between chunks
    shards: int = 1  # of the environments, each on a device of its own if there are enough, see `learning.shards`


@dataclasses.dataclass(frozen=True)
class ValidationConfig:
    """Greedy runs on fixed seeds between chunks; the best weights by mean JCT are the checkpoint."""

    every: int = 10  # chunks
    seeds: int = 16
    jobs: int = 160
    load: float = 0.85


@dataclasses.dataclass(frozen=True)
class MachineConfig:
    """What the programs of a run are made for."""

    path: str = AUTO  # cpu: rounds, environment by environment; accelerator: turns of all in step; auto: by the device


SEEN = Discipline(order="sjf", backfill=True, reserve=True, window=4)  # what the learned schedulers see of a queue


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A whole run."""

    seed: int = 0
    env: EnvironmentConfig = EnvironmentConfig()
    queue: Discipline = SEEN
    workload: WorkloadConfig = WorkloadConfig()
    network: NetworkConfig = NetworkConfig()
    reward: RewardConfig = RewardConfig()
    ppo: PPOConfig = PPOConfig()
    validation: ValidationConfig = ValidationConfig()
    machine: MachineConfig = MachineConfig()


def to_dict(config: TrainConfig) -> dict:
    """Plain nested dict, as `from_dict` reads it."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Any, where: str = "config", default: T | None = None) -> T:
    """A config dataclass from nested plain values; what they leave out is as in `default` (None: `kind()`).

    UserError on an unknown key or a value of the wrong kind.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: {shortened(repr(values))} should be a mapping of keys to values")
    hints, base = typing.get_type_hints(kind), kind() if default is None else default
    made = {}
    for key, value in values.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key)[:60], hints, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(hints)}"
            raise UserError(f"{where}: unknown key {shortened(repr(key))}; {hint}")
        place = f"{where}: {key}"
        if dataclasses.is_dataclass(hints[key]):
            made[key] = from_dict(typing.cast(type, hints[key]), value, place, getattr(base, key))
        else:
            made[key] = _checked(hints[key], value, place)
    try:
        return dataclasses.replace(typing.cast(Any, base), **made)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _checked(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = str  # a name or a function: a file can only hold the name
    return converted(hint, value, where)


def load_config(path: str | Path) -> TrainConfig:
    """The config of a YAML file; UserError naming file, key and what would be right."""
    values = read_yaml(path, "configs/quickstart.yaml")
    if values is None:
        raise UserError(f"{path}: is empty; see configs/quickstart.yaml for an example")
    return validate(from_dict(TrainConfig, values, str(path)), str(path))


def validate(config: TrainConfig, where: str = "config") -> TrainConfig:
    """`config`, if its numbers make sense together; UserError otherwise."""
    ppo, env, jobs, net, check = config.ppo, config.env, config.workload, config.network, config.validation
    learned = int(ppo.num_envs // max(ppo.shards, 1) * ppo.steps * ppo.keep)
    rules = [
        (0 <= config.seed < 2**63, "seed must be a whole number from 0 to 2^63 - 1"),
        (ppo.num_envs >= 1 and ppo.steps >= 1 and ppo.chunks >= 1, "ppo: num_envs, steps, chunks must be at least 1"),
        (ppo.epochs >= 1 and ppo.minibatches >= 1, "ppo: epochs and minibatches must be at least 1"),
        (0 < ppo.keep <= 1, "ppo: keep must be in (0, 1]"),
        (0 < ppo.busy <= 1, "ppo: busy must be in (0, 1]"),
        (learned >= ppo.minibatches, f"ppo: {ppo.minibatches} minibatches of {learned} kept rounds are empty"),
        (0 < ppo.gamma < 1, "ppo: gamma must be in (0, 1), since jobs arrive without end"),
        (0 <= ppo.gae_lambda <= 1, "ppo: gae_lambda must be in [0, 1]"),
        (ppo.learning_rate > 0, "ppo: learning_rate must be above 0"),
        (ppo.clip > 0 and ppo.max_grad_norm > 0, "ppo: clip and max_grad_norm must be above 0"),
        (ppo.entropy >= 0 and ppo.value_weight >= 0, "ppo: entropy and value_weight must be at least 0"),
        (ppo.critic_only_chunks >= 0, "ppo: critic_only_chunks must be at least 0"),
        (0 <= ppo.restart_share <= 1, "ppo: restart_share must be in [0, 1]"),
        (ppo.shards >= 1, "ppo: shards must be at least 1"),
        (
            ppo.shards < 1 or (ppo.num_envs % ppo.shards == 0 and check.seeds % ppo.shards == 0),
            f"ppo: {ppo.shards} shards must divide num_envs ({ppo.num_envs}) and validation: seeds ({check.seeds})",
        ),
        (config.reward.scale > 0, "reward: scale must be above 0"),
        (0 <= config.reward.team_share <= 1, "reward: team_share must be in [0, 1]"),
        (0 < jobs.load[0] <= jobs.load[1], "workload: load must be two rising positive numbers"),
        (0 <= jobs.home_skew[0] <= jobs.home_skew[1], "workload: home_skew must be two rising numbers"),
        (jobs.gang_tilt[0] <= jobs.gang_tilt[1], "workload: gang_tilt must be two rising numbers"),
        (0 < jobs.pace[0] <= jobs.pace[1], "workload: pace must be two rising positive numbers"),
        (
            0 < env.interval_factor[0] <= env.interval_factor[1],
            "env: interval_factor must be two rising positive numbers",
        ),
        (jobs.jobs >= 1, "workload: jobs must be at least 1"),
        (0 <= env.contention[0] <= env.contention[1], "env: contention must be two rising numbers"),
        (env.rounds >= 1, "env: rounds must be at least 1"),
        (0 <= env.max_forwards <= MOST_FORWARDS, f"env: max_forwards must be from 0 to {MOST_FORWARDS}"),
        (env.running_slots >= 1 and env.queue_slots >= 1, "env: running_slots and queue_slots must be at least 1"),
        (config.machine.path in (AUTO, *PATHS), f"machine: path must be one of {', '.join((AUTO, *PATHS))}"),
        (net.kind in KINDS, f"network: kind must be one of {', '.join(KINDS)}"),
        (net.width >= 1 and net.exchange_rounds >= 0, "network: width must be at least 1, exchange_rounds at least 0"),
        (check.every >= 1 and check.seeds >= 1, "validation: every, seeds must be at least 1"),
        (check.jobs >= 1 and check.load > 0, "validation: jobs must be at least 1, load above 0"),
        *_world(config),
        *_bounds(config),
    ]
    for holds, message in rules:
        if not holds:
            raise UserError(f"{where}: {message}")
    try:
        preemption(env.restart_s, env.checkpoint_s, env.min_run_s)
        if env.failures:
            parse_rates(env.failures)
    except UserError as error:
        raise UserError(f"{where}: env: {error}") from None
    try:
        get_mix(jobs.mix)
    except UserError as error:
        raise UserError(f"{where}: workload: {error}") from None
    return config


def _world(config: TrainConfig) -> list[tuple[bool, str]]:
    """Rules of what schedulers know and may do."""
    env, allowed = config.env, [name for name in KNOWLEDGE if name != NOTHING]
    return [
        (env.knows in allowed, f"env: knows must be one of {', '.join(allowed)}: learned schedulers read estimates"),
        (
            env.knows == HISTORY or not config.queue.needs_history,
            f"queue: order {config.queue.order} needs env: knows: {HISTORY}; las needs nothing",
        ),
        (
            env.preemption or env.min_run_s == 0.0,
            "env: min_run_s says when schedulers may stop jobs, but preemption is off",
        ),
        (
            env.preemption or env.failures != "" or (env.restart_s, env.checkpoint_s) == (60.0, 0.0),
            "env: restart_s and checkpoint_s say what stopping jobs costs, but preemption is off, and no server fails",
        ),
    ]


MOST = 1 << 16  # environments, steps, slots and the like: far above any run, far below any memory
MOST_TOGETHER = 1 << 28  # of what is allocated for every environment


def _bounds(config: TrainConfig) -> list[tuple[bool, str]]:
    """Rules that keep a mistyped size from taking all memory, or from compiling without end."""
    ppo, env, jobs, net, check = config.ppo, config.env, config.workload, config.network, config.validation
    sizes = {
        "ppo: num_envs": ppo.num_envs,
        "ppo: steps": ppo.steps,
        "ppo: epochs": ppo.epochs,
        "ppo: minibatches": ppo.minibatches,
        "ppo: shards": ppo.shards,
        "env: running_slots": env.running_slots,
        "env: queue_slots": env.queue_slots,
        "env: rounds": env.rounds,
        "env: schedulers": env.schedulers,
        "queue: window": config.queue.window,
        "validation: seeds": check.seeds,
    }
    slots = env.running_slots + env.queue_slots + jobs.jobs
    return [
        *((size <= MOST, f"{name} must be at most {MOST}") for name, size in sizes.items()),
        (ppo.chunks < 2**31 and check.every < 2**31, "ppo: chunks and validation: every must be less than 2^31"),
        (jobs.jobs <= 10**7 and check.jobs <= 10**7, "workload: jobs and validation: jobs must be at most 10,000,000"),
        (net.width <= MOST_WIDTH, f"network: width must be at most {MOST_WIDTH}"),
        (net.exchange_rounds <= MOST_EXCHANGES, f"network: exchange_rounds must be at most {MOST_EXCHANGES}"),
        (len(jobs.gpu_counts) <= 1024, "workload: gpu_counts must have at most 1,024 entries"),
        (
            ppo.num_envs * max(ppo.steps, slots) <= MOST_TOGETHER and check.seeds * check.jobs <= MOST_TOGETHER,
            f"ppo: num_envs times steps, or times slots and jobs, must be at most {MOST_TOGETHER:,}",
        ),
    ]


def quickstart_config() -> TrainConfig:
    """A few minutes on two cores: eight servers, two schedulers."""
    return TrainConfig()
