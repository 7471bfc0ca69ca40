"""Preemptive rules beside those of a simulator that others wrote, as it describes them.

It counts GPUs and knows no placements: contention is off here, and links have no end of bandwidth.

`python tests/simulation/test_published_rules.py TRACE LOAD...` prints the table of docs/validation.md.
"""

import sys

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse
from jaxsched.simulation.scenario import Scenario, load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from tests.oracle.published import FIFO, LAS, SRSF, SRTF, finish_times

FAST = 1e7  # GB/s or Gbit/s
QUANTUM = 18_000.0  # GPU-seconds
RULES = {
    FIFO: "pack",
    SRTF: "pack:srtf+backfill+preempt",
    SRSF: "pack:srsf+backfill+preempt",
    LAS: f"pack:tiresias+backfill+preempt+q{QUANTUM:g}",
}


def cluster_of(servers: int) -> Cluster:
    """Servers of 8 GPUs, wherever a gang lies it runs as fast; one scheduler."""
    return build([Server((4, 4), "V100", 64.0, FAST, FAST, FAST)] * servers, leaf_spine(servers, 8, FAST, 1.0), 1)


def means_s(scenario: Scenario, rule: str, *, by_submission: bool) -> tuple[float, float]:
    """Mean completion time by the published rule, and ours; `by_submission` as in `finish_times`."""
    jobs, total = scenario.jobs[0], int(np.asarray(scenario.cluster.group_gpus).sum())
    cluster = cluster_of(total // 8)
    limits = (QUANTUM,) if rule == LAS else ()
    theirs = finish_times(jobs.submit_s, jobs.duration_s, jobs.num_gpus, total, rule, limits, by_submission)
    world = dict(preemption=True, restart_s=0.0) if rule != FIFO else {}
    settings = Settings(interference="none", interval_s=10.0, **world)
    ours = simulate([parse(RULES[rule])], cluster, [jobs], settings)[RULES[rule]][0]
    assert ours.finished.all()
    return float((theirs - jobs.submit_s).mean()), float(ours.jct_s.mean())


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_generated_jobs(rule):
    scenario = load_scenario("leaf-spine-8", "philly-like", schedulers=1, num_jobs=400, load=0.9, seeds=1)
    theirs, ours = means_s(scenario, rule, by_submission=True)
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_a_trace(rule):
    try:
        scenario = load_scenario("leaf-spine-32", "muri3", schedulers=1, load=0.9)
    except UserError as error:
        pytest.skip(str(error))
    theirs, ours = means_s(scenario, rule, by_submission=True)
    assert ours == pytest.approx(theirs, rel=0.02)


if __name__ == "__main__":
    for load in map(float, sys.argv[2:]):
        for name, by_submission in [*((rule, False) for rule in RULES), (LAS, True)]:
            scenario = load_scenario("leaf-spine-32", sys.argv[1], schedulers=1, load=load)
            theirs, ours = means_s(scenario, name, by_submission=by_submission)
            said = f"{name:4} {'by submission' if by_submission else '':13}"
            print(f"{sys.argv[1]} {load} {said} {theirs / 60:9.1f} {ours / 60:9.1f} min {ours / theirs - 1:+.2%}")
