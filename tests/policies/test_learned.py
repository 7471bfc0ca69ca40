"""The learned policy's actions against the environment, over whole workloads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsched.cluster.build import Shape, build, pad, shape_of
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics import batching
from jaxsched.env.observation import Choice
from jaxsched.env.stages import transition
from jaxsched.env.state import FINISHED, FORWARD, PLACE, WAIT, make_params
from jaxsched.networks.hierarchy import Heads
from jaxsched.policies import menu as menu_room
from jaxsched.policies.learned import learned_policy, option_logits
from jaxsched.policies.menu import to_action
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import make_job_list, pad_table, to_table
from tests.support import strategies
from tests.support.learned_runs import (
    CONFIG,
    MOST_ROUNDS,
    NET,
    QUEUE,
    SHAPE,
    a_case,
    busy_case,
    jit_offered,
    jit_run,
    mid_run_state,
    noisy,
    offered,
    run,
    untrained,
)

pytestmark = pytest.mark.slow


def test_weights_of_the_same_network_act_by_the_same_function():
    one, other = (learned_policy(name, NET, weights, QUEUE) for name, weights in (("one", 1.0), ("other", 2.0)))
    assert one.act is other.act and (one.weights, other.weights) == (1.0, 2.0)
    assert learned_policy("none forwarded", NET, 1.0, QUEUE, max_forwards=0).act is not one.act
    flat = learned_policy("of one cluster", NET, 1.0, QUEUE, sizes=(1, 1, 1, 1))
    assert flat.act is not one.act, "its message has its name"


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2, 4, 6])
def test_an_untrained_network_runs_a_workload_to_its_end(seed):
    """Gangs, PS, all-reduce, workers of up to 4 GPUs; servers of up to 3 sockets, all alike."""
    case = a_case(seed, homogeneous=True, tree=seed % 2 == 1)
    state, rounds = run(untrained(), case)
    count = len(case.jobs)
    home = np.asarray(state.jobs.home)[:count]
    assert rounds < MOST_ROUNDS
    assert int(state.illegal) == 0
    assert (np.asarray(state.records.status)[:count][home >= 0] == FINISHED).all()
    assert (np.asarray(state.free) == np.asarray(case.cluster.group_gpus)).all()


@pytest.mark.long
def test_a_job_that_is_slow_everywhere_in_its_partition_still_starts():
    """A T4 is 0.17 A100s, so that the best offer of the last partition has slowdown 5.9; nothing else will come."""
    kinds = [Server(groups=(4, 4), gpu_type=name) for name in ("A100",) * 4 + ("T4",) * 2]
    cluster = strategies.pad_cluster(build(kinds, leaf_spine(6), 3), SHAPE)
    params = make_params(cluster, interval_s=60.0)
    table = pad_table(to_table(make_job_list([0.0] * 3, 100.0, 1, home=[0, 1, 2]), 60.0), SHAPE.jobs)
    state, _ = jit_run()(untrained(), params, strategies.jit_start(CONFIG)(params, table), MOST_ROUNDS)
    assert np.asarray(state.records.status)[:3].tolist() == [FINISHED] * 3


@pytest.mark.long
def test_untrained_it_decides_like_the_rule_that_it_starts_from():
    """In 7 of 8 turns in which one of them acts, among like servers 19 of 20, down to the choice among equals."""
    rule = parse(f"greedy-wait:{QUEUE.order}+spread+p1")
    soft = learned_policy("soft", NET, untrained(), QUEUE)

    @jax.jit
    def turns(params, state):
        def step(state, _):
            one, other = (policy(jax.random.key(0), state, params) for policy in (rule, soft))
            acts, same_kind = one.kind != WAIT, one.kind == other.kind
            same_place = (one.workers == other.workers).all((1, 2))
            same = same_kind & (one.slot == other.slot) & jnp.where(one.kind == PLACE, same_place, True)
            same &= (one.kind != FORWARD) | (one.target == other.target)
            counted = ~state.waited & (acts | ~same_kind)
            return transition(CONFIG, params, state, one)[0], ((counted & same).sum(), counted.sum())

        return jax.tree.map(jnp.sum, lax.scan(step, state, length=200)[1])

    for alike, share in ((True, 0.95), (False, 0.875)):
        agreed = total = 0
        for seed in range(12):
            case = a_case(seed, homogeneous=alike)
            same, counted = turns(case.params, strategies.jit_start(CONFIG)(case.params, case.table))
            agreed, total = agreed + int(same), total + int(counted)
        assert total > 150
        assert agreed >= share * total, f"{agreed} of {total}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_on_a_padded_cluster_the_same_weights_decide_the_same(seed):
    """A partition, servers, groups, racks and links more that only pad: no job starts or finishes otherwise."""
    case = a_case(seed)
    sizes = dataclasses.asdict(shape_of(case.cluster))
    big = pad(case.cluster, Shape(**{axis: size + 2 * (size > 0) for axis, size in sizes.items()}))
    (small, _), (padded, _) = (run(noisy(seed), one) for one in (case, dataclasses.replace(case, cluster=big)))
    assert (np.asarray(small.records.status) == FINISHED).any()
    for name in ("status", "partition", "start", "finish", "forwards"):
        np.testing.assert_array_equal(getattr(padded.records, name), getattr(small.records, name))
    np.testing.assert_allclose(padded.records.finish_offset_s, small.records.finish_offset_s, rtol=1e-4, atol=1e-2)


@pytest.mark.slower
@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_weights_every_action_is_legal(seed):
    """Unlike servers and padding; such weights need not place every job, but must not do what cannot be done."""
    state, _ = run(noisy(seed), a_case(100 + seed))
    assert int(state.illegal) == 0


@pytest.mark.slower
def test_to_action_places_forwards_and_waits():
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    p, k, nk = menu.workers.shape
    columns = np.arange(p)
    for kind in (PLACE, FORWARD, WAIT):
        option = {PLACE: np.argmax(menu.mask, -1), FORWARD: k + (columns + 1) % p}.get(kind, np.zeros(p))
        choice = Choice(act=jnp.full(p, kind != WAIT), option=jnp.asarray(option, jnp.int32))
        action = to_action(state, obs, menu, choice)
        assert (action.kind == kind).all()
        if kind == PLACE:
            taken = np.asarray(menu.workers)[columns, option]
            slot = np.asarray(obs.job_slot)[columns, np.asarray(menu.rank)[columns, option]]
            np.testing.assert_array_equal(np.asarray(action.workers).reshape(p, nk), taken)
            np.testing.assert_array_equal(action.slot, slot)
            ps = np.asarray(state.jobs.ps)[np.maximum(np.asarray(state.queue)[columns, slot], 0)]
            some = np.asarray(menu.mask).any(1)
            np.testing.assert_array_equal(np.asarray(action.ps).sum((1, 2))[some], ps[some])
        if kind == FORWARD:
            np.testing.assert_array_equal(action.target, (columns + 1) % p)
            np.testing.assert_array_equal(action.slot, obs.job_slot[:, -1])


@pytest.mark.slower
def test_every_legal_option_of_the_menu_is_legal_for_the_environment():
    """All placements and forwards on offer, one scheduler at a time."""
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    _, mask = option_logits(
        Heads(
            place=jnp.zeros(menu.mask.shape), forward=jnp.zeros(obs.forward_mask.shape), act=jnp.zeros(3), value=None
        ), obs, menu,
    )  # fmt: skip
    p, options = mask.shape

    @jax.jit
    def attempts(option):
        def one(scheduler, option):
            choice = Choice(act=jnp.arange(p) == scheduler, option=jnp.full(p, option))
            after, _ = transition(CONFIG, case.params, state, to_action(state, obs, menu, choice))
            return after.illegal - state.illegal

        return jax.vmap(lambda scheduler: jax.vmap(lambda o: one(scheduler, o))(option))(jnp.arange(p))

    illegal = np.asarray(attempts(jnp.arange(options)))
    mask = np.asarray(mask)
    assert mask.any(-1).sum() >= 2
    assert (illegal[mask] == 0).all()
    assert (illegal[~mask] == 1).any()  # the counter does count


@pytest.mark.long
def test_the_menu_is_the_same_one_by_one_and_side_by_side(monkeypatch):
    case, state = busy_case(), mid_run_state()
    _, alone = jit_offered()(case.params, state)
    assert alone.mask.any()
    monkeypatch.setattr(batching, "on_cpu", lambda: False)
    _, beside = jax.jit(lambda params, state: offered(params, state))(case.params, state)
    np.testing.assert_array_equal(alone.mask, beside.mask)
    np.testing.assert_array_equal(alone.brief, beside.brief)
    for name in ("features", "log_stake"):
        np.testing.assert_allclose(getattr(alone, name), getattr(beside, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(*(jnp.where(menu.mask[..., None], menu.workers, 0) for menu in (alone, beside)))


@pytest.mark.slower
def test_a_long_menu_loses_the_last_placements_and_keeps_the_order_of_the_others(monkeypatch):
    case, state = busy_case(), mid_run_state()
    _, long = jit_offered()(case.params, state)
    count = int(long.mask.sum(-1).max())
    assert 2 < count < menu_room.OPTIONS  # nothing was left out
    monkeypatch.setattr(menu_room, "OPTIONS", count - 1)
    monkeypatch.setattr(menu_room, "_build", functools.partial(menu_room._build))  # else its trace is remembered
    _, short = jax.jit(lambda params, state: offered(params, state))(case.params, state)
    assert short.mask.shape[-1] == count - 1
    np.testing.assert_array_equal(short.mask.sum(-1), np.minimum(long.mask.sum(-1), count - 1))
    for p in range(short.mask.shape[0]):
        some = np.asarray(short.mask[p])
        assert (np.diff(short.rank[p][some]) >= 0).all()
        for name in ("rank", "workers", "order"):
            np.testing.assert_array_equal(
                getattr(short, name)[p][some], getattr(long, name)[p][: count - 1][some], err_msg=name
            )
