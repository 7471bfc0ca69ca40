"""Runs are on the CPU, also where there is an accelerator; here the first of two CPU devices stands for one."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from jaxsched import machine
from jaxsched.cli.evaluate import Evaluate
from jaxsched.cli.simulate import Simulate
from jaxsched.dynamics.batching import ACCELERATOR, CPU
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.executors import _cores_asked_for
from jaxsched.simulation import device
from jaxsched.simulation.settings import Settings
from tests.support.evaluation_jobs import some_jobs

PLAY = """
import jax, jax.numpy as jnp
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.simulation import device
from jaxsched.simulation import jax_run as run
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate

there, here = jax.devices()
device._cpu = lambda asked: None if asked == "accelerator" else here
jax.default_backend = lambda: "gpu"
chunk, found = run._Run.chunk, set()

def noted(self):
    summary = chunk(self)
    player = self._player
    leaves = jax.tree.leaves((self._state, player.params, player.policy.weights))
    found.update(one for leaf in leaves for one in leaf.devices())
    return summary

run._Run.chunk = noted
policy = Policy("mine", parse("first-fit").function, jax.device_put(jnp.ones(3), there))
scenario = load_scenario("leaf-spine-2", "philly-like", num_jobs=5, seeds=1)
for asked in ("cpu", "accelerator"):
    found.clear()
    simulate([policy], scenario.cluster, scenario.jobs, Settings(device=asked, engine="jax"))
    print(asked, *sorted(one.id for one in found))
"""


@pytest.mark.slower
def test_states_and_weights_are_where_they_should_be():
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PLAY], capture_output=True, text=True, env=environment)
    assert done.stdout.split("\n") == ["cpu 1", "accelerator 0", ""], done.stderr


def test_a_cpu_beside_an_accelerator_is_taken_if_there_is_one(monkeypatch):
    cpu = jax.local_devices()[0]
    assert device._cpu(CPU) is None and not device.uses_accelerator(CPU), "it is what JAX takes anyway"
    assert not device.uses_accelerator(ACCELERATOR), "there is none"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert device._cpu(CPU) == cpu and device._cpu(ACCELERATOR) is None
    assert not device.uses_accelerator(CPU) and device.uses_accelerator(ACCELERATOR)
    assert not Settings().seeds_in_a_batch(2) and Settings(device=ACCELERATOR).seeds_in_a_batch(2)

    def none(backend):
        raise RuntimeError(f"no backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert device.uses_accelerator(CPU)


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


def test_an_accelerator_that_is_not_there(cluster):
    with pytest.raises(UserError, match="device: accelerator: JAX finds none here"):
        compare(cluster, [some_jobs(0, 3)], ["pack"], device=ACCELERATOR)


@pytest.mark.parametrize(("options", "threads"), [({}, min(machine.cores(), 16)), ({"threads": 3}, 3)])
def test_one_thread_per_core_if_nothing_else_is_said(cluster, monkeypatch, options, threads):
    monkeypatch.delenv(machine.THREADS_VARIABLE, raising=False)
    asked = []
    pool = ThreadPoolExecutor
    monkeypatch.setattr(
        "jaxsched.simulation.simulate.ThreadPoolExecutor", lambda count: asked.append(count) or pool(count)
    )
    found = compare(cluster, [some_jobs(0, 3)], ["pack"], **options)
    assert asked == [threads] and found.versions["device"] == CPU
    monkeypatch.setenv(machine.THREADS_VARIABLE, "1")
    compare(cluster, [some_jobs(0, 3)], ["pack"])
    assert asked[-1] == 1


@pytest.mark.parametrize("command", [Evaluate, Simulate])
def test_the_command_line_looks_for_no_accelerator_unless_asked(command, monkeypatch):
    told = []
    monkeypatch.setattr(machine, "leave_accelerators_alone", lambda: told.append("alone"))
    monkeypatch.setattr(machine, "compute_on_one_thread", lambda: told.append("backend"))
    policies = {"policies": ("none",)} if command is Evaluate else {"policy": "none"}
    with pytest.raises(UserError, match="none"):
        command(**policies).run()
    assert told[0] == "alone", "before the backend starts"
    told.clear()
    with pytest.raises(UserError, match="none"):
        command(device=ACCELERATOR, **policies).run()
    assert "alone" not in told


@pytest.mark.parametrize(
    ("variables", "cores"),
    [({}, "2"), ({"OMP_NUM_THREADS": "4"}, "4"), ({"OMP_NUM_THREADS": "4", "SLURM_CPUS_PER_TASK": "8"}, "8")],
)
def test_workers_play_on_the_cores_that_they_asked_for(variables, cores, monkeypatch):
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _cores_asked_for() == cores
