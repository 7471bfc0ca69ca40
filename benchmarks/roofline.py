"""What a decision costs beside what it must cost: python benchmarks/roofline.py [CLUSTER:SCHEDULERS ...]

For each cluster, one environment and the policy `pack`: operations and bytes of one decision round as XLA counts them
(every loop once, so one scheduler's turn and one completion; the trip counts of loops are not known to it), the bytes
of the state, this machine's memory bandwidth (a copy of 256 MiB), and the measured time per job.
"""

import sys
import time

import jax
import jax.numpy as jnp

from jaxsched.bench.programs import environment_of, program_of_rounds, start_states
from jaxsched.bench.simulator import bench_environment
from jaxsched.machine import allow_whole_loops, compute_on_one_thread
from jaxsched.policies.registry import parse

CLUSTERS = ("leaf-spine-64:4", "leaf-spine-1024:16", "leaf-spine-4096:64")


def bandwidth_bytes_s() -> float:
    """Bytes read and written per second of a copy that does not fit any cache; the best of ten."""
    array = jnp.zeros(64 * 2**20, jnp.float32)
    copy = jax.jit(lambda x: x + 1.0).lower(array).compile()
    copy(array).block_until_ready()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        copy(array).block_until_ready()
        times.append(time.perf_counter() - started)
    return 2 * array.nbytes / min(times)


def main() -> None:
    """Print a line per cluster."""
    allow_whole_loops()
    compute_on_one_thread()
    bandwidth = bandwidth_bytes_s()
    print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(f"{'cluster':20s}{'schedulers':>11s}{'state kB':>10s}{'Mflop':>8s}{'kB':>10s}{'kB/bandwidth us':>17s}"
          f"{'us per job':>12s}{'jobs/CPU s':>12s}{'compile s':>11s}{'memory MiB':>12s}")  # fmt: skip
    for name in sys.argv[1:] or CLUSTERS:
        cluster_name, _, schedulers = name.partition(":")
        config, cluster, params = environment_of(cluster_name, int(schedulers))
        states = start_states(cluster, config, params, 1)
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(states))
        run = program_of_rounds(config, parse("pack"), 1)
        compiled = jax.jit(run, donate_argnums=0).lower(states, params, states, jax.random.key(0)).compile()
        cost = compiled.cost_analysis() or {}
        timing = bench_environment(cluster_name, "pack", 1, int(schedulers))
        assert timing.jobs_per_cpu_s is not None
        read = cost.get("bytes accessed", float("nan"))
        print(f"{cluster_name:20s}{schedulers:>11s}{held / 1e3:10,.0f}{cost.get('flops', float('nan')) / 1e6:8.2f}"
              f"{read / 1e3:10,.0f}{read / bandwidth * 1e6:17,.0f}{1e6 / timing.jobs_per_cpu_s:12,.0f}"
              f"{timing.jobs_per_cpu_s:12,.0f}{timing.compile_s:11.1f}"
              f"{(timing.peak_memory_bytes or 0) / 2**20:12,.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
