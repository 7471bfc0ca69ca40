"""The policies of a sweep on tasks: clusters, models and jobs that none of them was trained on.

    python benchmarks/on_tasks.py configs/sweeps/ablations.yaml --tasks task-tiny task-small task-wide --against whole

Networks that play clusters of one size only are left out. `on_tasks.jsonl` beside the sweep's rows has a line for each
task and policy: its mean JCT on every test world. Who starts the command again goes on with the next task.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from learners import judge

from jaxsched.evaluation.metrics import bootstrap_interval, interquartile_mean, mean_interval
from jaxsched.io.json_file import append, read_rows
from jaxsched.machine import enable_cache
from jaxsched.sweeps.plan import Sweep, load_sweep
from jaxsched.sweeps.run import POLICY_FOLDER, UNTRAINED_FOLDER, folder_of, is_trained
from jaxsched.worlds.families import TASKS
from jaxsched.worlds.world import PLAIN

RULES = (*PLAIN, "greedy-wait", "greedy-wait:p1", "greedy-wait:sjf+spread+p1")
UNTRAINED, RULES_ROW, ROWS = "untrained", "rules", "on_tasks.jsonl"


def policies_of(sweep: Sweep) -> dict[str, tuple[str, int]]:
    """Folders of the policies that play any cluster, with variant and seed; untrained ones are of the first variant."""
    points = [one for one in sweep.points if one.config.network.kind == "graph" and is_trained(sweep, one)]
    trained = {str(folder_of(sweep, one) / POLICY_FOLDER): (one.group, one.config.seed) for one in points}
    first = [one for one in points if one.group == points[0].group]
    before = {str(folder_of(sweep, one) / UNTRAINED_FOLDER): (UNTRAINED, one.config.seed) for one in first}
    return trained | before


def table(rows: list[dict], against: str) -> list[str]:
    """Markdown: ratios to the best rule over seeds and worlds, and those to a variant with the same seed."""
    rules = {row["task"]: row["jct_s"] for row in rows if row["variant"] == RULES_ROW}
    best = {task: min(own, key=lambda name: np.mean(own[name])) for task, own in rules.items()}
    names = [name for name in dict.fromkeys(row["variant"] for row in rows) if name != RULES_ROW]
    found = {variant: _ratios(rows, variant, rules, best) for variant in names}
    lines = [f"| variant | {' | '.join(rules)} | IQM of all | over {against} |", "|---|" + "---:|" * (len(rules) + 2)]
    for variant, ratios in found.items():
        means = [f"{interquartile_mean(ratios[:, place]):.3f}" for place in range(len(rules))]
        lines.append(f"| {' | '.join([variant, *means, _iqm(ratios), _paired(ratios, found[against])])} |")
    said = [f"{task}: `{name}`, {np.mean(rules[task][name]) / 60:.1f} min" for task, name in best.items()]
    return [*lines, "", f"The best rules: {'; '.join(said)}"]


def _ratios(rows: list[dict], variant: str, rules: dict, best: dict[str, str]) -> np.ndarray:
    """Mean JCTs over the best rule's: seeds, tasks, worlds."""
    jct_s = {(row["task"], row["seed"]): row["jct_s"] for row in rows if row["variant"] == variant}
    seeds = sorted({seed for _, seed in jct_s})
    return np.array([[np.divide(jct_s[task, seed], rules[task][best[task]]) for task in best] for seed in seeds])


def _iqm(ratios: np.ndarray) -> str:
    flat = ratios.reshape(len(ratios), -1)
    low, high = bootstrap_interval(interquartile_mean, flat)
    return f"{interquartile_mean(flat):.3f} [{low:.3f}, {high:.3f}]"


def _paired(ratios: np.ndarray, other: np.ndarray) -> str:
    """Seed by seed, geometric means over worlds: the mean and its 95% t interval."""
    if ratios is other:
        return "1"
    over = np.exp(np.log(ratios).mean((1, 2)) - np.log(other).mean((1, 2)))
    low, high = mean_interval(over)
    return f"{over.mean():.3f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Plays what has not been played, then prints the table."""
    parser = argparse.ArgumentParser(description="The policies of a sweep on tasks of fixed difficulty")
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--against", required=True, help="variant that the others are compared with, seed by seed")
    parser.add_argument("--worlds", type=int, default=8)
    asked = parser.parse_args()
    enable_cache()
    sweep = load_sweep(asked.sweep)
    path, policies = sweep.out / ROWS, policies_of(sweep)
    done = {(row["task"], row["variant"], row["seed"]) for row in read_rows(path)}
    for task in asked.tasks:
        if (task, RULES_ROW, None) not in done:
            jct_s = judge(task, list(RULES), asked.worlds)
            append(path, {"task": task, "variant": RULES_ROW, "seed": None, "jct_s": jct_s})
        left = [name for name, who in policies.items() if (task, *who) not in done]
        for name, jct_s in (judge(task, left, asked.worlds) if left else {}).items():
            variant, seed = policies[name]
            append(path, {"task": task, "variant": variant, "seed": seed, "jct_s": jct_s})
    print(*table([row for row in read_rows(path) if row["task"] in asked.tasks], asked.against), sep="\n")


if __name__ == "__main__":
    main()
