"""Golden runs through the command line and other public doors, and the plans of a Kubernetes scheduler."""

import contextlib
import csv
import io
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import adapter, objects
from .digests import digest, digest_of_text
from .loop import Keep

ROOT = Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"

FIGURES = (
    "jct_mean_s", "jct_ci95_s", "jct_p50_s", "jct_p95_s", "jct_p99_s", "queue_mean_s", "makespan_s", "gpu_utilisation",
    "slowdown_mean", "stops_mean", "lost_gpu_h", "failures_mean", "restarts_gpu_h", "failures_gpu_h", "goodput",
    "gpu_utilisation_arrivals", "queued_mean", "queued_max", "fairness_p95", "fairness_max", "share_by_tenant",
    "by_end", "ratio_to_best_baseline", "gap_to_bound", "jobs",
)  # fmt: skip
COLUMNS = (
    "job_id", "given_submit_s", "submit_s", "start_s", "finish_s", "num_gpus", "gpu_type", "scheduler", "forwards",
    "jct_s", "queueing_s", "ideal_s", "slowed_s", "placement_s", "sharing_s", "server_s", "network_s", "restarts_s",
    "lost_s", "slowdown", "stops", "failures", "placement",
)  # fmt: skip

_GREEDY = "greedy-wait:p1"
_LISTS = "--num-jobs 60 --seeds 2 --cluster leaf-spine-4 --load 0.9"
_STOPS = "--preemption on --checkpoint-s 600"
EVALUATE = {
    "plain": f"{_LISTS} --policies pack load-balance tetris least-interference contention-aware greedy-wait:p1",
    "estimates": f"{_LISTS} --policies pack:sjf+backfill default search:pack:area+backfill+n8 --duration-error 1 "
    "--knows estimates --schedulers 4 --max-forwards 8",
    "stops": f"{_LISTS} {_STOPS} --policies tiresias-las pack:srsf+backfill+preempt pack:backfill",
    "history": f"{_LISTS} {_STOPS} --knows history --failures 20,1 --policies qssf tiresias-gittins themis",
    "acme": f"--workload acme-like --num-jobs 200 --cluster fat-tree-64 --load 0.8 --policies pack:backfill {_GREEDY}",
    "distributed": f"--workload distributed --num-jobs 80 --cluster torus2d-16 --load 0.8 --policies pack {_GREEDY}",
    "trace": f"--workload {ROOT}/examples/trace.csv --cluster {ROOT}/examples/cluster.yaml --policies pack {_GREEDY}",
    "horizon": f"{_LISTS} --horizon-s 20000 --policies pack pack:sjf+backfill",
}
SIMULATE = {
    "plain": "--num-jobs 80 --cluster leaf-spine-4 --load 1 --policy greedy-wait:p1",
    "stops": f"--num-jobs 80 --cluster dragonfly-16 --load 1 {_STOPS} --policy pack:las+backfill+preempt",
    "failures": "--num-jobs 80 --cluster fat-tree-8 --load 0.8 --failures 10,1 --policy pack:backfill",
}
WORKLOADS = {
    name: f"--workload {name}"
    for name in ("philly-like", "philly-like-bursty", "philly-like-diurnal", "distributed", "acme-like",
                 "acme-kalos-like", "llm", "poisson")
}  # fmt: skip


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    """An empty folder to work in."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _command(*words: str) -> str:
    """What it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as wrong:
        try:
            adapter.main(list(words))
        except SystemExit as end:
            assert not end.code, f"{' '.join(words)}: {wrong.getvalue()}"
    return said.getvalue()


def _figures(path: str) -> dict[str, str]:
    """Digests of the figures of every policy, and of the bound."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    rows = {"bound": content["bound_s"]}
    for policy, row in content["policies"].items():
        rows |= {f"{policy}/{name}": row.get(name) for name in FIGURES}
    return {name: digest_of_text(json.dumps(value, sort_keys=True)) for name, value in rows.items()}


def evaluated(case: str, keep: Keep | None = None) -> dict[str, str]:
    """Every figure of `jaxsched evaluate`."""
    with _room():
        _command("evaluate", *EVALUATE[case].split(), "--json", "out.json")
        return _figures("out.json")


def simulated(case: str, keep: Keep | None = None) -> dict[str, str]:
    """Every column of `jaxsched simulate --jobs-out`."""
    with _room():
        _command("simulate", *SIMULATE[case].split(), "--jobs-out", "jobs.csv")
        with open("jobs.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    return {name: digest_of_text("\n".join(str(row.get(name)) for row in rows)) for name in COLUMNS}


def listed(case: str, keep: Keep | None = None) -> dict[str, str]:
    """The columns of a workload's jobs."""
    shared = {path.name: path for path in sorted(SHARED_DATA.glob("traces/*.csv"))}
    found = adapter.job_lists(str(shared.get(case, case)))
    return {f"{number}/{name}": digest_of_text(repr(column)) for number, columns in enumerate(found)
            for name, column in columns.items()}  # fmt: skip


def workloads() -> list[str]:
    """Names of synthetic workloads, and traces that are there."""
    return [*WORKLOADS, *(path.name for path in sorted(SHARED_DATA.glob("traces/*.csv")))]


# ----------------------------------------------------------------------------------------------------------- Kubernetes

REPLAYS, SNAPSHOTS = 4, 60
PLANNERS = ("pack:area+backfill+forward", "greedy-wait:p1", "pack:sjf+backfill")
ANSWERS = (
    "policy",
    "gang",
    "name",
    "priority",
    "gpus",
    "waits_s",
    "median_s",
    "low_s",
    "high_s",
    "nodes",
    "behind",
    "reason",
)


def replayed(case: str, keep: Keep | None = None) -> dict[str, str]:
    """`kube replay` and `kube whatif` of a recording."""
    with _room() as folder:
        path = ROOT / "examples" / "recording.jsonl"
        if case != "example":
            path = objects.write_recording(folder / "day.jsonl", int(case))
        policies = ["--policies", "pack", "pack:sjf+backfill", "greedy-wait:p1"]
        said = _command("kube", "replay", str(path), *policies, "--plans", "--json", "out.json")
        found = {"figures": digest_of_text(json.dumps(_figures("out.json")))}
        found["plans"] = digest_of_text("\n".join(line for line in said.splitlines() if "gangs then" in line))
        asked = {"end": [], "middle": ["--at-s", "900"]}
        asked |= {"come": ["--history", str(path)]} if case != "example" else {}
        for name, more in asked.items():
            _command("kube", "whatif", str(path), *policies, "--draws", "20", *more, "--json", "answers.json")
            rows = json.loads(Path("answers.json").read_text(encoding="utf-8"))["answers"]
            answers = [[row.get(field) for field in ANSWERS] for row in rows]
            found[f"whatif-{name}"] = digest_of_text(json.dumps(answers, sort_keys=True))
    return found


def planned(policy: str, keep: Keep | None = None) -> dict[str, str]:
    """What goes where of random snapshots, and why the rest does not."""
    found, planner = {}, adapter.planner(policy)
    for number in range(SNAPSHOTS):
        nodes, pods = objects.random_snapshot(random.Random(number))
        plan = planner.plan(adapter.snapshot(objects.NOW, nodes, pods))
        placed = [[(one.pod.uid, one.node) for one in placement.assignments] for placement in plan.placements]
        reasons = {key: [refusal.reason, refusal.message] for key, refusal in plan.reasons.items()}
        found[str(number)] = digest_of_text(json.dumps([placed, reasons, plan.rounds], sort_keys=True))
    return found


# --------------------------------------------------------------------------------------------------------- environment


def stepped(case: str, keep: Keep | None = None) -> dict[str, str]:
    """All that a random agent sees and gets, through Gymnasium."""
    env = adapter.gym_env(in_turns=case == "turns")
    found = {}
    for number in range(2):
        rng, (seen, _) = np.random.default_rng(number), env.reset(seed=number)
        rows, ended = [], False
        while not ended and len(rows) < 400:
            draws = np.where(seen["mask"], rng.random(seen["mask"].shape), -1.0)
            seen, reward, terminated, truncated, _ = env.step(draws.argmax(-1))
            rows.append((seen["features"], seen["options"], seen["mask"], reward, terminated, truncated))
            ended = terminated or truncated
        names = ("features", "options", "mask", "reward", "terminated", "truncated")
        arrays: dict[str, Any] = {name: np.stack([row[at] for row in rows]) for at, name in enumerate(names)}
        found |= {f"{number}/{name}": digest({name: array}) for name, array in arrays.items()}
        if keep is not None:
            keep(f"{case}/{number}", arrays)
    return found
