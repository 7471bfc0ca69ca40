"""The JAX environment against the oracle: every job of every case starts, finishes and is placed alike.

`tests/oracle/` is an event loop in plain NumPy and float64, written from docs/semantics.md and not from the code it
judges.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.state import State
from tests.oracle import policies, seeking, simulator
from tests.support import scripted, strategies
from tests.support.cases import cases, few
from tests.support.plans import with_domains, with_plans
from tests.support.sharing_laws import by_hand
from tests.support.specs import AHEAD, GREEDY, SPECS


def oracle_policy(spec: str):
    """The oracle's policy of that name."""
    name, _, rest = spec.partition(":")
    greedy, options = name in ("greedy-wait", "match"), list(filter(None, rest.split("+")))
    values = dict(order="area" if greedy else "fifo", backfill=greedy, forward="forward" if greedy else "stay")
    if name == "greedy-wait" and not any(option == "preempt" or option[1:2].isdigit() for option in options):
        values |= dict(order="sjf", forward="spread", reserve=True, lifetime=True, faster=True, patience=None)
    for option in options:
        if option.startswith("table"):
            table = strategies.random_table(int(option.removeprefix("table")))
            values |= dict(order="table", table=table.levels, table_margin=table.margin)
        elif option.startswith("seek"):
            drawn = option.removeprefix("seek")
            values["seek"] = strategies.random_seek(int(drawn)).numbers if drawn else seeking.BY_HAND
        elif option in policies.ORDERS:
            values["order"] = option
        elif option in ("stay", "forward", "spread"):
            values["forward"] = option
        elif option == "backfill":
            values["backfill"] = True
        elif option in ("lifetime", "reserve", "preempt", "consolidate", "racks", "faster", "observe"):
            values[option] = True
        else:
            numbers = {"t": "threshold", "p": "patience", "h": "hysteresis", "q": "attained"}
            values[numbers[option[0]]] = float(option[1:])
    return policies.make_policy(name, **values)


def assert_same(
    case: strategies.Case, spec: str, specs: tuple[str, ...], interference: str, run=strategies.run
) -> None:
    """Run both and compare; without `specs` the environment does what the oracle's policy did."""
    case = dataclasses.replace(case, law=interference)
    policy = scripted.Recorded(oracle_policy(spec))
    theirs = simulator.simulate(
        case.cluster,
        case.jobs,
        case.params.profiles,
        policy,
        interval_s=case.interval_s,
        rounds=case.shape.rounds,
        max_forwards=case.max_forwards,
        interference=interference,
        strengths=case.kappa,
        queue_slots=case.shape.queue_slots,
        running_slots=case.shape.running_slots,
        preemption=case.preemption,
        outages=None if case.outages is None else list(case.outages),
        history=case.history,
        moves="faster" in spec,
        law=None if case.sharing is None else by_hand(case.sharing),
        pair_factors=None if case.pairs is None else np.asarray(case.pairs.factor, np.float64),
        pairs_known=case.pairs is not None and case.pairs.known,
    )
    config = case.config(skip_idle="faster" not in spec)
    state = run(case, spec, config, specs) if specs else scripted.play_again(case, config, policy.rounds)
    ours = strategies.outcome(case, state)
    assert int(state.illegal) == 0
    assert ours.status == theirs.status
    # A start is a boundary, so that any difference is at least an interval.
    np.testing.assert_allclose(ours.start_s, theirs.start_s, rtol=1e-9, err_msg="start_s")
    np.testing.assert_array_equal(ours.partition, theirs.partition)
    forwards = np.asarray(state.records.forwards)[: len(case.jobs)]
    np.testing.assert_array_equal(forwards, theirs.forwards, err_msg="forwards")
    assert ours.workers == theirs.workers
    assert ours.ps == theirs.ps
    if case.preemption is not None:
        assert_same_service(case, state, theirs)
    if state.pairs.there:
        assert_same_seen(state.pairs, theirs)
    # Stricter than finish times that agree: run times do. With stops there are restarts of up to 900 s, and what a long
    # run is rounded by reaches a short one beside it; so it does where some pairs of models are many times as slow.
    atol = 0.0 if case.preemption is None and case.pairs is None else 1e-2
    np.testing.assert_allclose(
        ours.finish_s - ours.start_s, theirs.finish_s - theirs.start_s, rtol=1e-5, atol=atol, err_msg="run time"
    )


def assert_same_service(case: strategies.Case, state: State, theirs: simulator.Result) -> None:
    """Both stopped the same jobs as often, and what that cost is the same."""
    assert state.service.there
    count = len(case.jobs)
    for name in ("stops", "ran"):
        ours = np.asarray(getattr(state.service, name))[:count]
        np.testing.assert_array_equal(ours, getattr(theirs, name), err_msg=name)
    if state.faults.there:
        np.testing.assert_array_equal(np.asarray(state.faults.count)[:count], theirs.falls, err_msg="failures")
        ours = np.asarray(state.faults.lost_s)[:count]
        np.testing.assert_allclose(ours, theirs.fallen_s, rtol=1e-5, atol=1e-2, err_msg="fallen_s")
    for name in ("restarting_s", "lost_s"):
        ours = np.asarray(getattr(state.service, name))[:count]
        np.testing.assert_allclose(ours, getattr(theirs, name), rtol=1e-5, atol=1e-2, err_msg=name)


def assert_same_seen(ours: Pairs, theirs: simulator.Result) -> None:
    """Both have seen the same models beside each other, and what that tells of their factors."""
    assert theirs.pairs is not None
    np.testing.assert_allclose(ours.seen_s, theirs.pairs.seen_s, rtol=1e-4, atol=1e-2, err_msg="seen_s")
    long = theirs.pairs.seen_s > 1.0
    believed = theirs.pairs.means()
    np.testing.assert_allclose(np.asarray(ours.mean)[long], believed[long], rtol=1e-4, err_msg="mean factors")


# Hypothesis draws by the source of a test: one that is reworded has other cases.


@pytest.mark.slow
@pytest.mark.parametrize("shape", [pytest.param("two", marks=pytest.mark.slower), *sorted(SPECS.keys() - {"two"})])
@settings(max_examples=20)
@given(data=st.data())
def test_some_heuristics(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(SPECS[shape]))
    assert_same(case, spec, SPECS[shape], "analytic")


@pytest.mark.long
@pytest.mark.parametrize("shape", SPECS)
@cases(40)
@given(data=st.data())
def test_heuristics(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(SPECS[shape]))
    assert_same(case, spec, SPECS[shape], "analytic")


@pytest.mark.long
@pytest.mark.parametrize("shape", few(["three"], SPECS))
@cases(20)
@given(data=st.data())
def test_plans(shape, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    case = with_domains(rng, with_plans(rng, data.draw(strategies.cases(shape))))
    assert_same(case, data.draw(st.sampled_from(SPECS[shape])), SPECS[shape], "analytic")


IN_RACKS = ("pack:fifo+backfill+racks+spread",)


@pytest.mark.slower
@settings(max_examples=20)
@given(data=st.data())
def test_some_in_racks(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    case = with_domains(rng, with_plans(rng, data.draw(strategies.cases("one"))))
    assert_same(case, IN_RACKS[0], IN_RACKS, "analytic")


@pytest.mark.long
@cases(40)
@given(case=strategies.cases("two"), spec=st.sampled_from(SPECS["two"]))
def test_heuristics_without_interference(case, spec):
    assert_same(case, spec, SPECS["two"], "none")


@pytest.mark.long
@pytest.mark.parametrize("shape", few(["two", "three"], GREEDY))
@cases(10)
@given(data=st.data())
def test_greedy_wait(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(GREEDY[shape]))
    assert_same(case, spec, GREEDY[shape], "analytic")


@pytest.mark.slow
@settings(max_examples=20)
@given(case=strategies.cases("two"), spec=st.sampled_from(AHEAD["two"]))
def test_some_that_look_ahead(case, spec):
    assert_same(case, spec, AHEAD["two"], "analytic")


@pytest.mark.long
@pytest.mark.parametrize("shape", AHEAD)
@cases(70)
@given(data=st.data())
def test_who_looks_ahead(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(AHEAD[shape]))
    assert_same(case, spec, AHEAD[shape], "analytic")


@pytest.mark.long
def test_the_cases_are_worth_running():
    # Half of the jobs do not start at once, some slow each other down much, some forwards and rejections happen.
    waited, slowdown, forwards, rejected, held_back = [], [], 0, 0, 0
    for seed in range(40):
        case = strategies.random_case(seed, "two", interval_s=7.3)
        state = strategies.run(case, "pack:area+backfill+forward", case.shape.config(), SPECS["two"])
        ours = strategies.outcome(case, state)
        waited += list(ours.start_s - case.jobs.submit_s > 2 * case.interval_s)
        slowdown += list((ours.finish_s - ours.start_s) / case.jobs.duration_s)
        forwards += int(state.records.forwards.sum())
        rejected += ours.status.count("rejected")
        free, kept = (
            strategies.outcome(case, strategies.run(case, spec, case.shape.config())).start_s
            for spec in ("contention-aware:sjf+backfill+spread", "contention-aware:sjf+backfill+spread+reserve")
        )
        held_back += not np.array_equal(free, kept, equal_nan=True)
    assert 0.3 < np.mean(waited) < 0.9
    assert np.nanmean(np.array(slowdown) > 1.5) > 0.2
    assert forwards > 20 and rejected > 20 and held_back > 20
