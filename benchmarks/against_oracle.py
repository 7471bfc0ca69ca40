"""Jobs per CPU second beside a pure-Python event simulator of the same semantics (tests/oracle/), on the same jobs.

    python benchmarks/against_oracle.py [--workload philly.csv] [--jobs 1000] [--json FILE]

The first jobs of the trace run to their end under `pack` on leaf-spine-64 with topology, contention and interference:
in the oracle, in one JAX environment, in the compiled event loop (once, set-up included, and in so many environments,
started anew), and in environments with synthetic jobs, vmapped and in the loop (`jaxsched bench`). Compilation is left
out. Every finish time must agree: a fast simulator of something else would be no use.
"""

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxsched.bench.simulator import bench_compiled, bench_environment
from jaxsched.cluster.hardware import total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.event_loop import Run
from jaxsched.machine import allow_whole_loops, compute_on_one_thread
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine, CompiledPlayer
from jaxsched.simulation.jax_run import JaxEngine
from jaxsched.simulation.settings import PlayedWorld, Settings, compact_tenants, env_config, most_running
from jaxsched.workload.jobs import JobList, to_table
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.workload.models import profiles
from tests.oracle import policies, simulator


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="philly-like", help="as in jaxsched evaluate")
    parser.add_argument("--jobs", type=int, default=1000, help="how many of its jobs")
    parser.add_argument("--num-envs", type=int, nargs="*", default=[64, 1024], help="vmapped environments")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    allow_whole_loops()
    compute_on_one_thread()

    cluster, settings = get_cluster("leaf-spine-64"), Settings()
    options = WorkloadOptions(
        num_jobs=arguments.jobs, load=0.7, total_gpus=total_gpus(cluster), schedulers=cluster.shape[0]
    )
    jobs = compact_tenants([get_workload(arguments.workload, options)[0]])

    pack = parse("pack")
    in_jax = JaxEngine().prepare(pack, PlayedWorld(cluster, jobs, settings))
    in_loop = CompiledEngine().prepare(pack, PlayedWorld(cluster, jobs, settings))
    in_jax.play(jobs)  # compiles
    in_loop.play(jobs)
    ours, ours_s = timed(lambda: in_jax.play(jobs)[0])
    loop, loop_s = timed(lambda: in_loop.play(jobs)[0])

    config = env_config(cluster, jobs, settings)
    policy = policies.make_policy("pack", order="fifo", backfill=False, forward="stay")
    theirs, theirs_s = timed(
        lambda: simulator.simulate(
            cluster, jobs[0], profiles(cluster.gpu_types), policy,
            interval_s=settings.interval_s, rounds=config.rounds, interference="analytic",
        )
    )  # fmt: skip
    for name, finish_s in (("JAX", ours.finish_s), ("loop", loop.finish_s), ("oracle", theirs.finish_s)):
        print(f"mean finish by {name}: {np.nanmean(finish_s):.3f} s")
    np.testing.assert_allclose(ours.finish_s, theirs.finish_s, rtol=1e-5)
    np.testing.assert_allclose(loop.finish_s, theirs.finish_s, rtol=1e-5)

    def speed(name: str, count: int, cpu_s: float) -> dict[str, Any]:
        return {"name": name, "num_envs": count, "jobs_per_cpu_s": count * arguments.jobs / cpu_s}

    rows = [speed("oracle", 1, theirs_s), speed("simulate/pack", 1, ours_s), speed("compiled, this trace", 1, loop_s)]
    for count in arguments.num_envs:
        environments = loop_environments(in_loop, jobs[0], count)
        _, loop_s = timed(lambda environments=environments: [play(run) for run in environments])
        for run in environments:
            np.testing.assert_array_equal(run.tables.records["finish_s"], loop.finish_s)
        rows.append(speed("compiled, this trace", count, loop_s))
        rows.append(dataclasses.asdict(bench_compiled("leaf-spine-64", "pack", count)))
        rows.append(dataclasses.asdict(bench_environment("leaf-spine-64", "pack", count)))
    for row in rows:
        ratio = row["jobs_per_cpu_s"] / rows[0]["jobs_per_cpu_s"]
        print(f"{row['name']:20s} {row['num_envs']:6d} envs {row['jobs_per_cpu_s']:12,.1f} jobs/CPU s {ratio:10,.1f} x")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


def loop_environments(player: CompiledPlayer, jobs: JobList, count: int) -> list[Run]:
    """So many environments of the compiled event loop, all with the same jobs."""
    slots = {"queue_slots": len(jobs), "running_slots": most_running(player.params.cluster, [jobs])}
    config = dataclasses.replace(player.config, **slots)
    table = to_table(jobs, player.settings.interval_s)
    first = Run(config, player.params, table, player.policy, player.settings.interval_s)
    return [copy.copy(first) for _ in range(count)]


def play(run: Run) -> None:
    """A whole run, from an empty cluster on."""
    run.restart()
    while not run.go_on():
        pass


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the CPU seconds of the process that it took."""
    begin = time.process_time()
    return function(), time.process_time() - begin


if __name__ == "__main__":
    main()
