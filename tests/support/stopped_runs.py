"""Generated runs in which schedulers stop jobs and servers fail."""

import dataclasses

import numpy as np

from jaxsched.cluster.outages import Outages
from jaxsched.simulation.settings import Settings
from tests.support.random_cases import Case, random_outages

# The last one stops nobody: only failures do.
STOPPING = (
    "pack:las+backfill+preempt",
    "load-balance:srtf+backfill+preempt",
    "pack:mlfq+backfill+preempt+spread",
    "tetris:srsf+backfill+preempt+h0.2",
    "greedy-wait:srtf+preempt",
    "pack:fifo+backfill",
)


def stopping(seed: int, case: Case, **changes) -> tuple[str, Settings]:
    """A policy and a world of stops and checkpoints, of every other seed with failing servers."""
    policy = STOPPING[seed % len(STOPPING)]
    values = dict(
        record_placements=True,
        preemption=True,
        restart_s=(60.0, 0.0, 17.5)[seed % 3],
        checkpoint_s=(0.0, 50.0, 400.0)[seed // 2 % 3],
        min_run_s=(0.0, 100.0)[seed % 2],
        outages=_outages(seed, case) if seed % 2 else None,
    )
    return policy, Settings(**(values | changes))


def _outages(seed: int, case: Case) -> Outages:
    found = random_outages(np.random.default_rng(seed), case, 2000.0, 300.0)
    rows = np.array([dataclasses.astuple(outage) for outage in found]).reshape(-1, 3)
    return Outages(rows[:, 0].astype(np.int64), rows[:, 1], rows[:, 2])
