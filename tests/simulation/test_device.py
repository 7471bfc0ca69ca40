"""Runs are on the CPU, also where there is an accelerator; here the first of two CPU devices stands for one."""

import os
import subprocess
import sys

import jax
import pytest

from jaxsched import machine
from jaxsched.dynamics.batching import ACCELERATOR, CPU
from jaxsched.errors import UserError
from jaxsched.simulation import device
from jaxsched.simulation.settings import Settings

PLAY = """
import dataclasses, jax, jax.numpy as jnp
from jaxsched.policies.registry import parse
from jaxsched.simulation import device
from jaxsched.simulation.engines.jax import run
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate

there, here = jax.devices()
device._cpu = lambda asked: None if asked == "accelerator" else here
chunk, found = run._Run.chunk, set()

def noted(self):
    summary = chunk(self)
    found.update(d for leaf in jax.tree.leaves((self._state, self._program.policy.weights)) for d in leaf.devices())
    return summary

run._Run.chunk = noted
policy = dataclasses.replace(parse("first-fit"), weights=jax.device_put(jnp.ones(3), there))
scenario = load_scenario("leaf-spine-2", "philly-like", num_jobs=5, seeds=1)
for asked in ("cpu", "accelerator"):
    found.clear()
    simulate([policy], scenario.cluster, scenario.jobs, Settings(device=asked, engine="jax"))
    print(asked, *sorted(one.id for one in found))
"""


def test_states_and_weights_are_where_they_should_be():
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PLAY], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n") == ["cpu 1", "accelerator 0", ""], done.stderr


def test_a_cpu_beside_an_accelerator_is_taken_if_there_is_one(monkeypatch):
    cpu = jax.local_devices()[0]
    assert device._cpu(CPU) is None and not device.on_accelerator(CPU), "it is what JAX takes anyway"
    assert not device.on_accelerator(ACCELERATOR), "there is none"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert device._cpu(CPU) == cpu and device._cpu(ACCELERATOR) is None
    assert not device.on_accelerator(CPU) and device.on_accelerator(ACCELERATOR)
    assert not Settings().seeds_in_a_batch(2) and Settings(device=ACCELERATOR).seeds_in_a_batch(2)

    def none(backend):
        raise RuntimeError(f"no backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert device.on_accelerator(CPU)


@pytest.mark.parametrize(
    ("plugin", "asked", "updated"), [(True, None, True), (True, "cuda", False), (False, None, False)]
)
def test_commands_leave_accelerators_alone(monkeypatch, plugin, asked, updated):
    told = []
    monkeypatch.setattr(machine, "_accelerator_plugin", lambda: plugin)
    monkeypatch.setattr(jax.config, "update", lambda *option: told.append(option))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if asked is not None:
        monkeypatch.setenv("JAX_PLATFORMS", asked)
    machine.leave_accelerators_alone()
    assert told == ([("jax_platforms", "cpu")] if updated else [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "gpu"}, "device: 'gpu' should be one of cpu, accelerator"),
        ({"threads": 0}, "threads: 0 should be a whole number of at least 1"),
    ],
)
def test_mistakes(changes, said):
    with pytest.raises(UserError, match=said):
        Settings(**changes)
