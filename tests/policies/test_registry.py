"""The grammar of policy names: what is understood, what is refused, and in which words."""

import dataclasses
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched import shipped
from jaxsched.env.queues import ORDERS, Discipline
from jaxsched.env.state import PLACE, WAIT
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.policies.heuristics import make_heuristic
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse, policy
from jaxsched.policies.rules import RULES, pack
from jaxsched.policies.spec import NAMES
from tests.support import strategies


def test_names():
    assert set(NAMES) == set(RULES) | {"greedy-wait", "match"}
    assert set(RULES) >= {
        "first-fit",
        "pack",
        "load-balance",
        "tetris",
        "least-interference",
        "contention-aware",
        "random",
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", ["", ":fifo", ":tenants+backfill", ":area+backfill+forward", ":"])
def test_understood(name, options):
    if name == "match" and options in (":fifo", ":tenants+backfill"):
        options = ":sjf+backfill"  # it needs an order by length
    policy = parse(name + options)
    assert isinstance(policy, Policy) and policy.name == name + options and callable(policy)


@pytest.mark.parametrize("order", ORDERS)
def test_orders(order):
    assert callable(parse(f"pack:{order}"))


def test_greedy_wait_has_more_options():
    for spec in ("greedy-wait:t1.5", "greedy-wait:p0", "greedy-wait:sjf+t2+p0.5+stay", "greedy-wait:lifetime"):
        assert parse(spec).name == spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("pakc", ("unknown policy 'pakc'", "pack", "greedy-wait")),
        ("", ("unknown policy ''", "pack")),
        ("Pack", ("unknown policy 'Pack'",)),
        ("pack:lifo", ("unknown option 'lifo'", "fifo", "backfill")),
        ("pack:t1.5", ("unknown option 't1.5'",)),
        ("pack:sjf+reserve", ("'reserve' needs", "'backfill'")),
        ("random:backfill+reserve", ("'reserve' needs a queue order",)),
        ("pack:lifetime", ("unknown option 'lifetime'",)),
        ("pack:backfil", ("unknown option 'backfil'", "backfill")),
        ("pack:area, backfill", ("unknown option 'area, backfill'",)),
        ("greedy-wait:t", ("'t'", "tX", "at least 1")),
        ("greedy-wait:t0.5", ("'t0.5'", "tX", "at least 1")),
        ("greedy-wait:tnan", ("'tnan'", "tX")),
        ("greedy-wait:tinf", ("'tinf'", "tX")),
        ("greedy-wait:p-1", ("'p-1'", "pX", "at least 0")),
        ("match:fifo", ("'match:fifo'", "sjf, area")),
        ("match:las", ("'match:las'", "sjf, area")),
        ("match:sjf+preempt", ("preempt", "las")),
        ("greedy-wait:las+preempt+t2", ("'tX' and 'pX'", "preempt")),
        ("match:las+preempt+lifetime", ("'lifetime'", "preempt")),
        ("match:t0.5", ("'t0.5'", "tX", "at least 1")),
        ("search:match", ("searches under one of",)),
        ("greedy-wait:x2", ("unknown option 'x2'", "tX", "pX")),
        ("pack:sjf+area", ("'area' after 'sjf'", "give one")),
        ("pack:backfill+spread+stay", ("'stay' after 'spread'",)),
        ("greedy-wait:t2+t3", ("'t3' after 't2'",)),
        ("pack:las+preempt+h1+h2", ("'h2' after 'h1'",)),
        ("pack:backfill+backfill", ("'backfill' after 'backfill'",)),
        ("pack:srtf+backfill+h0.5", ("'h0.5'", "'preempt'")),
        ("pack:las+backfill+q5", ("'q5'", "'tiresias'")),
        ("random:las", ("the order 'las' is for the event loop, which plays first-fit, pack,", "leave it out")),
        ("random:mlfq+preempt", ("'preempt' is for the event loop",)),
        ("examples/policy.py", ("which rule of the file", "examples/policy.py:NAME")),
    ],
)
def test_refused(spec, words):
    with pytest.raises(UserError) as refusal:
        parse(spec)
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_backfilling_may_be_left_out_of_rules_that_have_it():
    """Before: they had it all the same."""
    assert policy("random").spec.queue.backfill and not policy("random", backfill=False).spec.queue.backfill
    with pytest.raises(UserError, match="reserve"):
        policy("greedy-wait", backfill=False)


def test_backfilling_is_independent_of_the_order():
    case = strategies.random_case(11, "two", interval_s=60.0)
    rows = compare(case.cluster, case.jobs, ["pack:area", "pack:area+backfill"]).rows
    first, second = (row.outcomes[0].start_s for row in rows)
    assert (first != second).any()


def test_a_run_is_told_from_its_policy(tmp_path):
    shutil.copytree(shipped.find(shipped.CHECKPOINTS, "default"), tmp_path / "run" / "policy")
    with pytest.raises(UserError, match=r"is the folder of a run, its policy is .*run/policy"):
        parse(tmp_path / "run")
    assert not parse(tmp_path / "run" / "policy").is_rule


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda free: free * 0.5, "returned float32 of shape (2,), should be the workers of each GPU group, int32"),
        (lambda free: free[:1], "returned int32 of shape (1,)"),
        (lambda free: None, "returned NoneType"),
    ],
)
def test_a_rule_that_returns_something_else_is_told(returned, said):
    def mine(key, view, job):
        return returned(view.free)

    with pytest.raises(UserError, match="rule mine: " + re.escape(said)):
        compare("leaf-spine-1", "philly-like", [mine], num_jobs=2, seeds=1)


@pytest.mark.slow
def test_an_order_and_a_rule_may_be_functions():
    """They decide as those of the same meaning that have names."""
    case = strategies.random_case(5, "two", interval_s=1000.0)
    case = dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(len(case.jobs))))
    state = strategies.jit_start(case.shape.config())(case.params, case.table)

    def shortest(state, params):
        return state.jobs.estimate_s[jnp.maximum(state.queue, 0)]

    def by_functions(key, state, params):
        return make_heuristic(pack, Discipline(order=shortest, backfill=True))(key, state, params, None)

    key = jax.random.key(0)
    named = jax.jit(parse("pack:sjf+backfill"))(key, state, case.params)
    for one, other in zip(jax.tree.leaves(named), jax.tree.leaves(jax.jit(by_functions)(key, state, case.params))):
        np.testing.assert_array_equal(one, other)
    assert (np.asarray(named.kind) == PLACE).any()
    assert parse(pack) == parse("pack")


@pytest.mark.slower
def test_policies_jit_and_vmap():
    """One policy, a batch of environments, one program; a scheduler with an empty queue waits."""
    case = strategies.random_case(5, "two", interval_s=1000.0)
    config, params = case.shape.config(), case.params
    policy = parse("tetris:backfill")
    start = strategies.jit_start(config)
    full, empty = start(params, case.table), start(params, case.table.replace(arrival=case.table.arrival + 5))
    action = jax.jit(policy)(jax.random.key(0), full, params)
    full = strategies.jit_transition(config)(params, full, action)[0]
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), full, empty)

    def act(key, state):
        return policy(key, state, params)

    together = jax.jit(jax.vmap(act))(jax.random.split(jax.random.key(0)), both)
    alone = jax.jit(act)(jax.random.key(0), full)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(a[0], b)
    assert (np.asarray(together.kind[1]) == WAIT).all()
    assert set(np.asarray(together.kind[0])) <= {WAIT, PLACE}
