"""1,000 large-model jobs on 10,000 GPUs in the event loop: python benchmarks/large_jobs.py [--jobs N] [POLICY ...]

1,250 servers of 8 A100 (one GPU group, NVLink), in racks of 8 under 8 spines over which ECMP hashes 4 flows from rack
to rack; by default one scheduler, so that a gang may lie anywhere. Jobs are those of `--workload llm`: published
language models with their plans, up to a quarter of a scheduler's GPUs each.

A policy's figure is jobs per CPU second of whole runs, the best of several. Before, machine code is loaded, or made,
and the tables of the run are built: the seconds for that stand apart. The last line is of the whole process.
"""

import argparse
import resource
import time

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.settings import PlayedWorld, Settings, compact_tenants
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import JobList
from jaxsched.workload.load import WorkloadOptions, get_workload

SERVERS, NIC_GBITS_S = 1250, 1600.0
POLICIES = ("pack", "pack:sjf+backfill+spread", "pack:sjf+backfill+spread+reserve+consolidate", "contention-aware")


def make_cluster(schedulers: int) -> Cluster:
    server = Server((8,), "A100", 96.0, pcie_gbytes_s=250.0, nic_gbits_s=NIC_GBITS_S)
    return build([server] * SERVERS, leaf_spine(SERVERS, 8, NIC_GBITS_S, 2.0, spines=8, flows=4), schedulers)


def time_policy(name: str, cluster: Cluster, jobs: list[JobList], settings: Settings, runs: int) -> None:
    begin = time.process_time()
    player = CompiledEngine().prepare(parse(name), PlayedWorld(cluster, jobs, settings))
    run, least_s = player.prepared(jobs[0], 0, in_python=False), float("inf")
    made_s = time.process_time() - begin
    for _ in range(runs):
        run.restart()
        begin = time.process_time()
        run.go_on()
        least_s = min(least_s, time.process_time() - begin)
    print(f"{name:48} {run.finished / least_s:12,.0f} jobs per CPU s {made_s:8.1f} s before", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs="*", default=POLICIES)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--schedulers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    cluster, models = make_cluster(args.schedulers), get_catalogue("llm")
    size = {"total_gpus": total_gpus(cluster), "schedulers": args.schedulers}
    jobs = get_workload("llm", WorkloadOptions(num_jobs=args.jobs, load=0.8, catalogue=models, **size))[0]
    gpus = jobs.workers * jobs.gpus_per_worker
    print(f"{len(jobs):,} jobs of {gpus.mean():.0f} GPUs on average, {gpus.max():,} at most", flush=True)
    for name in args.policies:
        time_policy(name, cluster, compact_tenants([jobs]), Settings(models=models), args.runs)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"all: {time.process_time():.1f} CPU s, {memory_mb:,.0f} MB")


if __name__ == "__main__":
    main()
