"""Runs that differ only in numbers (`sweepable`): one program for all of them."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, PyTree

from jaxsched.dynamics.batching import lane_by_lane
from jaxsched.learning import rollout
from jaxsched.learning.chunk import chunk, initial, placed
from jaxsched.learning.config import TrainConfig
from jaxsched.learning.loop import Programs
from jaxsched.learning.setting import Setting, make_setting
from jaxsched.learning.shards import per_shard, place
from jaxsched.learning.state import TrainState
from jaxsched.learning.validation import validation_jct_s
from jaxsched.machine import loop_options
from jaxsched.sweeps.sweepable import TRACED, replaced, shape_key, value_of


class RunArguments(NamedTuple):
    """What tells one run from another; of a batch of runs, every leaf has a leading axis over them."""

    values: dict[str, PyTree]  # of `TRACED`, by dotted name
    arrays: dict[int, Array]  # of the worlds' arrays, by their position


class SharedPrograms:
    """The programs of runs with one `shape_key`; each is compiled once for single runs, once for batches of a size."""

    def __init__(self, configs: Sequence[TrainConfig]) -> None:
        assert len({shape_key(config) for config in configs}) == 1
        self.settings = [make_setting(config) for config in configs]
        self._base = self.settings[0]
        differing = [name for name in TRACED if len({value_of(config, name) for config in configs}) > 1]
        rows = [jax.tree.leaves(_arrays(setting)) for setting in self.settings]
        columns = {i: column for i, column in enumerate(zip(*rows, strict=True)) if not _equal(column)}
        self._arguments = [
            RunArguments(
                values={name: jax.tree.map(jnp.asarray, value_of(config, name)) for name in differing},
                arrays={i: column[run] for i, column in columns.items()},
            )
            for run, config in enumerate(configs)
        ]
        self._one = self._programs(lambda function: function)
        self._batches: dict[int, tuple[Callable, ...]] = {}  # by devices

    def of_run(self, index: int) -> Programs:
        """The programs of one run."""
        shards = self._base.config.ppo.shards
        return self._bound(self._one, self._arguments[index], lambda state: placed(state, shards))

    def of_batch(self, indices: Sequence[int]) -> Programs:
        """Those of a batch of runs: every argument and result has a leading axis over them.

        Runs without shards of their own are shared out evenly among as many devices as that goes with.
        """
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(self._arguments[i] for i in indices))
        if not jax.tree.leaves(stacked):
            raise ValueError("the runs of a batch must differ in something")
        devices = math.gcd(len(indices), jax.local_device_count()) if self._base.config.ppo.shards == 1 else 1
        if devices not in self._batches:
            self._batches[devices] = self._programs(functools.partial(_over_runs, devices=devices))
        _, stacked = place(None, stacked, devices)
        return self._bound(self._batches[devices], stacked, lambda state: place(None, state, devices)[1])

    def memory_bytes(self) -> int:
        """What one run holds at least: its state twice (of weights, moments and environments) and a chunk's experience.

        From shapes, nothing is compiled; what XLA needs in between comes on top.
        """
        setting = self._base
        state = jax.eval_shape(lambda: initial(setting))

        def play(state: TrainState) -> rollout.Experience:
            return rollout.collect(jax.random.key(0), setting, state.weights, state.draws, state.worlds)[1]

        experience = _bytes(jax.eval_shape(play, state))
        return 2 * _bytes(state) + int((1 + setting.config.ppo.keep) * experience)

    def _setting(self, own: RunArguments) -> Setting:
        base = self._base
        leaves, tree = jax.tree.flatten(_arrays(base))
        params, clusters, gpus, jobs = tree.unflatten([own.arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
        config = replaced(base.config, own.values)
        arrays = {"params": params, "clusters": clusters, "gpus": gpus, "jobs": jobs}
        worlds = base.worlds._replace(env=config.env, workload=config.workload, **arrays)
        return base._replace(config=config, worlds=worlds)

    def _programs(self, over_runs: Callable) -> tuple[Callable, ...]:
        def validate(own: RunArguments, weights: PyTree) -> Float32[Array, ""]:
            return validation_jct_s(self._setting(own), weights)

        jit = functools.partial(jax.jit, compiler_options=loop_options())
        return (
            jax.jit(over_runs(lambda own: initial(self._setting(own)))),
            jit(over_runs(lambda own, state: chunk(self._setting(own), state)), donate_argnums=1),
            jit(over_runs(validate)),
        )

    def _bound(
        self, programs: tuple[Callable, ...], own: RunArguments, put: Callable[[TrainState], TrainState]
    ) -> Programs:
        return Programs(*(functools.partial(program, own) for program in programs), place=put)


def _over_runs(function: Callable, devices: int) -> Callable:
    """`function` of one run as one of many, on so many devices."""
    many = jax.vmap(lane_by_lane(function))
    if devices == 1:
        return many
    spread = per_shard(lambda _, own: (None, many(*own)), devices)
    return lambda *own: spread(None, own)[1]


def _arrays(setting: Setting) -> tuple:
    worlds = setting.worlds
    return worlds.params, worlds.clusters, worlds.gpus, worlds.jobs


def _equal(column: Sequence[Array]) -> bool:
    return all(np.array_equal(column[0], other) for other in column[1:])


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
