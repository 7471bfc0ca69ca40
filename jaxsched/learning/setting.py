"""What a configuration becomes: it goes in once, and each part of a run takes its own of it from here."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from jax import Array
from jaxtyping import Int32

from jaxsched.dynamics.batching import ACCELERATOR, CPU, on_cpu, traced_for
from jaxsched.env.queues import Discipline
from jaxsched.env.state import EnvConfig
from jaxsched.errors import UserError
from jaxsched.learning.config import AUTO, TrainConfig
from jaxsched.learning.options import PPOConfig, RewardConfig, StartConfig, ValidationConfig
from jaxsched.learning.rollout import Rollout
from jaxsched.learning.worlds import Worlds, make_worlds
from jaxsched.networks.hierarchy import SchedulerNetwork

Rest = ParamSpec("Rest")
T = TypeVar("T")


class Setting(NamedTuple):
    """What the programs of a run are made of. Numbers of runs that share a program may be arrays."""

    seed: int | Int32[Array, ""]
    path: str  # what programs are made for, one of `dynamics.batching.PATHS`
    worlds: Worlds
    network: SchedulerNetwork
    queue: Discipline
    reward: RewardConfig
    ppo: PPOConfig
    validation: ValidationConfig
    start: StartConfig = StartConfig()
    checks: bool = False  # what `env.checks` holds is checked after every round

    @property
    def static(self) -> EnvConfig:
        """Shapes and switches of the environments."""
        return self.worlds.static

    @property
    def rollout(self) -> Rollout:
        """What collects experience."""
        ppo = self.ppo
        return Rollout(self.worlds, self.network, self.queue, self.reward, ppo.gamma, ppo.steps, self.checks)


def make_setting(config: TrainConfig, checks: bool = False) -> Setting:
    """The setting of a config. UserError on a cluster or an interference model that does not exist."""
    if checks and config.ppo.shards > 1:
        raise UserError(f"debug checks: cannot look into shards, ppo.shards is {config.ppo.shards}, should be 1")
    worlds = make_worlds(config.env, config.workload, config.reward.weights())
    return assemble_setting(worlds, config)._replace(checks=checks)


def assemble_setting(worlds: Worlds, config: TrainConfig) -> Setting:
    """The setting of a config whose worlds are made already; its numbers may be arrays."""
    config = settle_path(config)
    return Setting(
        seed=config.seed,
        path=config.machine.path,
        worlds=worlds._replace(env=config.env, workload=config.workload),
        network=SchedulerNetwork(**dataclasses.asdict(config.network)),
        queue=Discipline(**dataclasses.asdict(config.queue)),
        reward=config.reward,
        ppo=config.ppo,
        validation=config.validation,
        start=config.start,
    )


def settle_path(config: TrainConfig) -> TrainConfig:
    """`config` with the path that suits JAX's default backend, unless it says which."""
    if config.machine.path != AUTO:
        return config
    path = CPU if on_cpu() else ACCELERATOR
    return dataclasses.replace(config, machine=dataclasses.replace(config.machine, path=path))


def is_same_run(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether both say the same on this machine."""
    return settle_path(one) == settle_path(other)


def trace_for_path(function: Callable[Concatenate[Setting, Rest], T]) -> Callable[Concatenate[Setting, Rest], T]:
    """`function`, traced for what its setting's programs are made for."""

    @functools.wraps(function)
    def run(setting: Setting, *args: Rest.args, **more: Rest.kwargs) -> T:
        with traced_for(setting.path):
            return function(setting, *args, **more)

    return run
