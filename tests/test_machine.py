"""How programs are compiled and run on this machine."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxsched.bench import simulator as bench
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.clock import advance
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.machine import cores, loop_options

CALLED_APART = {"scatter-add", "sort", "top_k", "cumsum"}


def primitives_in_loops(jaxpr, inside: bool = False) -> set[str]:
    """Names of the primitives in the loops of a jaxpr, those of loops in loops included."""
    found = set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        found |= {name} if inside else set()
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found |= primitives_in_loops(inner, inside or name in ("while", "scan"))
    return found


@pytest.mark.parametrize("cluster", ["leaf-spine-8", "leaf-spine-64"])
def test_the_clock_is_a_loop_that_can_be_one_function(cluster):
    config, params = EnvConfig(running_slots=64, queue_slots=8), make_params(get_cluster(cluster))
    state = jax.tree.map(lambda leaf: leaf[0], bench.start_states(get_cluster(cluster), config, params, 1))
    run = jax.make_jaxpr(lambda state, started: advance(params, state, started, jnp.int32(1)))
    primitives = primitives_in_loops(run(state, state.running.job >= 0).jaxpr)
    assert {"while", "reduce_sum"} <= primitives
    assert not primitives & CALLED_APART


def test_the_options_are_known_to_the_compiler_or_left_out():
    compiled = jax.jit(lambda x: x.sum()).lower(jnp.arange(64.0)).compile(loop_options())
    assert float(compiled(jnp.arange(64.0))) == 2016.0


def threads_of_a_process(before: str) -> int:
    """Threads of a process that has summed an array, after the line `before`; it checks that it keeps its cores."""
    program = f"""
import os
from jaxsched.machine import compute_on_one_thread
cores = os.sched_getaffinity(0)
{before}
import jax.numpy as jnp
assert int((jnp.arange(100_000) % 7).sum()) == sum(i % 7 for i in range(100_000))
assert os.sched_getaffinity(0) == cores
print(len(os.listdir("/proc/self/task")))
"""
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux") or cores() == 1, reason="needs Linux and several cores")
def test_one_thread_is_fewer_than_the_cores_and_leaves_the_process_its_cores():
    assert threads_of_a_process("compute_on_one_thread()") < threads_of_a_process("pass")


@pytest.mark.long
def test_the_benchmark_beside_the_oracle_agrees_with_it():
    script = Path(__file__).parents[1] / "benchmarks" / "against_oracle.py"
    done = subprocess.run(
        [sys.executable, str(script), "--jobs", "60", "--num-envs"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "simulate/pack" in done.stdout
