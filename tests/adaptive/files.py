"""Small profiles and workloads, written as the published ones are."""

import csv
import itertools
from pathlib import Path

import numpy as np

SHARED = Path(__file__).parents[3] / "shared" / "data" / "adaptive"
NODES, PER_NODE = 4, 4
APPS = {"small": (8, 64, 4, 16, 5), "large": (16, 256, 8, 32, 7)}  # batches, local batches, epochs


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_profiles(folder, rng, kinds=("",), per_node=PER_NODE, nodes=NODES, sync_s=0.01):
    """Two applications whose step times grow with the batch and with nodes, with noise."""
    for app, (first, last, low, high, epochs) in APPS.items():
        for kind in kinds:
            suffix = f"-{kind}" if kind else ""
            pace = rng.uniform(0.5, 2.0)

            def step(count, gpus, b, pace=pace):
                sync = sync_s * (count - 1) + 0.002 * (gpus - 1) + 0.001
                return {"step_time": pace * 0.02 * b * rng.uniform(0.9, 1.1) + sync, "sync_time": sync}

            locals_ = np.unique(np.geomspace(low, high, 3).astype(int))
            listed = [
                p for k in (1, 2) for p in itertools.product(range(1, per_node + 1), repeat=k) if p == min(p, p[::-1])
            ]
            rows = [
                {"placement": "".join(map(str, p)), "local_bsz": b, **step(len(p), sum(p), b)}
                for p in listed
                for b in locals_
            ]
            write(folder / app / f"placements{suffix}.csv", rows)
            sizes = [(n, r) for n in range(3, nodes + 1) for r in range(n, n * per_node + 1)]
            rows = [
                {"num_nodes": n, "num_replicas": r, "local_bsz": b, **step(n, r, b)} for n, r in sizes for b in locals_
            ]
            write(folder / app / f"scalability{suffix}.csv", rows)
        batch = first
        while batch <= last:
            ends = np.cumsum(rng.uniform(200, 600, epochs))
            rows = [
                {
                    "progress": end,
                    "iteration": int(end * first / batch) + e,
                    "grad_sqr": rng.uniform(1, 2),
                    "grad_var": v,
                }
                for e, (end, v) in enumerate(zip(ends, np.cumsum(rng.uniform(1, 20, epochs))))
            ]
            write(folder / app / f"validation-{batch}.csv", rows)
            batch *= 2


def write_narrow_workload(path):
    """3 or 4 GPUs, which are 4 where only powers of two are given; and six jobs that need 5 to 8 GPUs, of 16."""
    jobs = [("small", 0, 4, 16, 3, 4)] * 3 + [("large", i, 6, 256, 5, 8) for i in range(6)]
    names = ("application", "time", "num_replicas", "batch_size", "min_replicas", "max_replicas")
    write(path, [{"name": f"job-{i}", **dict(zip(names, job))} for i, job in enumerate(jobs)])


def write_workload(path, rng, jobs=12, spread_s=600.0):
    """Jobs whose users ask for up to 12 GPUs."""
    rows = []
    for i, time in enumerate(np.sort(rng.integers(0, int(spread_s), jobs))):
        app = ("small", "large")[rng.integers(2)]
        batch = {"small": (16, 64), "large": (64, 256)}[app][rng.integers(2)]
        gpus = int(rng.choice([1, 2, 3, 4]))
        low = int(rng.integers(1, gpus + 1))
        high = int(rng.integers(4, 17))
        rows.append(
            {
                "name": f"{app}-{i}",
                "time": time,
                "application": app,
                "num_replicas": gpus,
                "batch_size": batch,
                "min_replicas": low if rng.uniform() < 0.3 else "",
                "max_replicas": high if rng.uniform() < 0.3 else "",
            }
        )
    write(path, rows)
