"""What stays the same over a training run: its config, where environments are drawn from, and the network."""

import dataclasses
from typing import NamedTuple

from jaxsched.env.state import EnvConfig
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.training.config import TrainConfig
from jaxsched.training.worlds import Worlds, make_worlds


class Setting(NamedTuple):
    """A config with its worlds and its network; `checks`: what `env.checks` holds is checked after every round."""

    config: TrainConfig
    worlds: Worlds
    network: SchedulerNetwork
    checks: bool = False

    @property
    def static(self) -> EnvConfig:
        return self.worlds.static


def make_setting(config: TrainConfig, checks: bool = False) -> Setting:
    """The setting of a config. UserError on a cluster or an interference model that does not exist."""
    if checks and config.ppo.shards > 1:
        raise UserError(f"debug checks: cannot look into shards, ppo.shards is {config.ppo.shards}, should be 1")
    worlds = make_worlds(config.env, config.workload, config.reward)
    return Setting(config, worlds, SchedulerNetwork(**dataclasses.asdict(config.network)), checks)
