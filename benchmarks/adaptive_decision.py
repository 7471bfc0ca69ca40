"""CPU time of one decision for jobs that adapt: who gets how many GPUs, and where.

    python benchmarks/adaptive_decision.py SIA_DATA [64|2048 ...]

`SIA_DATA` is that of `jaxsched reproduce-table sia`. Jobs of its philly workloads, drawn at random, 34 for 64 GPUs of
three types and 1,088 for 2,048, are submitted within a quarter of an hour, which is played under `sia-greedy`. Then
both decide for those that are in the system.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.adaptive import choosing, rounds
from jaxsched.adaptive.papers.pollux_and_sia import RESTARTS_S, THREE_TYPES, workload_files
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.rounds import advance
from jaxsched.adaptive.simulate import Nodes, Rules, build
from jaxsched.adaptive.state import start
from jaxsched.adaptive.view import view_of, whole_nodes
from jaxsched.adaptive.workload import applications_in, read_workload

JOBS = {64: 34, 2048: 1088}
SPAN_S = 900.0


def cpu_ms(function, *args, times: int) -> float:
    """The median of some runs, compiled before."""
    jax.block_until_ready(function(*args))
    took = []
    for _ in range(times):
        begun = time.process_time()
        jax.block_until_ready(function(*args))
        took.append(time.process_time() - begun)
    return 1e3 * float(np.median(took))


def main(data: Path, gpus: int) -> None:
    rng, nodes = np.random.default_rng(0), [Nodes(n.count * gpus // 64, n.gpus, n.kind) for n in THREE_TYPES]
    paths = workload_files(data / "workloads" / "philly")
    names = set().union(*map(applications_in, paths))
    apps = read_applications(data / "profiles", tuple(n.kind for n in nodes), names=names)
    pool = [job for path in paths for job in read_workload(path, apps)]
    times = np.sort(rng.uniform(0, SPAN_S, JOBS[gpus]))
    jobs = [pool[rng.integers(len(pool))]._replace(submit_s=float(s)) for s in times]
    with jax.enable_x64(True):
        policy = POLICIES["sia-greedy"]
        world, lists = build(policy, apps, [jobs], nodes, Rules(restart_s=RESTARTS_S))
        one = jax.tree.map(lambda leaf: leaf[0], lists)
        begun = time.process_time()
        step = jax.jit(lambda state: rounds.one_round(policy, world, one, state)).lower(start(world, one))
        step = step.compile()
        print(f"{gpus} GPUs: a round under sia-greedy compiles in {time.process_time() - begun:.1f} CPU s")
        state = start(world, one)
        for _ in range(int(SPAN_S / 60)):
            state = step(state)
        state = advance(world, one, state, jnp.ones(len(jobs)))
        view = view_of(world, one, state)
        greedy, value = jax.jit(choosing.sia_greedy), np.asarray(choosing.values(view))
        choices, kinds = choosing.choices_of(view)
        chosen = greedy(view)
        place = jax.jit(lambda chosen: whole_nodes(world, state, chosen.gpus, chosen.kind, jnp.arange(len(jobs))))
        print(f"{int(view.active.sum())} jobs, {len(choices)} choices, {int(chosen.gpus.sum())} GPUs given")
        print(f"sia-greedy {cpu_ms(greedy, view, times=15):.1f} ms, placing {cpu_ms(place, chosen, times=15):.1f} ms")
        exact = choosing.solve(value, choices, kinds, np.asarray(view.total))
        print(f"sia {cpu_ms(choosing.solve, value, choices, kinds, np.asarray(view.total), times=5):.1f} ms")
        same = (choices == np.asarray(chosen.gpus)[:, None]) & (
            (kinds == np.asarray(chosen.kind)[:, None]) | (choices == 0)
        )
        sums = [np.take_along_axis(value, at[:, None], 1).sum() for at in (same.argmax(1), exact)]
        print(f"the greedy sum is {100 * (sums[0] / sums[1] - 1):.2f}% above the exact one")


if __name__ == "__main__":
    for size in sys.argv[2:] or list(JOBS):
        main(Path(sys.argv[1]), int(size))
