"""What stays the same over a training run: where environments are drawn from, and the network."""

import dataclasses
from typing import NamedTuple

from jaxsched.env.state import EnvConfig
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.training.config import TrainConfig
from jaxsched.training.worlds import Worlds, make_worlds


class Setting(NamedTuple):
    """Worlds and network of a config."""

    worlds: Worlds
    network: SchedulerNetwork

    @property
    def config(self) -> TrainConfig:
        return self.worlds.config

    @property
    def static(self) -> EnvConfig:
        return self.worlds.static


def make_setting(config: TrainConfig) -> Setting:
    """The setting of a config. UserError on a cluster or an interference model that does not exist."""
    return Setting(make_worlds(config), SchedulerNetwork(**dataclasses.asdict(config.network)))
