"""Generated clusters of every family of networks, run from end to end and compared with the oracle."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.cluster.build import Shape, build, pad
from jaxsched.cluster.presets import SERVERS
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.policies.registry import parse
from tests.env.test_oracle import assert_same
from tests.oracle import policies, simulator
from tests.simulation.test_compiled_oracle import as_the_oracle, played
from tests.support import strategies
from tests.support.specs import AHEAD, GREEDY

FLAT = [kind for kind in TOPOLOGIES if kind not in SERVERS]  # of domains: `tests/dynamics/test_domains.py`
SIZES = {"bcube": (4, 8, 9, 16), "torus2d": (4, 6, 8, 9, 12, 15, 16), "torus3d": (8, 12, 16)}
COMMON = Shape(
    partitions=2, servers=8, groups=2, racks=8, domains=0, links=112, hops=32, uneven=1, all_links=160
)  # one compiled program for all


@st.composite
def cases(draw) -> strategies.Case:
    """Jobs on two partitions of a network of 2 to 16 servers."""
    kind = draw(st.sampled_from(FLAT))
    servers = draw(st.sampled_from(SIZES.get(kind, tuple(range(2, 17)))))
    case = strategies.random_case(draw(st.integers(0, 2**32 - 1)), "two", draw(st.integers(1, 16)), homogeneous=True)
    slow = draw(st.sampled_from([1.0, 5.0, 25.0]))  # Gbit/s
    cluster = pad(build([Server()] * servers, TOPOLOGIES[kind](servers, nic_gbits_s=slow), 2), COMMON)
    return dataclasses.replace(case, cluster=cluster, origin=f"{kind}-{servers} at {slow} with {case.origin}")


@pytest.mark.long
@settings(max_examples=40)
@given(case=cases())
def test_every_job_ends_when_the_oracle_says(case):
    spec = "load-balance"  # spreads gangs over servers, so that they use links
    state = strategies.run(case, spec, case.shape.config())
    ours = strategies.outcome(case, state)
    theirs = simulator.simulate(
        case.cluster,
        case.jobs,
        case.params.profiles,
        policies.make_policy(spec, order="fifo", backfill=False, forward="stay"),
        interval_s=case.interval_s,
        rounds=case.shape.rounds,
        max_forwards=case.max_forwards,
        interference="analytic",
        strengths=case.kappa,
        queue_slots=case.shape.queue_slots,
        running_slots=case.shape.running_slots,
    )
    assert ours.status == theirs.status and set(ours.status) <= {"finished", "rejected"}
    np.testing.assert_allclose(ours.start_s, theirs.start_s, rtol=1e-9)
    np.testing.assert_allclose(ours.finish_s - ours.start_s, theirs.finish_s - theirs.start_s, rtol=1e-5)
    done = np.array([status == "finished" for status in ours.status])
    assert ((ours.finish_s - ours.start_s)[done] >= case.jobs.duration_s[done] * (1 - 1e-5)).all()
    np.testing.assert_array_equal(state.free, case.cluster.group_gpus)


@pytest.mark.slower
@settings(max_examples=20)
@given(case=cases(), spec=st.sampled_from(AHEAD["two"]))
def test_who_looks_ahead_does_what_the_oracle_does(case, spec):
    """With servers in a row, where racks are unevenly far apart."""
    assert_same(case, spec, AHEAD["two"], "analytic")


@pytest.mark.slow
@settings(max_examples=60)
@given(case=cases(), spec=st.sampled_from([*AHEAD["two"], *GREEDY["two"]]))
def test_in_the_event_loop_as_well(case, spec):
    case = dataclasses.replace(case, law="analytic")
    policy = parse(spec)
    as_the_oracle(case, policy, played(case, policy, 10**6, in_python=False))
