"""The faults of docs/kubernetes.md: python -m benchmarks.kube_faults RESULTS [NODES ...]

A drill (tests/support/kube/drill.py) with each fault at 8 and at 200 nodes, each on a control plane of its own, from
the folder KUBEBUILDER_ASSETS. Keeps one JSON file per drill in the folder RESULTS, does not repeat what is there, and
prints the tables. Half an hour on two cores.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.kube.drill_faults import FAULTS

LIMIT_S = 150  # of a drill; where nodes are gone for good, some gangs wait for ever


def drill(results: Path, nodes: int, fault: str) -> dict:
    """The drill's line, and the load average when it began."""
    out = results / f"{nodes}-{fault}.json"
    if not out.exists():
        load = os.getloadavg()[0]
        command = [sys.executable, "-m", "tests.support.kube.drill", "--nodes", str(nodes), "--fault", fault]
        done = subprocess.run([*command, "--limit-s", str(LIMIT_S)], stdout=subprocess.PIPE, text=True)
        if not done.stdout:
            sys.exit(f"the drill {fault} at {nodes} nodes ended with {done.returncode} and said nothing")
        out.write_text(json.dumps(json.loads(done.stdout) | {"load": round(load, 1)}))
    return json.loads(out.read_text())


def row(one: dict) -> str:
    """A line of the table; a drill that never bound anything again after the fault shows a dash."""
    next_s = one["first_bind_after_fault_s"]
    cells = [one["fault"], f"{one['bound_whole']} of {one['gangs']}", "–" if next_s is None else f"{next_s:.1f}"]
    cells += [f"{one['seconds']:.0f}", f"{one['longest_half_bound_s']:.1f}", one["rejected"], f"{one['load']:.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main(results: Path, sizes: list[int]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    for nodes in sizes:
        lines = [drill(results, nodes, fault) for fault in FAULTS]
        print(f"\n{nodes} nodes, {lines[0]['pods']} pods\n")
        print("| fault | gangs whole | to the next bind, s | all after, s | half-bound, s | rejected | load |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for one in lines:
            print(row(one))
            for words in one["broken"]:
                print(f"\nBROKEN, {one['fault']}: {words}\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]] or [8, 200])
