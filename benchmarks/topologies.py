"""What a decision costs by topology: python benchmarks/topologies.py [NAME ...] [--servers N ...] [--loop-only]

CPU microseconds, compilation apart, each with its ratio to `leaf-spine` of the same size: in JAX of a decision of one
scheduler and of what the cluster does until the next (rows `environment/...` of `jaxsched bench`), in the compiled
event loop of a job (rows `compiled/...`). With few schedulers a partition has many racks, and these have many routes.

    python benchmarks/topologies.py torus3d dragonfly --servers 64 --schedulers 1 --policies quickstart greedy-wait:p1
"""

import argparse
import sys

from jaxsched.bench.simulator import bench_compiled, bench_environment, compiled_plays

REFERENCE = "leaf-spine"


def decision_us(cluster: str, policy: str, schedulers: int | None) -> float:
    """CPU microseconds of a decision in JAX."""
    row = bench_environment(cluster, policy, 1, schedulers)
    assert row.decisions_per_s is not None
    return 1e6 * row.cpu_s / (row.decisions_per_s * row.wall_s)


def job_us(cluster: str, policy: str, schedulers: int | None) -> float | None:
    """CPU microseconds of a job in the event loop; None where it lacks the policy."""
    if not compiled_plays(cluster, policy, schedulers):
        return None
    row = bench_compiled(cluster, policy, 1, schedulers)
    return None if row.jobs_per_cpu_s is None else 1e6 / row.jobs_per_cpu_s


def main() -> None:
    """Print a row per cluster, policy and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["torus3d", "dragonfly", "fat-tree", "rail"], metavar="NAME")
    parser.add_argument("--servers", type=int, nargs="+", default=[64])
    parser.add_argument("--schedulers", type=int, help="of each cluster (default: the cluster's)")
    parser.add_argument("--policies", nargs="+", default=["greedy-wait:p1"])
    parser.add_argument("--loop-only", action="store_true", help="not in JAX, whose programs compile for long")
    args = parser.parse_args()
    engines = {"loop": job_us} if args.loop_only else {"loop": job_us, "JAX": decision_us}
    for servers in args.servers:
        for policy in args.policies:
            for engine, measure in engines.items():
                reference = None
                for name in dict.fromkeys((REFERENCE, *args.names)):
                    took = measure(f"{name}-{servers}", policy, args.schedulers)
                    if took is None:
                        continue
                    reference = reference or took
                    print(
                        f"{engine:4} {policy:28} {name}-{servers:<6} {took:9.1f} us {took / reference:6.2f}", flush=True
                    )


if __name__ == "__main__":
    sys.exit(main())
