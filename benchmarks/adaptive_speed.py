"""CPU time of playing Pollux' workloads of load 1.0 under `pollux`, and bytes of a round.

    python benchmarks/adaptive_speed.py DATA

`DATA` is that of `jaxsched reproduce-table pollux`. The first run compiles, unless the cache has the programs.
Where PYTHONDONTWRITEBYTECODE is set, every run compiles Python's modules, too.
"""

import sys
import time
from pathlib import Path

import jax

from jaxsched.adaptive import rounds
from jaxsched.adaptive.papers.pollux_and_sia import workload_files
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.simulate import LATEST_END, PUBLISHED_NODES, Rules, build, simulate
from jaxsched.adaptive.state import start
from jaxsched.adaptive.workload import read_workload
from jaxsched.machine import compute_on_one_thread, enable_cache

COPIES, WINDOW = 8, 32


def main(data: Path) -> None:
    compute_on_one_thread()
    enable_cache()
    policy, apps = POLICIES["pollux"], read_applications(data / "profiles")
    lists = [read_workload(path, apps) for path in workload_files(data / "workloads-1.0")]
    results = simulate(policy, apps, lists)
    mean_s = sum(result.jct_s.mean() for result in results) / len(results)
    print(f"{len(lists)} lists, mean JCT {mean_s:,.1f} s: {time.process_time():.1f} CPU s since this program began")
    with jax.enable_x64(True):
        world, jobs = build(policy, apps, lists * COPIES, PUBLISHED_NODES, Rules())
        for _ in range(2):  # the first compiles
            begun = time.process_time()
            jax.block_until_ready(rounds.play(policy, world, jobs, LATEST_END))
            took_s = time.process_time() - begun
        count = int(jobs.real.sum())
        print(f"{COPIES * len(lists)} lists, {count:,} jobs: {took_s:.2f} CPU s, {count / took_s:,.0f} jobs per CPU s")
        some = jax.tree.map(lambda leaf: leaf[0, :WINDOW], jobs)
        state = start(world, some)
        one = jax.jit(lambda state: rounds.one_round(policy, world, some, state)).lower(state).compile()
        count = (one.cost_analysis() or {})["bytes accessed"]
        print(f"a round of {WINDOW} jobs: {count:,.0f} bytes by XLA's count")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
