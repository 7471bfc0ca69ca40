"""Shards: means over them, the same chunk on one device each as on one device for all, and what they may divide."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.learning.config import TrainConfig, to_dict, validate
from jaxsched.learning.devices import map_shards, mean_over_shards, shard_key, sum_over_shards

FORCED = "--xla_force_host_platform_device_count"
CHUNK = """
import json, sys
import jax, numpy as np
from jaxsched.learning import loop
from jaxsched.learning.chunk import place_state
from jaxsched.learning.config import TrainConfig, from_dict
from jaxsched.learning.setting import make_setting
from jaxsched.learning.devices import make_mesh, provide_devices, shared_devices

provide_devices()
config = from_dict(TrainConfig, json.loads(sys.argv[1]))
programs = loop.programs_of(make_setting(config))
state, metrics = programs.step(place_state(programs.initial(), config.ppo.shards))
state, _ = programs.step(state)
out = {
    "devices": 1 if make_mesh(config.ppo.shards) is None else config.ppo.shards,
    "metrics": {name: value.item() for name, value in metrics.items()},
    "clock": np.asarray(state.worlds.clock).tolist(),
    "weights": np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.weights)]).tolist(),
    "programs": programs.step._cache_size(),
    "said": shared_devices(config.ppo.shards),
    "homes": {
        "worlds": len({shard.device for shard in state.worlds.clock.addressable_shards}),
        "copies": len({shard.device for shard in jax.tree.leaves(state.weights)[0].addressable_shards}),
    },
}
print(json.dumps(out))
"""


def flags(devices: int) -> str:
    """XLA's, for so many CPU devices; without optimisation it compiles sooner."""
    return f"--xla_backend_optimization_level=0 {FORCED}={devices}"


def sharded(config: TrainConfig, shards: int = 2) -> TrainConfig:
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, shards=shards))


def test_means_and_sums_are_those_of_all_environments_and_keys_differ():
    values = jnp.arange(12.0).reshape(6, 2)

    def learn(common, own):
        told = {"mean": mean_over_shards({"a": own.mean(), "b": own.max(0)}, 3), "sum": sum_over_shards(own.sum(), 3)}
        key = jax.random.key_data(shard_key(jax.random.key(5), 3))
        return told, (own + common, jnp.broadcast_to(key, (2, 2)))

    told, (moved, keys) = map_shards(learn, 3)(jnp.float32(10.0), values)
    assert float(told["mean"]["a"]) == 5.5 and float(told["sum"]) == 66.0
    np.testing.assert_array_equal(told["mean"]["b"], [6.0, 7.0])  # of 2 and 3, 6 and 7, 10 and 11
    np.testing.assert_array_equal(moved, values + 10.0)
    assert len({tuple(row) for row in np.asarray(keys).tolist()}) == 3


def test_one_shard_is_the_function_itself():
    def learn(common, own):
        return common, own

    assert map_shards(learn, 1) is learn


def four_shards(config: TrainConfig) -> TrainConfig:
    """One environment each; the flat network compiles sooner."""
    flat = dataclasses.replace(config, network=dataclasses.replace(config.network, kind="flat"))
    return sharded(dataclasses.replace(flat, validation=dataclasses.replace(flat.validation, seeds=4)), 4)


@pytest.mark.long
def test_a_chunk_is_the_same_on_four_devices_as_on_one(config):
    """The devices are virtual ones, whatever the number of cores."""

    def run(devices: int) -> dict:
        command = [sys.executable, "-c", CHUNK, json.dumps(to_dict(four_shards(config)))]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": flags(devices)})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    each, all_on_one = run(4), run(1)
    assert each["devices"] == 4 and all_on_one["devices"] == 1
    assert each["homes"] == {"worlds": 4, "copies": 4} and all_on_one["homes"] == {"worlds": 1, "copies": 1}
    assert each["programs"] == all_on_one["programs"] == 1
    assert each["metrics"]["decisions"] == all_on_one["metrics"]["decisions"] > 10
    for name, value in each["metrics"].items():
        assert all_on_one["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert each["clock"] == all_on_one["clock"]
    np.testing.assert_allclose(each["weights"], all_on_one["weights"], atol=2e-3)
    assert each["said"] is None
    assert all_on_one["said"] == (
        "4 shards, but 1 device: all shards are computed on one, the same up to rounding; "
        f"XLA_FLAGS={FORCED}=4 makes more of a CPU"
    )


@pytest.mark.parametrize("shards", [0, 3, 4])
def test_shards_must_divide_environments_and_validation(config, shards):
    with pytest.raises(UserError, match="shards"):
        validate(sharded(config, shards))
    validate(sharded(config, 2))
