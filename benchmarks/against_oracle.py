"""Jobs per CPU second beside a pure-Python event simulator of the same semantics (tests/oracle.py), on the same jobs.

    python benchmarks/against_oracle.py [--workload philly.csv] [--jobs 1000] [--json FILE]

The first jobs of the trace run to their end under `pack` on leaf-spine-64 with topology, contention and interference:
in the oracle, in one JAX environment, and in vmapped environments (synthetic jobs, `jaxsched bench`). Compilation is
left out. Every finish time must agree: a fast simulator of something else would be no use.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import oracle
import oracle_policies

from jaxsched.cluster.hardware import total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.evaluation.bench import bench_environment
from jaxsched.evaluation.contenders import contender
from jaxsched.evaluation.rollout import prepare, rollout
from jaxsched.evaluation.settings import Settings, compact_tenants, env_config
from jaxsched.machine import allow_whole_loops, compute_on_one_thread
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.workload.models import profiles


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

    program, params = prepare(contender("pack"), cluster, jobs, settings, lanes=False)
    rollout(program, params, jobs, settings)  # compiles
    begin = time.process_time()
    ours = rollout(program, params, jobs, settings)[0]
    ours_s = time.process_time() - begin

    config = env_config(cluster, jobs, settings)
    begin = time.process_time()
    theirs = oracle.simulate(
        cluster, jobs[0], profiles(), oracle_policies.make_policy("pack", order="fifo", backfill=False, forward="stay"),
        interval_s=settings.interval_s, rounds=config.rounds, interference="analytic",
    )  # fmt: skip
    theirs_s = time.process_time() - begin
    print(f"mean finish: ours {np.nanmean(ours.finish_s):.3f} s, oracle {np.nanmean(theirs.finish_s):.3f} s")
    np.testing.assert_allclose(ours.finish_s, theirs.finish_s, rtol=1e-5)
    rows = [
        {"name": "oracle", "num_envs": 1, "jobs_per_cpu_s": arguments.jobs / theirs_s},
        {"name": "simulate/pack", "num_envs": 1, "jobs_per_cpu_s": arguments.jobs / ours_s},
    ]
    for count in arguments.num_envs:
        rows.append(dataclasses.asdict(bench_environment("leaf-spine-64", "pack", count)))
    for row in rows:
        ratio = row["jobs_per_cpu_s"] / rows[0]["jobs_per_cpu_s"]
        print(f"{row['name']:20s} {row['num_envs']:6d} envs {row['jobs_per_cpu_s']:12,.1f} jobs/CPU s {ratio:10,.1f} x")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
