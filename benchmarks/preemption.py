"""The tables of docs/results/preemption.md and history.md: python benchmarks/preemption.py TRACES RESULTS [MATCH]

Plays every policy on every trace in the folder TRACES, and keeps one result of `jaxsched evaluate` per run in the
folder RESULTS: what is there is not run again. Only runs whose name has MATCH in it, and then prints the tables.
Some hours on a core.
"""

import json
import subprocess
import sys
from pathlib import Path

TRACES = [("philly", 64), *((f"muri_trace{i}", 32) for i in (1, 2, 3))]  # with servers of 8 GPUs
RUNS = [(*trace, load) for trace in TRACES for load in (0.7, 0.9)]
RULES = {  # what is known: policies
    "runtimes": [
        "pack:backfill",
        "pack:tenants+backfill",
        "pack:sjf+backfill+spread",
        "greedy-wait:sjf+spread+lifetime+reserve+p1",
        *(f"pack:{order}+backfill+consolidate+preempt+spread" for order in ("mlfq", "las", "tiresias", "srsf", "srtf")),
        *(f"greedy-wait:{order}+spread+consolidate+preempt" for order in ("srsf", "srtf")),
    ],
    "history": [
        "qssf",
        "greedy-wait:sjf+spread+lifetime+reserve+p1",
        "tiresias-gittins",
        "themis",
        *(f"pack:{order}+backfill+consolidate+preempt+spread" for order in ("srsf", "srtf")),
    ],
}


def play(traces: Path, results: Path, match: str) -> None:
    """The runs that are missing."""
    for schedulers in (4, 1):
        for trace, servers, load in RUNS:
            for knows, policies in RULES.items():
                for policy in policies:
                    out = results / f"{trace}-{load}-{schedulers}-{knows}-{policy}.json"
                    if out.exists() or match not in out.name:
                        continue
                    words = ["--cluster", f"leaf-spine-{servers}", "--schedulers", schedulers, "--load", load]
                    words += ["--workload", traces / f"{trace}.csv", "--preemption", "on", "--knows", knows]
                    words += ["--duration-error", 0.001, "--seeds", 5, "--policies", policy, "--json", out]
                    command = [sys.executable, "-m", "jaxsched.cli.main", "evaluate", *map(str, words)]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def table(results: Path, schedulers: int) -> None:
    """Mean completion times, with the half width of their interval over runs, in minutes."""
    print(f"\n{schedulers} scheduler(s)\n\n| policy | knows | {' | '.join(f'{t} {load}' for t, _, load in RUNS)} |")
    print("|---|---|" + "---:|" * len(RUNS))
    for knows, policies in RULES.items():
        for policy in policies:
            print(f"| {policy} | {knows} | {' | '.join(_cells(results, schedulers, knows, policy))} |")
    print(f"| bound | | {' | '.join(_cells(results, schedulers, 'runtimes', 'pack:backfill', bound=True))} |")


def _cells(results: Path, schedulers: int, knows: str, policy: str, *, bound: bool = False) -> list[str]:
    cells = []
    for trace, _, load in RUNS:
        file = results / f"{trace}-{load}-{schedulers}-{knows}-{policy}.json"
        if not file.exists():
            cells.append("–")
            continue
        result = json.loads(file.read_text())
        found = result["policies"][policy]
        low, high = found["jct_ci95_s"]
        mean = f"{found['jct_mean_s'] / 60:,.1f} ± {(high - low) / 120:,.1f}"
        cells.append(f"{result['bound_s'] / 60:,.1f}" if bound else mean)
    return cells


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    folders = Path(sys.argv[1]), Path(sys.argv[2])
    folders[1].mkdir(parents=True, exist_ok=True)
    play(*folders, sys.argv[3] if len(sys.argv) == 4 else "")
    for count in (4, 1):
        table(folders[1], count)
