"""The compiled event loop against the oracle: every job of every case starts, finishes and is placed alike."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.env.knowledge import HISTORY
from jaxsched.env.levels import LevelTable
from jaxsched.event_loop import POLICIES, Run
from jaxsched.policies.policy import Policy
from jaxsched.policies.spec import GREEDY_WAIT, MATCH
from jaxsched.workload.jobs import WHOLE
from tests.oracle import policies, preemption, simulator
from tests.support import strategies
from tests.support.cases import cases
from tests.support.plans import with_domains, with_plans
from tests.support.random_cases import asking_case, crowded_case, random_outages
from tests.support.sharing_laws import by_hand
from tests.support.strategies import COSTS


def spec_of(rule: str, *options: str) -> str:
    return f"{rule}:{'+'.join(filter(None, options))}"


ORDERS, FORWARDS = st.sampled_from(policies.ORDERS), st.sampled_from(policies.FORWARDS)
SPECS = st.builds(
    spec_of,
    st.sampled_from([policy for policy in POLICIES if policy not in (GREEDY_WAIT, MATCH)]),
    ORDERS,
    st.sampled_from(("", "backfill", "backfill+reserve", "consolidate", "backfill+consolidate+reserve", "faster")),
    FORWARDS,
) | st.builds(
    spec_of,
    st.just(GREEDY_WAIT),
    ORDERS,
    FORWARDS,
    st.sampled_from(("", "t1.05", "t1.3", "t2")),
    st.sampled_from(("", "p0", "p0.5", "p2")),
    st.sampled_from(("", "lifetime")),
    st.sampled_from(("", "reserve")),
)
LOOKING = st.builds(spec_of, st.just(GREEDY_WAIT), ORDERS, FORWARDS, st.sampled_from(("", "consolidate")))
SEEKING = st.builds(
    spec_of,
    st.sampled_from([policy for policy in POLICIES if policy not in (GREEDY_WAIT, MATCH)]),
    ORDERS,
    st.just("backfill+spread"),
    st.sampled_from(("", "consolidate", "reserve")),
    st.just("seek") | st.integers(0, 1000).map("seek{}".format),
) | st.builds(
    spec_of,
    st.just(GREEDY_WAIT),
    ORDERS,
    st.just("spread"),
    st.sampled_from(("", "t1.3")),
    st.sampled_from(("", "p0.5")),
    st.sampled_from(("", "lifetime", "reserve")),
    st.just("seek") | st.integers(0, 1000).map("seek{}".format),
)
MATCHING = st.builds(
    spec_of,
    st.just(MATCH),
    st.sampled_from(("sjf", "area")),
    FORWARDS,
    st.sampled_from(("", "lifetime", "t1.3", "t1.2+p0.5")),
    st.sampled_from(("", "reserve", "consolidate")),
    st.sampled_from(("", "observe")),
)
PREEMPTIVE = st.builds(
    spec_of,
    st.sampled_from(POLICIES),
    st.sampled_from((*preemption.ORDERS, "tiresias+q700", "tiresias+q5000"))
    | st.integers(0, 1000).map("table{}".format),
    st.sampled_from(("", "backfill")),
    FORWARDS,
    st.sampled_from(("preempt", "preempt+consolidate")),
    st.sampled_from(("", "h0.2", "h1")),
    st.sampled_from(("", "faster")),
)


def same(case: strategies.Case, spec: str, interference: str, chunk: int) -> None:
    """Run both and compare. The loop goes on in chunks of so many rounds, and Python does the same to the last bit."""
    policy = strategies.policy_of(spec)
    case = dataclasses.replace(case, law=interference, history=case.history or policy.requires == HISTORY)
    run, in_python = (played(case, policy, chunk, in_python=where) for where in (False, True))
    for name in ("numbers", "placement"):
        np.testing.assert_array_equal(getattr(in_python.tables, name), getattr(run.tables, name), err_msg=name)
    for name in ("records", "service"):
        theirs, ours = getattr(in_python.tables, name), getattr(run.tables, name)
        for field in ours.dtype.names:
            np.testing.assert_array_equal(theirs[field], ours[field], err_msg=field)
    as_the_oracle(case, policy, run)


def played(case: strategies.Case, policy: Policy, chunk: int, *, in_python: bool) -> Run:
    """The loop's run, to the end."""
    shares = bool((case.jobs.milli < WHOLE).any())
    config = case.config() if shares else case.config(shared_gpus=0)
    run = Run(config, case.params, case.table, policy, case.interval_s, in_python=in_python, pairs=case.pairs)
    while not run.go_on(chunk):
        pass
    return run


def as_the_oracle(case: strategies.Case, policy: Policy, run: Run) -> None:
    """Compare a run with the oracle's."""
    of = policy.spec
    assert of is not None
    order = of.queue.order
    table = order if isinstance(order, LevelTable) else None
    patience = None if of.ahead else of.patience
    options = ("table" if table else order, of.queue.backfill, of.forward, of.threshold, of.queue.window, patience)
    theirs = simulator.simulate(
        case.cluster,
        case.jobs,
        case.params.profiles,
        policies.make_policy(
            of.rule,
            *options,
            lifetime=of.lifetimes,
            reserve=of.queue.reserve,
            preempt=of.queue.preempt,
            consolidate=of.queue.consolidate,
            racks=of.queue.racks,
            hysteresis=of.queue.hysteresis,
            attained=of.queue.quantum,
            faster=of.queue.faster,
            table=table and table.levels,
            table_margin=table.margin if table else 0,
            seek=None if of.seek is None else of.seek.numbers,
            observe=of.observe,
        ),
        interval_s=case.interval_s,
        rounds=case.shape.rounds,
        max_forwards=case.max_forwards,
        interference=case.law,
        strengths=case.kappa,
        law=None if case.sharing is None else by_hand(case.sharing),
        pair_factors=None if case.pairs is None else np.asarray(case.pairs.factor, np.float64),
        pairs_known=case.pairs is not None and case.pairs.known,
        queue_slots=case.shape.queue_slots,
        running_slots=case.shape.running_slots,
        preemption=case.preemption,
        outages=None if case.outages is None else list(case.outages),
        history=case.history,
        moves=of.queue.faster and of.queue.preempt,
    )
    count = len(case.jobs)
    ours = run.tables.records[:count]
    start_s = np.where(ours["start"] < 0, np.nan, ours["start"] * case.interval_s)
    assert [home < 0 for home in run.home[:count]] == [status == "rejected" for status in theirs.status]
    np.testing.assert_allclose(start_s, theirs.start_s, rtol=1e-9, err_msg="start_s")
    np.testing.assert_array_equal(ours["partition"], theirs.partition)
    np.testing.assert_array_equal(ours["forwards"], theirs.forwards)
    placed = [{int(a): int(row[a]) for a in np.flatnonzero(row)} for row in run.tables.placement[:count]]
    assert placed == theirs.workers
    # Both reckon in float64; durations and step times on the ideal placement are float32 here, and a job is as good as
    # done from 1e-6 of its duration before its end on.
    # Beside a job of days, a job of minutes on the same GPU feels that.
    atol = 1e-2 if run.world.shared_gpus else 0.0
    np.testing.assert_allclose(ours["finish_s"] - start_s, theirs.finish_s - theirs.start_s, rtol=5e-6, atol=atol)
    service = run.tables.service[:count]
    np.testing.assert_array_equal(service["stops"], theirs.stops)
    np.testing.assert_array_equal(service["ran"], theirs.ran)
    np.testing.assert_array_equal(service["failure_restarts"], theirs.falls)
    for name in ("restarting_s", "lost_s", "fallen_s"):
        np.testing.assert_allclose(service[name], getattr(theirs, name), rtol=1e-5, atol=1e-2, err_msg=name)


# Hypothesis draws by the source of a test: one that is reworded has other cases.


@pytest.mark.slow
@pytest.mark.parametrize("shape", strategies.SHAPES)
@settings(max_examples=20)
@given(data=st.data())
def test_some_policies_orders_and_options(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(SPECS)
    case = dataclasses.replace(case, history=data.draw(st.booleans()))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(50)
@given(data=st.data())
def test_every_policy_order_and_option(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(SPECS)
    case = dataclasses.replace(case, history=data.draw(st.booleans()))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


def planned(shape: str, data) -> strategies.Case:
    """A case in which most jobs have a plan; in half of them racks are NVLink domains."""
    case, rng = (
        data.draw(strategies.cases(shape, fractions=0.0)),
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))),
    )
    case = with_plans(rng, case)
    return with_domains(rng, case) if data.draw(st.booleans()) else case


@pytest.mark.slow
@pytest.mark.parametrize("shape", strategies.SHAPES)
@settings(max_examples=10)
@given(data=st.data())
def test_some_plans(shape, data):
    same(planned(shape, data), data.draw(SPECS), "analytic", 10_000)


RACKS = st.builds(
    spec_of,
    st.sampled_from([policy for policy in POLICIES if policy not in (GREEDY_WAIT, MATCH)]),
    st.sampled_from(("fifo", "sjf", "area", "tenants")),
    st.just("racks"),
    st.sampled_from(("", "backfill", "backfill+reserve", "consolidate+backfill")),
    FORWARDS,
)


@pytest.mark.slow
@pytest.mark.parametrize("shape", strategies.SHAPES)
@settings(max_examples=30)
@given(data=st.data())
def test_some_in_racks(shape, data):
    case = planned(shape, data)
    case = asking_case(case, data.draw(st.integers(0, 99)), 0.5) if data.draw(st.booleans()) else case
    same(case, data.draw(RACKS), "analytic", 10_000)


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(60)
@given(data=st.data())
def test_in_racks(shape, data):
    fractions = data.draw(st.sampled_from((0.0, 0.3))) if strategies.SHAPES[shape].shared else 0.0
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    same(with_domains(rng, data.draw(strategies.cases(shape, fractions=fractions))), data.draw(RACKS), "analytic", 1)


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(60)
@given(data=st.data())
def test_plans(shape, data):
    same(planned(shape, data), data.draw(SPECS | SEEKING), "analytic", data.draw(st.sampled_from((1, 10_000))))


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(300)
@given(data=st.data())
def test_plans_in_many_cases(shape, data):
    """As machine code only: Python takes most of the time of the others."""
    case, policy = planned(shape, data), strategies.policy_of(data.draw(SPECS | SEEKING))
    case = dataclasses.replace(case, law="analytic", history=case.history or policy.requires == HISTORY)
    as_the_oracle(case, policy, played(case, policy, 10_000, in_python=False))


@pytest.mark.long
@cases(20)
@given(case=strategies.cases("two", fractions=0.0), spec=SPECS)
def test_without_interference(case, spec):
    same(case, spec, "none", 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("shape", strategies.SHAPES)
@settings(max_examples=30)
@given(data=st.data())
def test_some_runs_with_stops(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(PREEMPTIVE)
    case = dataclasses.replace(case, preemption=data.draw(COSTS), history=data.draw(st.booleans()))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.slow
@pytest.mark.parametrize("shape", ("two", "three"))
@settings(max_examples=20)
@given(data=st.data())
def test_some_that_seek(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(SEEKING)
    case = dataclasses.replace(case, history=data.draw(st.booleans()))
    slots = data.draw(st.sampled_from((3, case.shape.queue_slots)))
    case = dataclasses.replace(case, shape=dataclasses.replace(case.shape, queue_slots=slots))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.long
@pytest.mark.parametrize("shape", ("two", "three"))
@cases(60)
@given(data=st.data())
def test_jobs_that_seek(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(SEEKING)
    case = dataclasses.replace(case, history=data.draw(st.booleans()))
    slots = data.draw(st.sampled_from((3, case.shape.queue_slots)))
    case = dataclasses.replace(case, shape=dataclasses.replace(case.shape, queue_slots=slots))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


def failing(case: strategies.Case, data: st.DataObject) -> strategies.Case:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rates = data.draw(st.sampled_from((300.0, 1500.0, 5000.0))), data.draw(st.sampled_from((20.0, 300.0, 2000.0)))
    case = dataclasses.replace(case, preemption=data.draw(COSTS))
    return dataclasses.replace(case, outages=random_outages(rng, case, *rates))


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(20)
@given(data=st.data())
def test_runs_with_failures(shape, data):
    case = failing(data.draw(strategies.cases(shape, fractions=0.0)), data)
    spec = data.draw(SPECS | PREEMPTIVE | SEEKING)
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.long
@pytest.mark.parametrize("shape", strategies.SHAPES)
@cases(60)
@given(data=st.data())
def test_runs_with_stops(shape, data):
    case, spec = data.draw(strategies.cases(shape, fractions=0.0)), data.draw(PREEMPTIVE)
    case = dataclasses.replace(case, preemption=data.draw(COSTS), history=data.draw(st.booleans()))
    same(case, spec, "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.parametrize(("seed", "order"), [(3, "las"), (11, "gittins"), (36, "srtf"), (37, "las"), (45, "srtf")])
def test_checkpoints_come_early_on_fast_gpus_and_after_a_stop_just_before_one(seed, order):
    """Before: a job that may be stopped from its next checkpoint on was looked at boundaries later."""
    case = strategies.random_case(seed, "two", count=25, homogeneous=False, interval_s=7.3, fractions=0.0)
    case = dataclasses.replace(case, preemption=preemption.Preemption(13.7, 41.3, 0.0))
    same(case, f"pack:{order}+backfill+preempt", "analytic", 10_000)


@pytest.mark.parametrize("seed", [47, 51])
def test_what_is_submitted_while_a_queue_is_full_is_news(seed):
    """Before: while a job found no free slot, boundaries were passed over for which others were submitted."""
    case = strategies.random_case(seed, "three", interval_s=7.3, fractions=0.0)
    case = dataclasses.replace(case, shape=dataclasses.replace(case.shape, queue_slots=3))
    same(case, "pack:sjf+backfill+spread+seek", "analytic", 10_000)


def with_stops(case: strategies.Case, data: st.DataObject) -> strategies.Case:
    """The same case where jobs may be stopped, and servers may fail."""
    case = dataclasses.replace(case, history=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        return failing(case, data)
    return dataclasses.replace(case, preemption=data.draw(COSTS))


@pytest.mark.slow
@pytest.mark.parametrize("shape", ("one", "two"))
@settings(max_examples=20)
@given(data=st.data())
def test_some_jobs_that_share_gpus(shape, data):
    case = data.draw(strategies.cases(shape, fractions=data.draw(st.sampled_from((0.5, 0.9)))))
    case = with_stops(case, data)
    same(case, data.draw(SPECS | PREEMPTIVE | MATCHING), "analytic", data.draw(st.sampled_from((1, 7, 10_000))))


@pytest.mark.long
@pytest.mark.parametrize("shape", ("one", "two"))
@cases(60)
@given(data=st.data())
def test_jobs_that_share_gpus(shape, data):
    case = data.draw(strategies.cases(shape, fractions=data.draw(st.sampled_from((0.5, 0.9)))))
    case, specs = with_stops(case, data), SPECS | PREEMPTIVE | MATCHING
    same(case, data.draw(specs | SEEKING if shape == "two" else specs), "analytic", 10_000)


@pytest.mark.long
@pytest.mark.parametrize("shape", ("one", "two"))
@cases(30)
@given(data=st.data())
def test_pairs_of_models_that_share_gpus(shape, data):
    """With a fitted law of sharing, and factors beside it that some policies learn."""
    case = crowded_case(data.draw(st.integers(0, 2**32 - 1)), shape, known=data.draw(st.booleans()))
    observing = st.sampled_from(("greedy-wait:sjf+t2+observe", "match:las+preempt+observe"))
    same(with_stops(case, data), data.draw(MATCHING | observing | PREEMPTIVE), "analytic", 10_000)


@pytest.mark.parametrize("spec", ["pack:las+backfill+preempt+spread", "match:sjf+spread+observe"])
def test_two_cases_of_jobs_that_share_gpus(spec):
    """In Python: what the others do with many cases, as machine code too."""
    policy = strategies.policy_of(spec)
    for case in (strategies.random_case(5, "two", fractions=0.8), crowded_case(5, "two")):
        case = dataclasses.replace(case, preemption=preemption.Preemption(13.7, 41.3, 0.0))
        run = played(case, policy, 10_000, in_python=True)
        shared = run.tables.records["gpu"][: len(case.jobs)]
        assert ((shared >= 0) == ((case.jobs.milli < WHOLE) & (run.home[: len(case.jobs)] >= 0))).all()
        as_the_oracle(case, policy, run)
