"""Models that share a GPU have factors that nobody knows beforehand: the environment against the oracle."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.env.test_failures import failing
from tests.env.test_oracle import assert_same
from tests.support import strategies
from tests.support.cases import cases, few
from tests.support.random_cases import crowded_case
from tests.support.specs import SHARING

SEEDS = st.integers(0, 2**32 - 1)
STOPS = [spec for row in SHARING.values() for spec in row if "preempt" in spec]
FEW = SHARING["two"][1:3] + SHARING["two"][4:5]  # of those that appraise, compiled by themselves


@pytest.mark.slower
@settings(max_examples=20)
@given(seed=SEEDS, spec=st.sampled_from(FEW))
def test_some_who_learn_and_some_who_do_not(seed, spec):
    assert_same(crowded_case(seed, "two"), spec, FEW, "analytic")


@pytest.mark.long
@pytest.mark.parametrize(("shape", "known"), few([("two", True)], [("two", True), ("two", False), ("one", False)]))
@cases(30)
@given(data=st.data())
def test_policies_under_pair_factors(shape, known, data):
    case = crowded_case(data.draw(SEEDS), shape, known)
    rules = tuple(spec for spec in SHARING[shape] if spec not in STOPS)
    assert_same(case, data.draw(st.sampled_from(rules)), rules, "analytic")


@pytest.mark.long
@pytest.mark.parametrize("shape", few(["one"], SHARING))
@cases(30)
@given(data=st.data())
def test_pair_factors_where_jobs_are_stopped_and_servers_fail(shape, data):
    case = failing(crowded_case(data.draw(SEEDS), shape), data)
    spec = data.draw(st.sampled_from(SHARING[shape]))
    rules = tuple(one for one in SHARING[shape] if one not in STOPS)
    assert_same(case, spec, () if spec in STOPS else rules, "analytic")


@pytest.mark.long
def test_the_cases_are_worth_running():
    """Factors and what is learned of them change what becomes of the jobs, and three lie on some GPUs."""
    by_factors = by_learning = three = 0
    for seed in range(20):
        case = crowded_case(seed, "two")
        assert case.pairs is not None
        alike = dataclasses.replace(case, pairs=case.pairs.replace(factor=np.ones_like(case.pairs.factor)))
        blind, learns = (strategies.run(case, spec, case.config(), FEW) for spec in FEW[:2])
        plain = strategies.run(alike, FEW[0], case.config(), FEW)
        finish_s = [strategies.outcome(case, state).finish_s for state in (blind, learns, plain)]
        by_learning += not np.allclose(*finish_s[:2], equal_nan=True)
        by_factors += not np.allclose(finish_s[0], finish_s[2], equal_nan=True)
        pairs = blind.pairs
        assert pairs is not None
        three += bool(((pairs.seen_s > 1.0) & (np.abs(pairs.mean - pairs.factor) > 1e-3)).any())
    assert min(by_factors, by_learning) > 10 and three > 3
