"""Jobs are stopped and started again: the environment against the oracle (docs/semantics.md, section 8)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.policies.registry import parse
from tests.env.test_oracle import assert_same
from tests.support import strategies
from tests.support.strategies import COSTS, PREEMPTIVE

ASKED = {shape: specs[:2] for shape, specs in PREEMPTIVE.items()}  # each compiled by itself


@pytest.mark.slow
@pytest.mark.parametrize("shape", PREEMPTIVE)
@settings(max_examples=20)
@given(data=st.data())
def test_some_runs_with_stops(shape, data):
    """A few, in the first tier."""
    hold_to_the_oracle(shape, data)


@pytest.mark.long
@pytest.mark.parametrize("shape", PREEMPTIVE)
@settings(max_examples=400)
@given(data=st.data())
def test_runs_with_stops(shape, data):
    """More than a thousand in all."""
    hold_to_the_oracle(shape, data)


def hold_to_the_oracle(shape: str, data: st.DataObject) -> None:
    """One case, one policy."""
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(PREEMPTIVE[shape]))
    case = dataclasses.replace(case, preemption=data.draw(COSTS))
    assert_same(case, spec, PREEMPTIVE[shape], "analytic")


@pytest.mark.slow
@pytest.mark.parametrize("shape", PREEMPTIVE)
@settings(max_examples=20)
@given(data=st.data())
def test_boundaries_at_which_nobody_need_be_asked_are_passed_over(shape, data):
    """A policy that says for how long it waits ends as one that is asked at every boundary."""
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(ASKED[shape]))
    case = dataclasses.replace(case, preemption=data.draw(COSTS))
    config = case.shape.config()
    often = strategies.run(case, spec, config, PREEMPTIVE[shape])
    seldom = strategies.run(case, spec, config, (spec,), parse(spec).asked)
    for name in ("start", "finish", "partition", "forwards", "workers"):
        np.testing.assert_array_equal(getattr(seldom.records, name), getattr(often.records, name), err_msg=name)
