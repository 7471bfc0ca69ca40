"""Turns of environments in step with each other, as on an accelerator: what happens in each is what the oracle says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.env import actions, interval
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.rollout import one_turn
from jaxsched.env.stages import at_boundary
from jaxsched.policies.registry import parse
from tests.env.test_failures import failing
from tests.env.test_oracle import assert_same
from tests.env.test_pairs import FEW, SEEDS
from tests.support import strategies
from tests.support.cases import cases, few
from tests.support.random_cases import crowded_case
from tests.support.specs import GREEDY, SPECS
from tests.support.strategies import STOPPING, run_in_turns


def assert_oracle(case: strategies.Case, spec: str, specs: tuple[str, ...]) -> None:
    assert_same(case, spec, specs, "analytic", run_in_turns)


@pytest.mark.long
@settings(max_examples=15)
@given(data=st.data())
def test_stops_and_failures_as_in_rounds(data):
    """Rounds are held to the oracle where jobs are stopped."""
    case = failing(data.draw(strategies.cases("one")), data)
    rounds, turns = (run(case, STOPPING, case.config(), (STOPPING,)) for run in (strategies.run, run_in_turns))
    for name in ("start", "partition", "forwards", "workers"):
        np.testing.assert_array_equal(getattr(turns.records, name), getattr(rounds.records, name), err_msg=name)
    np.testing.assert_array_equal(turns.service.stops, rounds.service.stops)
    finish_s = [strategies.outcome(case, state).finish_s for state in (turns, rounds)]
    np.testing.assert_allclose(*finish_s, rtol=1e-6)


RULES = [(specs, shape) for specs in (SPECS, GREEDY) for shape in specs]


@pytest.mark.long
@pytest.mark.parametrize(("specs", "shape"), few([(GREEDY, "two"), (SPECS, "three")], RULES))
@cases(15)
@given(data=st.data())
def test_rules_as_the_oracle(specs, shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(specs[shape]))
    assert_oracle(case, spec, specs[shape])


@pytest.mark.long
@cases(10)
@given(seed=SEEDS, spec=st.sampled_from(FEW))
def test_pair_factors_as_the_oracle(seed, spec):
    assert_oracle(crowded_case(seed, "two"), spec, FEW)


@pytest.mark.slower
@pytest.mark.parametrize("spec", ["pack:tenants+backfill+spread", "greedy-wait", "checkpoints/quickstart"])
def test_side_by_side_as_alone(monkeypatch, spec):
    for module in (interval, actions):
        monkeypatch.setattr(module, "MANY", 0)  # partitions that have changed, or get a job, are picked out
    drawn = [strategies.random_case(seed, "three", interval_s=61.7) for seed in range(4)]
    config, policy = drawn[0].shape.config(), parse(spec)
    params, table = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts) for parts in zip(*map(_parts, drawn)))

    @jax.jit
    @jax.vmap
    def after_one(playing, params):
        with traced_for(ACCELERATOR):
            return one_turn(config, params, policy, playing, jax.random.key(0))[0]

    playing = jax.vmap(lambda params, table: at_boundary(initial_state(config, params, table)))(params, table)
    ended = []
    while not bool(jax.vmap(is_finished)(playing.state).all()):
        playing = after_one(playing, params)
        ended.append(int(jax.vmap(lambda one: one.decides)(playing).sum()))
    assert set(ended) >= {1, 2, 3}  # they were not all at the same point
    for index, case in enumerate(drawn):
        alone = strategies.run(case, spec, config)
        beside = jax.tree.map(lambda leaf, index=index: leaf[index], playing.state.records)
        for name in ("status", "start", "finish", "partition", "workers"):
            np.testing.assert_array_equal(getattr(alone.records, name), getattr(beside, name), err_msg=name)
        np.testing.assert_allclose(alone.records.finish_offset_s, beside.finish_offset_s, rtol=1e-5, atol=1e-2)


def _parts(case):
    return case.params, case.table
