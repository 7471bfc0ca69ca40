"""Servers fail and come back: the environment against the oracle (docs/semantics.md, section 11)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsched.cluster.outages import Outages
from jaxsched.env.extensions.failures import failures_of
from tests.env.test_oracle import assert_same
from tests.oracle.failures import Outage, is_out
from tests.oracle.preemption import Preemption
from tests.support import strategies
from tests.support.cases import cases, few
from tests.support.invariants import watcher
from tests.support.random_cases import random_outages
from tests.support.specs import PREEMPTIVE, SPECS
from tests.support.strategies import COSTS, STOPPING

RATES = st.sampled_from([300.0, 1500.0, 5000.0]), st.sampled_from([20.0, 300.0, 2000.0])


def failing(case: strategies.Case, data: st.DataObject) -> strategies.Case:
    """The case with costs and outages."""
    case = dataclasses.replace(case, preemption=data.draw(COSTS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return dataclasses.replace(case, outages=random_outages(rng, case, *map(data.draw, RATES)))


def hold_to_the_oracle(shape: str, data: st.DataObject, specs: tuple[str, ...]) -> None:
    """One case, one policy; the environment does what the oracle's policy did where that stops jobs."""
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(specs))
    assert_same(failing(case, data), spec, () if "preempt" in spec else specs, "analytic")


@pytest.mark.long
@pytest.mark.parametrize("shape", few(["two"], ["one", "two"]))
@cases(20)
@given(data=st.data())
def test_runs_with_failures_and_stops(shape, data):
    hold_to_the_oracle(shape, data, PREEMPTIVE[shape])


@pytest.mark.long
@pytest.mark.parametrize("shape", ["three"])
@cases(20)
@given(data=st.data())
def test_runs_with_failures(shape, data):
    """Of policies that stop nothing themselves, some with reservations or forwards."""
    hold_to_the_oracle(shape, data, SPECS[shape])


@pytest.mark.slower
@pytest.mark.parametrize(
    ("spec", "checkpoint_s"), [pytest.param(STOPPING, 41.3, marks=pytest.mark.long), ("pack:area+backfill", 0.0)]
)
def test_what_must_hold_when_servers_fail(spec, checkpoint_s):
    """No GPU of a server that is out is held, nobody is lost, and no more work is lost than since the checkpoint."""
    case = dataclasses.replace(strategies.random_case(3, "one"), preemption=Preemption(30.0, checkpoint_s, 0.0))
    case = dataclasses.replace(case, outages=random_outages(np.random.default_rng(3), case, 900.0, 300.0))
    config = case.shape.config(early_stop=False)
    check = watcher(config, case.params)

    def watch(before, action, after, gain):
        check(before, action, after, gain)
        out, running = np.asarray(after.faults.out), after.running
        tasks = np.asarray((running.workers > 0) | (running.ps > 0)).any(-1) & (np.asarray(running.job) >= 0)[..., None]
        assert not (tasks & out[:, None]).any()
        assert not np.asarray(after.free)[out].any()
        assert (np.asarray(after.service.ran) >= np.asarray(before.service.ran)).all()
        assert (np.asarray(after.service.left_s) <= np.asarray(before.service.left_s)).all()
        fell = np.asarray(after.faults.count) > np.asarray(before.faults.count)
        lost = np.asarray(after.faults.lost_s - before.faults.lost_s)[fell]
        assert (lost >= -1e-3).all() and (checkpoint_s == 0.0 or (lost <= checkpoint_s * 1.01).all())

    state = strategies.watched_run(case, spec, config, watch)
    assert int(state.faults.count.sum()) > 5 and float(state.faults.lost_s.sum()) > 0
    assert (int(state.service.stops.sum()) > 5) == (spec == STOPPING)


def test_when_a_server_is_out():
    """From the first boundary at or after the beginning to the first at or after the end, one boundary at least."""
    case = strategies.random_case(3, "one")
    outages = [Outage(0, 61.0, 119.0), Outage(0, 61.5, 62.0), Outage(0, 301.0, 302.0), Outage(1, 0.0, 60.0)]
    outages += [Outage(0, 600.0, 700.0), Outage(0, 650.0, 660.0), Outage(0, 720.0, 725.0)]
    rows = np.array([dataclasses.astuple(outage) for outage in outages])
    read = Outages(rows[:, 0].astype(int), rows[:, 1], rows[:, 2])
    changes = np.asarray(failures_of(case.cluster, read, 60.0).changes)
    for server, found in ((0, [2, 3, 6, 7, 10, 13]), (1, [0, 1]), (2, [])):
        mine = changes[np.asarray(case.cluster.server_id) == server][0]
        assert [boundary for boundary in mine.tolist() if boundary < 2**31 - 1] == found
        for boundary in range(15):
            assert is_out(outages, server, boundary, 60.0) == bool((mine <= boundary).sum() % 2)
