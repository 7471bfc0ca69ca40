"""How whole do racks stay? python benchmarks/racks.py [--jobs N] [--seeds N] [--load X] [--json FILE]

Eight NVL72 racks of 18 trays, one scheduler. Jobs are of the models of `benchmarks/racks.yaml`, of 4 to 128 GPUs, with
exponential run times of 2 hours. Five policies, first come first served with backfilling. A rack is whole for a job
that needs one while jobs of fewer than 64 GPUs have two of its trays at most: 16 are free of them.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from jaxsched.cluster.presets import get_cluster
from jaxsched.evaluation.metrics import mean_interval
from jaxsched.policies.registry import parse
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import JobList, make_job_list, rescale_to_load

MODELS = Path(__file__).with_suffix(".yaml")
RACKS, TRAYS, USED, LARGE = 8, 18, 16, 64
POLICIES = [f"{rule}:fifo+backfill" for rule in ("first-fit", "load-balance", "contention-aware", "pack")]
POLICIES.append("pack:fifo+backfill+racks")
SHARES = (0.35, 0.25, 0.2, 0.13, 0.07)  # of the models, in their order


def make_jobs(models: Catalogue, count: int, load: float, seed: int) -> JobList:
    rng = np.random.default_rng(seed)
    own = [place for place, model in enumerate(models.models) if model.name.startswith(("small", "large"))]
    model = rng.choice(own, count, p=SHARES)
    gpus = np.array([models.models[place].patterns.gpus for place in model])
    times = np.cumsum(rng.exponential(1.0, count)), rng.exponential(7200.0, count) + 60.0
    jobs = make_job_list(*times, gpus, model=model, models=len(models.models))
    return rescale_to_load(jobs, RACKS * TRAYS * 4, load)


def measure(run: Outcome) -> dict[str, float]:
    """Figures of one run; racks from the first fifth of the submissions to the last one."""
    jobs, large = run.jobs, run.jobs.num_gpus >= LARGE
    assert run.workers is not None
    trays = (run.workers[:, : RACKS * TRAYS] > 0).reshape(len(jobs), RACKS, TRAYS).sum(-1) * ~large[:, None]
    times = np.sort(np.concatenate([run.start_s, run.finish_s]))
    first, last = jobs.submit_s[len(jobs) // 5], jobs.submit_s[-1]
    times = np.concatenate([[first], times[(times > first) & (times < last)], [last]])
    there = (run.start_s <= times[:-1, None]) & (times[:-1, None] < run.finish_s)
    whole = (there.astype(int) @ trays <= TRAYS - USED).mean(-1)
    waits, slow = run.start_s - jobs.submit_s, (run.finish_s - run.start_s) / jobs.duration_s
    spread = (run.workers[large].reshape(large.sum(), RACKS, TRAYS) > 0).any(-1).sum(-1)
    return {
        "whole_share": float((whole * np.diff(times)).sum() / (last - first)),
        "large_wait_min": float(waits[large].mean() / 60),
        "small_wait_min": float(waits[~large].mean() / 60),
        "large_slowdown": float(slow[large].mean()),
        "large_extra_racks": float((spread - -(-jobs.num_gpus[large] // (4 * USED))).mean()),
        "large_jct_min": float((run.finish_s - jobs.submit_s)[large].mean() / 60),
        "all_jct_min": float((run.finish_s - jobs.submit_s).mean() / 60),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models, cluster = get_catalogue(MODELS), get_cluster(f"nvl72-{RACKS * TRAYS}")
    lists = [make_jobs(models, args.jobs, args.load, seed) for seed in range(args.seeds)]
    settings = Settings(models=models, engine="compiled", record_placements=True)
    found, rows = simulate([parse(name) for name in POLICIES], cluster, lists, settings), []
    for name in POLICIES:
        figures = [measure(run) for run in found[name]]
        rows.append(
            {"policy": name} | {key: mean_interval(np.array([one[key] for one in figures])) for key in figures[0]}
        )
        print(*rows[-1].values(), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
