"""The learners of `examples/` on a task of fixed difficulty: curves over decisions at the same budget, and a table.

    python benchmarks/learners.py task-tiny --out runs/learners/tiny
    python benchmarks/learners.py task-tiny --out runs/learners/tiny --table

Every learner plays as many rounds with every seed. At a few updates its weights are judged on test worlds of the task,
which training never draws, beside the rules; the first of them are the untrained ones. The last weights count, no best
ones are chosen. A line of `rows.jsonl` is a learner and a seed. Who starts the command again goes on.
"""

import argparse
import dataclasses
import functools
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import graph_ppo
import mappo
import ppo

import jaxsched
from jaxsched.adapters.menu_env import MenuEnv
from jaxsched.evaluation.metrics import bootstrap_interval, interquartile_mean
from jaxsched.machine import enable_cache
from jaxsched.policies.policy import Policy
from jaxsched.worlds.families import TASKS, Choice
from jaxsched.worlds.world import PLAIN, draw_world

LEARNERS = {
    "ippo": (ppo.Network(), 3, "rows"),
    "mappo": (mappo.Network(), 2, "rows"),
    "graph-ppo": (graph_ppo.Network(), 2, "graph"),
}
RULES = (*PLAIN, "greedy-wait", "greedy-wait:sjf+spread+p1", "random")
ROWS, INTERVAL_S = "rows.jsonl", 300.0


@functools.cache
def prepare(task: str, learner: str) -> tuple[MenuEnv, Policy]:
    """Environment and policy of a learner, the same for all seeds, so that programs are compiled once."""
    network, _, observation = LEARNERS[learner]
    shown = {"may_wait": False, "reward": ppo.REWARD, "observation": observation}
    env = jaxsched.make(task, episodes=64, interval_s=INTERVAL_S, **shown)
    return env, ppo.policy(env, network, None, learner)


def learn(task: str, learner: str, seed: int, updates: int, worlds: int) -> dict:
    """A row: decisions and mean JCTs on each test world, in seconds, at each judged update; CPU seconds of training."""
    (env, policy), (network, axes, _) = prepare(task, learner), LEARNERS[learner]
    judged, made, decisions = {updates // 4, updates // 2, updates}, [], [0]

    def report(number, weights, jct_s, some):
        decisions.append(decisions[-1] + int(some))
        if number in judged:
            made.append((number, weights))

    start = time.process_time()
    first = ppo.train(env, 0, jax.random.key(seed), network, axes, report)[1]
    ppo.train(env, updates, jax.random.key(seed), network, axes, report)
    trained_s = time.process_time() - start
    weights = {f"{learner} {number}": (number, own) for number, own in [(0, first), *made]}
    found = judge(
        task, [dataclasses.replace(policy, name=name, weights=own) for name, (_, own) in weights.items()], worlds
    )
    curve = [
        {"update": number, "decisions": decisions[number], "jct_s": found[name]}
        for name, (number, _) in weights.items()
    ]
    return {"task": task, "learner": learner, "seed": seed, "cpu_s": trained_s, "curve": curve}


def judge(task: str, policies: list, worlds: int) -> dict[str, list[float]]:
    """Mean JCT of each policy on each test world, in seconds; infinite where not all jobs have finished."""
    tests = [draw_world(Choice(task), number) for number in range(worlds)]
    jobs = [world.jobs for world in tests]
    found = jaxsched.compare(tests[0].build(), jobs, policies, models=tests[0].catalogue, interval_s=INTERVAL_S)
    return {row.name: [float(run.jct_s.mean()) for run in row.outcomes] for row in found.rows}


def table(rows: list[dict], rules: dict[str, list[float]]) -> list[str]:
    """Markdown: interquartile means over seeds and test worlds of JCTs over the best rule's, with 95% intervals."""
    best = min(rules, key=lambda name: np.mean(rules[name]))
    lines = ["| policy | decisions | IQM of ratios | CPU s of a training |", "|---|---:|---:|---:|"]
    for learner in dict.fromkeys(row["learner"] for row in rows):
        own = [row for row in rows if row["learner"] == learner]
        for place in range(len(own[0]["curve"])):
            scores = np.array([row["curve"][place]["jct_s"] for row in own]) / np.array(rules[best])
            low, high = bootstrap_interval(interquartile_mean, scores)
            count = np.mean([row["curve"][place]["decisions"] for row in own])
            name = f"{learner}, {len(own)} seeds" if count else f"{learner}, untrained"
            cpu = f"{np.mean([row['cpu_s'] for row in own]):.0f}" if place == len(own[0]["curve"]) - 1 else ""
            lines.append(
                f"| {name} | {count:,.0f} | {interquartile_mean(scores):.3f} [{low:.3f}, {high:.3f}] | {cpu} |"
            )
    for name, jct_s in sorted(rules.items(), key=lambda item: np.mean(item[1])):
        ratio = interquartile_mean((np.array(jct_s) / np.array(rules[best]))[None])
        lines.append(f"| `{name}`{' (best rule)' if name == best else ''} | – | {ratio:.3f} | |")
    return lines


def main() -> None:
    """Trains what is not yet there, then prints the table."""
    parser = argparse.ArgumentParser(description="The learners of examples/ on a task of fixed difficulty")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--table", action="store_true", help="only print the table")
    asked = parser.parse_args()
    enable_cache()
    asked.out.mkdir(parents=True, exist_ok=True)
    path, ppo.ENVS = asked.out / ROWS, asked.envs
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["learner"], row["seed"]) for row in rows}
    left = [(name, seed) for seed in range(asked.seeds) for name in asked.learners if (name, seed) not in done]
    for name, seed in [] if asked.table else left:
        rows.append(learn(asked.task, name, seed, asked.updates, asked.worlds))
        with path.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(name, seed, [round(np.mean(one["jct_s"])) for one in rows[-1]["curve"]], flush=True)
    rows.sort(key=lambda row: (list(LEARNERS).index(row["learner"]), row["seed"]))
    print(*table(rows, judge(asked.task, list(RULES), asked.worlds)), sep="\n")


if __name__ == "__main__":
    main()
