"""What stays the same over a training run: its config, where environments are drawn from, and the network."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from jaxsched.dynamics.batching import ACCELERATOR, CPU, on_cpu, traced_for
from jaxsched.env.state import EnvConfig
from jaxsched.errors import UserError
from jaxsched.learning.config import AUTO, TrainConfig
from jaxsched.learning.worlds import Worlds, make_worlds
from jaxsched.networks.hierarchy import SchedulerNetwork

Rest = ParamSpec("Rest")
T = TypeVar("T")


class Setting(NamedTuple):
    """A config with its worlds and its network; `checks`: what `env.checks` holds is checked after every round."""

    config: TrainConfig
    worlds: Worlds
    network: SchedulerNetwork
    checks: bool = False

    @property
    def path(self) -> str:
        """What programs are made for, one of `dynamics.batching.PATHS`."""
        return self.config.machine.path

    @property
    def static(self) -> EnvConfig:
        return self.worlds.static


def for_this_machine(config: TrainConfig) -> TrainConfig:
    """`config` with the path that suits JAX's default backend, unless it says which."""
    if config.machine.path != AUTO:
        return config
    path = CPU if on_cpu() else ACCELERATOR
    return dataclasses.replace(config, machine=dataclasses.replace(config.machine, path=path))


def same_run(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether both say the same on this machine."""
    return for_this_machine(one) == for_this_machine(other)


def on_its_path(function: Callable[Concatenate[Setting, Rest], T]) -> Callable[Concatenate[Setting, Rest], T]:
    """`function`, traced for what its setting's programs are made for."""

    @functools.wraps(function)
    def run(setting: Setting, *args: Rest.args, **more: Rest.kwargs) -> T:
        with traced_for(setting.path):
            return function(setting, *args, **more)

    return run


def make_setting(config: TrainConfig, checks: bool = False) -> Setting:
    """The setting of a config. UserError on a cluster or an interference model that does not exist."""
    if checks and config.ppo.shards > 1:
        raise UserError(f"debug checks: cannot look into shards, ppo.shards is {config.ppo.shards}, should be 1")
    config = for_this_machine(config)
    worlds = make_worlds(config.env, config.workload, config.reward)
    return Setting(config, worlds, SchedulerNetwork(**dataclasses.asdict(config.network)), checks)
