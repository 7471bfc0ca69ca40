"""Which numbers of a configuration may differ between runs that share a program.

A number is sweepable if no array's shape and no branch of the program depends on it. `TRACED` ones are arguments of the
program; `IN_ARRAYS` ones are read before, when the worlds are made, whose arrays then are arguments.
"""

import dataclasses
import functools
from typing import Any

from jaxsched.learning.config import TrainConfig

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


def value_of(config: TrainConfig, name: str) -> Any:
    """The value at a dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def replaced(config: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    """`config` with other values at dotted names."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        config = dataclasses.replace(
            config, **{first: dataclasses.replace(getattr(config, first), **{rest: value}) if rest else value}
        )
    return config


def shape_key(config: TrainConfig) -> TrainConfig:
    """The same for all configs that share a program: every sweepable number is at its default."""
    return replaced(config, {name: value_of(TrainConfig(), name) for name in SWEEPABLE})
