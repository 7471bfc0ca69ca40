"""What the benchmark plays: in parts, as a CPU has it, the same as side by side."""

import jax
import numpy as np
import pytest

from jaxsched.bench import programs, simulator
from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.policies.registry import parse


@pytest.mark.long
def test_environments_in_parts_go_as_side_by_side(monkeypatch):
    config, cluster, params = programs.environment_of("leaf-spine-2")
    states = programs.start_states(cluster, config, params, 4)

    def after(cached: int):
        monkeypatch.setattr(programs, "CACHED", cached)
        run = programs.program_of_rounds(config, parse("first-fit"), 40)
        return jax.jit(run)(states, params, states, jax.random.key(0))

    (apart, turns, jobs), (together, *counts) = after(2), after(4)
    assert counts == [turns, jobs] and turns > 40 and jobs > 0
    jax.tree.map(np.testing.assert_array_equal, apart, together)


@pytest.mark.long
def test_the_bench_of_an_accelerator(monkeypatch):
    monkeypatch.setattr(simulator, "LEAST_WALL_S", 0.1)
    monkeypatch.setattr(simulator, "WARM_INTERVALS", 2)
    with traced_for(ACCELERATOR):
        timing = simulator.bench_environment("leaf-spine-2", "first-fit", 4)
    assert timing.decisions_per_s is not None and timing.decisions_per_s > 0
    assert timing.jobs_per_cpu_s is not None and timing.jobs_per_cpu_s > 0
