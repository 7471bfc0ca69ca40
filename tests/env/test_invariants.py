"""What holds whatever the policy does: capacities, gangs, accounting, clock, masks."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsched.env.queues import Discipline
from jaxsched.env.state import ALWAYS, FORWARD, PLACE
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import take
from tests.support import strategies
from tests.support.cases import few
from tests.support.invariants import check_state, fastest, host, jit_observe, watcher

# test_oracle runs all the others, and looks at `illegal`, too.
WATCHED = {
    "one": ("random:backfill",),
    "two": ("pack:area+backfill+forward", "tetris:tenants", "greedy-wait:p1"),
    "three": ("random:forward", "load-balance"),
}
RESERVING = "pack:sjf+backfill+spread+reserve"
# Of the programs of `strategies.compiled_with`, so that only what is compared with them is compiled here.
TIMELESS = ("pack", "pack:area+backfill+forward", "contention-aware:sjf+backfill+spread")
WAITING = ("greedy-wait:p1", "load-balance:tenants+backfill", "contention-aware:sjf+backfill+spread+reserve")
TIMED = ("pack:area+backfill+forward", "load-balance:tenants+backfill", "greedy-wait:p1")


@pytest.mark.slower
@pytest.mark.parametrize("shape", few(["two"], ["one", "two", "three"]))
@settings(max_examples=12)
@given(data=st.data())
def test_every_policy_keeps_the_invariants(shape, data):
    case, spec = data.draw(strategies.cases(shape)), data.draw(st.sampled_from(WATCHED[shape]))
    config = case.shape.config()
    state = strategies.watched_run(case, spec, config, watcher(config, case.params))
    assert (np.asarray(state.queue) < 0).all() and (np.asarray(state.running.job) < 0).all()
    np.testing.assert_array_equal(np.asarray(state.free), np.asarray(case.cluster.group_gpus))
    assert not np.asarray(state.shared).any()
    # Run time, and so JCT, is at least the ideal duration on the fastest GPUs.
    done = strategies.outcome(case, state)
    run_s = done.finish_s - done.start_s
    ok = np.isfinite(run_s)
    assert (run_s[ok] >= case.jobs.duration_s[ok] / fastest(case.params) * (1 - 1e-5)).all()
    assert (done.start_s[ok] >= case.jobs.submit_s[ok] * (1 - 1e-9)).all()


@pytest.mark.slow
def test_a_full_queue_holds_arrivals_back_and_says_so():
    case = strategies.random_case(2, "one", count=40, interval_s=60.0)
    crowd = dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(40)))
    state = strategies.run(crowd, "first-fit:tenants", crowd.shape.config())
    assert int(state.peak_queue) == crowd.shape.queue_slots and int(state.backlogged) > 0
    status = strategies.outcome(crowd, state).status
    assert status.count("finished") + status.count("rejected") == 40 and status.count("finished") > 20
    few = dataclasses.replace(case, jobs=take(crowd.jobs, slice(5)))
    state = strategies.run(few, "first-fit:tenants", few.shape.config())
    assert int(state.peak_queue) <= 5 and int(state.backlogged) == 0


@pytest.mark.long
@settings(max_examples=20)
@given(case=strategies.cases("two"), spec=st.sampled_from(TIMED))
def test_early_stop_and_skipping_change_no_time(case, spec):
    fast = case.shape.config()
    slow = dataclasses.replace(fast, early_stop=False, skip_idle=False)
    case = dataclasses.replace(case, interval_s=max(case.interval_s, 60.0))
    one = strategies.outcome(case, strategies.run(case, spec, fast))
    other = strategies.outcome(case, strategies.run(case, spec, slow, TIMED))
    np.testing.assert_array_equal(one.start_s, other.start_s)
    np.testing.assert_allclose(one.finish_s, other.finish_s, rtol=1e-6)
    assert one.workers == other.workers and one.status == other.status


@pytest.mark.long
@pytest.mark.parametrize("specs", [TIMELESS, WAITING], ids=["heuristics", "those that wait"])
@settings(max_examples=20)
@given(data=st.data())
def test_boundaries_at_which_a_policy_need_not_be_asked_change_no_time(specs, data):
    case, spec = data.draw(strategies.cases("two")), data.draw(st.sampled_from(specs))
    case = dataclasses.replace(case, interval_s=max(case.interval_s, 20.0))
    always = case.shape.config()
    (asked,) = {parse(spec).asks_at for spec in specs}
    one = strategies.outcome(case, strategies.run(case, spec, always, specs, asked=asked))
    other = strategies.outcome(case, strategies.run(case, spec, always))
    np.testing.assert_array_equal(one.start_s, other.start_s)
    np.testing.assert_allclose(one.finish_s, other.finish_s, rtol=1e-6)
    assert one.workers == other.workers and one.status == other.status


@pytest.mark.long
def test_an_observation_with_reservations_shows_what_a_rule_would_do():
    """The window's first job is the one that it starts, the last the one that it forwards, to where the mask allows."""
    done, held_back = np.zeros(3, int), 0
    for seed in range(4):
        case = strategies.random_case(seed, "two", interval_s=60.0, error=0.5)
        reserving = Discipline(order="sjf", backfill=True, reserve=True, window=4)
        feasible = dataclasses.replace(reserving, reserve=False)

        def watch(before, action, after, gain, params=case.params, reserving=reserving, feasible=feasible):
            nonlocal held_back
            seen = host(jit_observe(reserving)(params, before))
            for shown, sign in ((feasible, 1), (reserving, -1)):
                held_back += sign * int(jit_observe(shown)(params, before).job_mask[:, :-1].sum())
            act = host(action)
            for p in np.flatnonzero(~np.asarray(before.waited)):
                kind, slot = act.kind[p], act.slot[p]
                done[kind] += 1
                assert (kind == PLACE) == seen.job_mask[p, 0]
                if kind == PLACE:
                    assert slot == seen.job_slot[p, 0]
                else:
                    assert (kind == FORWARD) == seen.forward_mask[p].any()
                if kind == FORWARD:
                    assert slot == seen.job_slot[p, -1] and seen.forward_mask[p, act.target[p]]

        strategies.watched_run(case, RESERVING, case.shape.config(), watch)
    assert (done > 10).all() and held_back > 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("specs", "spec", "share"),
    few([(TIMELESS, "pack", 0.5)], [(TIMELESS, "pack", 0.5), (WAITING, "load-balance:tenants+backfill", 0.8)]),
)
def test_boundaries_at_which_nothing_changes_are_passed_over(specs, spec, share):
    """One long run after the other, decisions every 20 s: most boundaries find jobs queued and nothing to do."""
    case = strategies.random_case(6, "two", homogeneous=True, interval_s=20.0)
    config = case.shape.config(gpu_speeds=1)  # where GPUs differ, to wait for faster ones is a matter of time

    def rounds(specs, asked) -> int:
        run = strategies.jit_run(config, specs, asked)
        return int(run(case.params, case.table, specs.index(spec))[1])

    every, some = rounds(strategies.compiled_with(spec, case.shape), ALWAYS), rounds(specs, parse(spec).asks_at)
    assert some < share * every


@pytest.mark.slow
def test_a_state_that_breaks_the_rules_is_noticed():
    """The checks above are no rubber stamps."""
    case = strategies.random_case(3, "two", interval_s=60.0, fractions=0.4)
    config, params = case.shape.config(), case.params
    states = []
    strategies.watched_run(case, "pack:backfill", config, lambda before, action, after, gain: states.append(after))
    state = next(s for s in states if (s.running.job >= 0).sum() > 2 and (s.queue >= 0).any() and (s.shared > 0).any())
    check_state(config, params, state)
    running = state.running
    p, r = map(int, np.argwhere(np.asarray(running.job) >= 0)[0])
    q, slot = map(int, np.argwhere(np.asarray(state.queue) >= 0)[0])
    for broken in (
        state.replace(free=state.free.at[0, 0, 0].add(1)),
        state.replace(queue=state.queue.at[q, slot].set(-1)),
        state.replace(queue=state.queue.at[q, slot].set(int(running.job[p, r]))),
        state.replace(running=running.replace(job=running.job.at[p, r].set(-1))),
        state.replace(running=running.replace(slowdown=running.slowdown.at[p, r].set(0.9))),
        state.replace(next_job=state.next_job + 1),
        state.replace(shared=jnp.where(state.shared > 0, state.shared - 1, state.shared)),
        state.replace(running=running.replace(gpu=jnp.where(running.gpu >= 0, -1, running.gpu))),
    ):
        with pytest.raises(AssertionError):
            check_state(config, params, broken)
