"""When does placement matter for jobs with plans? python benchmarks/plans.py [--jobs N] [--seeds N] [--json FILE]

64 servers of 8 A100 (one GPU group, NVLink), in racks of 8 under 8 spines, one scheduler, load 0.8. Jobs are of the
dense models, or of those with experts, of `benchmarks/plans.yaml`, each as likely, with exponential run times of 2
hours. ECMP is ideal, or hashes 4 flows from rack to rack. Six policies, first come first served with backfilling.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.evaluation.metrics import mean_interval
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import JobList, make_job_list, rescale_to_load

MODELS = Path(__file__).with_suffix(".yaml")
SERVERS, GPUS, NIC_GBITS_S = 64, 8, 1600.0
RULES = ("first-fit", "pack", "load-balance", "contention-aware", "least-interference", "tetris")
KINDS, RATIOS, SPREADS = ("dense", "experts"), (1, 2, 4, 8), ("ideal", "hashed")


def make_cluster(oversubscription: float, hashed: bool, seed: int) -> Cluster:
    """The hashes are another draw for each seed."""
    server = Server((GPUS,), "A100", 96.0, pcie_gbytes_s=250.0, nic_gbits_s=NIC_GBITS_S)
    network = leaf_spine(SERVERS, 8, NIC_GBITS_S, oversubscription, spines=8, flows=4 if hashed else None, seed=seed)
    return build([server] * SERVERS, network, 1)


def make_jobs(models: Catalogue, kind: str, count: int, seed: int) -> JobList:
    rng = np.random.default_rng(seed)
    places = [place for place, model in enumerate(models.models) if model.name.startswith(kind)]
    model = rng.choice(places, count)
    gpus = np.array([models.models[place].patterns.gpus for place in model])
    times = np.cumsum(rng.exponential(1.0, count)), rng.exponential(7200.0, count) + 60.0
    jobs = make_job_list(*times, gpus, model=model, models=len(models.models))
    return rescale_to_load(jobs, SERVERS * GPUS, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models, rows = get_catalogue(MODELS), []
    policies = [parse(f"{rule}:fifo+backfill") for rule in RULES]
    for kind, spread, ratio in itertools.product(KINDS, SPREADS, RATIOS):
        slow, jct = np.zeros((2, len(RULES), args.seeds))
        for seed in range(args.seeds):
            jobs = make_jobs(models, kind, args.jobs, seed)
            cluster = make_cluster(ratio, spread == "hashed", seed)
            found = simulate(policies, cluster, [jobs], Settings(models=models, engine="compiled"))
            for row, policy in enumerate(policies):
                run = found[policy.name][0]
                slow[row, seed] = np.mean((run.finish_s - run.start_s) / jobs.duration_s)
                jct[row, seed] = np.mean(run.finish_s - jobs.submit_s)
        for rule, s, j in zip(RULES, slow, jct / jct[RULES.index("pack")]):
            row = {"jobs": kind, "ecmp": spread, "oversubscription": ratio, "rule": rule}
            row |= {"slowdown": mean_interval(s), "jct_over_pack": mean_interval(j)}
            rows.append(row)
            print(*row.values(), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
