"""Hand-written policies as data: they are spelled and parsed back, and only they say what is played."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsched
from jaxsched.env.queues import ORDERS, SWITCHES, Discipline
from jaxsched.env.state import wait_action
from jaxsched.errors import UserError
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.policies.spec import (
    BY_HAND,
    FORWARDS,
    NAMES,
    SEARCH,
    WAITING,
    PolicySpec,
    SeekWeights,
    make_spec,
    parse_spec,
    spell,
)

NUMBERS = st.one_of(st.integers(1, 99_999).map(float), st.floats(1.0, 99_999.0, allow_nan=False))


@st.composite
def specs(draw) -> PolicySpec:
    """Of all that can be put together, with what does not go together drawn anew."""
    rule = draw(st.sampled_from(NAMES))
    given = {name: True for name in draw(st.sets(st.sampled_from(SWITCHES)))}
    some = {"order": st.sampled_from(ORDERS), "forward": st.sampled_from(FORWARDS), "search": st.integers(1, 4096)}
    some |= {"hysteresis": NUMBERS, "quantum": NUMBERS, "seek": st.just(BY_HAND)}
    given |= draw(st.fixed_dictionaries({}, optional=some))
    if rule in WAITING:
        flags = {"lifetimes": st.just(True), "observe": st.just(True), "threshold": NUMBERS, "patience": NUMBERS}
        given |= draw(st.fixed_dictionaries({}, optional=flags))
    if not given.get("preempt"):
        given.pop("hysteresis", None)
    if given.get("order") != "tiresias":
        given.pop("quantum", None)
    try:
        return make_spec(rule, **given)
    except UserError:
        return make_spec(rule)


@given(specs())
def test_a_policy_is_parsed_from_how_it_is_spelled(spec):
    spelled = spell(spec)
    assert spelled is not None and parse_spec(spelled) == spec and parse(spelled).act == spec
    assert spell(parse_spec(spelled)) == spelled, "the shortest spelling is its own"


def test_how_policies_are_spelled():
    for spelled, shortest in {
        "pack:fifo": "pack",
        "greedy-wait:area+backfill+forward+t1+p1": "greedy-wait:p1",
        "greedy-wait:spread+sjf+reserve+lifetime": "greedy-wait",
        "pack:spread+backfill+sjf": "pack:sjf+backfill+spread",
        "search:pack:n64+sjf": "search:pack:sjf",
        "pack:themis+preempt+h1.50": "pack:themis+preempt+h1.5",
        "greedy-wait:las+preempt": "greedy-wait:las+preempt",
    }.items():
        assert spell(parse_spec(spelled)) == shortest
    for of in (
        make_spec(lambda key, view, job: view.free),
        make_spec("pack", order=lambda state, params: state.queue),
        make_spec("pack", window=7),
        make_spec("pack", backfill=True, forward="spread", seek=SeekWeights((1.0, 2.0, 3.0, 4.0))),
    ):
        assert spell(of) is None


def wait_for_ever(key, state, params, weights):
    return wait_action(params.cluster)


def test_what_acts_is_what_is_played():
    """A policy whose function was replaced was shown with what its name had done before."""
    never = dataclasses.replace(parse("pack"), act=wait_for_ever, name="never-places")
    found = jaxsched.compare("leaf-spine-1", "philly-like", ["pack", never], num_jobs=10, seeds=1)
    by_name = {row.name: row.outcomes[0] for row in found.rows}
    assert (by_name["pack"].start_s >= 0).all()
    assert not (by_name["never-places"].start_s >= 0).any()
    assert never.spec is None and not never.is_rule and never.requires == "nothing"


def test_whose_data_were_replaced_plays_by_these():
    other = dataclasses.replace(parse("pack"), name="other", act=parse("load-balance:sjf+backfill").act)
    found = jaxsched.compare("leaf-spine-2", "philly-like", ["load-balance:sjf+backfill", other], num_jobs=40, seeds=1)
    one, two = (row.outcomes[0] for row in found.rows)
    assert (one.finish_s == two.finish_s).all() and (one.start_s == two.start_s).all()


@pytest.mark.parametrize("name", ["pack", "pack:sjf+backfill", "qssf", "quickstart", "search:pack:sjf"])
def test_nobody_is_shown_under_the_name_of_another(name):
    policy = parse(name)
    assert parse(policy) == policy, "itself it is"
    with pytest.raises(UserError, match=re.escape(f"{name}': does something else than the policy of this name")):
        parse(dataclasses.replace(policy, act=wait_for_ever, weights=None))


def test_a_function_of_a_known_name_is_told_apart():
    def pack(key, view, job):
        return view.free * 0

    with pytest.raises(UserError, match="'pack': does something else"):
        parse(pack)
    assert parse(jaxsched.policy(pack, name="mine")).spec.rule is pack


def test_parts_that_do_not_go_together_are_refused():
    for make, words in (
        (lambda: PolicySpec("nix"), "rule: 'nix' should be one of first-fit"),
        (lambda: PolicySpec("pack", forward="far"), "forward: 'far' should be one of stay"),
        (lambda: PolicySpec("greedy-wait", threshold=float("nan")), "threshold: nan should be a number of at least 1"),
        (lambda: PolicySpec("pack", ahead=True), "ahead: is for greedy-wait only"),
        (lambda: make_spec("greedy-wait", ahead=True, patience=2.0), "ahead: is for greedy-wait only, without 'tX'"),
        (lambda: PolicySpec("pack", search=-1), "search: -1 should be"),
        (lambda: parse_spec("search:pack:sjf+n" + "9" * 5000), r"'search:pack:.*\.\.\..*': should have at most 300"),
        (lambda: PolicySpec("match", Discipline(order="fifo")), "it weighs jobs by length"),
        (lambda: make_spec("pack", queue=Discipline(), order="sjf"), "queue: is given, and so is order"),
        (lambda: Policy("mine", parse("pack").act, weights=[1.0]), "weights are for functions"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    assert parse_spec(f"{SEARCH}:pack").search == 64
