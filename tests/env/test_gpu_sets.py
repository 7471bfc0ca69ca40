"""Jobs that may use some GPU types only, or reserve CPUs and memory: the environment against the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.workload.jobs import split_types
from tests.env.test_oracle import assert_same
from tests.support import strategies
from tests.support.cases import cases
from tests.support.random_cases import asking_case, bound_case
from tests.support.specs import AHEAD

POLICIES = {
    "two": (
        "pack:sjf+backfill+reserve+spread",
        "tetris:tenants+backfill+consolidate",
        "greedy-wait:area+forward+lifetime+p1",
        "match:sjf+reserve+spread",
        "first-fit:fifo+forward",
    ),
    "three": (
        "load-balance:area+backfill+spread",
        "greedy-wait:sjf+spread+t1.3+p0.5+reserve",
        "least-interference:fifo+backfill+reserve+consolidate",
        "contention-aware:sjf+forward",
    ),
}


def run_on_types(case, spec, config, specs):
    """As `strategies.run`; no job is off its types."""
    state = strategies.run(case, spec, config, specs)
    kinds = np.array([*case.cluster.gpu_types, ""])[np.asarray(case.cluster.group_gpu_type)]
    for j in np.flatnonzero(np.asarray(state.records.start)[: len(case.jobs)] >= 0):
        types, places = split_types(str(case.jobs.allowed[j])), kinds[int(state.records.partition[j])].reshape(-1)
        for counts in (state.records.workers[j], state.records.ps[j]):
            assert not types or set(places[np.asarray(counts) > 0]) <= set(types)
    return state


def same(data: st.DataObject, shape: str, *, asks: bool = False, policies=POLICIES) -> None:
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(policies[shape]))
    seed, part = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from((0.3, 0.7, 1.0)))
    case = bound_case(case, seed, part)
    case = asking_case(case, seed, data.draw(st.sampled_from((0.5, 1.0)))) if asks else case
    assert_same(case, spec, policies[shape], "analytic", run_on_types)


@pytest.mark.slower
@pytest.mark.parametrize("asks", [False, True])
@settings(max_examples=12)
@given(data=st.data())
def test_some_policies(asks, data):
    same(data, "two", asks=asks)


@pytest.mark.slower
@settings(max_examples=12)
@given(data=st.data())
def test_who_looks_ahead(data):
    same(data, "two", asks=True, policies=AHEAD)


@pytest.mark.long
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("shape", POLICIES)
@cases(20)
@given(data=st.data())
def test_more_policies(shape, asks, data):
    same(data, shape, asks=asks)
