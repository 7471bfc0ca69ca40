"""The network on made-up observations of any size: what it may depend on, and what not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import Observation
from jaxsched.networks.graphs import containment, downward, exchange, upward
from jaxsched.networks.hierarchy import Heads, Menu, Pass, SchedulerNetwork

# P, N, K, T, W, C: from one group alone to more servers, sockets, jobs and candidates than any other test has
SIZES = [(1, 1, 1, 1, 1, 3), (3, 3, 2, 2, 2, 6), (4, 5, 3, 4, 4, 24)]
SIZE = SIZES[1]
NET = SchedulerNetwork(width=8)


def make(size=SIZE, seed: int = 0, padded: bool = False) -> tuple[Observation, Menu]:
    """A random observation and menu; `padded` masks the last server, the last socket of others, jobs and candidates."""
    p, n, k, t, w, c = size
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    group_mask, job_mask, mask = np.ones((p, n, k), bool), np.ones((p, w + 1), bool), np.ones((p, w, c), bool)
    if padded:
        group_mask[-1, -1], group_mask[0, 0, -1] = False, False
        job_mask[-1, 0], mask[0, :, -1], mask[-1] = False, False, False
    obs = Observation(
        group=floats(p, n, k, 8),
        group_mask=jnp.asarray(group_mask),
        server=floats(p, n, 4),
        server_rack=jnp.asarray(rng.integers(0, t, (p, n)), jnp.int32),
        rack=floats(p, t, 2),
        scheduler=floats(p, 7).at[:, 0].set(0.5),  # half of the GPUs are free; where all are, waiting is no choice
        job=floats(p, w + 1, 14),
        job_slot=jnp.zeros((p, w + 1), jnp.int32),
        job_mask=jnp.asarray(job_mask),
        forward_mask=~jnp.eye(p, dtype=bool),
    )
    workers = rng.integers(0, 3, (p, w, c, n, k)) * group_mask[:, None, None]
    menu = Menu(
        workers=jnp.asarray(workers.reshape(p, w, c, n * k), jnp.int8),
        features=floats(p, w, c, 12) * mask[..., None],
        log_effective=jnp.abs(floats(p, w, c)) * mask,
        log_stake=floats(p, w, c) * mask,
        brief=jnp.zeros((p, w, c), bool),  # where a job would soon be done, waiting is no choice
        mask=jnp.asarray(mask),
    )
    return obs, menu


@functools.cache
def weights_of(network: SchedulerNetwork):
    """Random weights in the shapes of the smallest cluster, large enough that every part of the network counts."""
    rng = np.random.default_rng(1)

    def random(leaf):
        spread = 1.0 / np.sqrt(leaf.shape[0]) if len(leaf.shape) > 1 else 0.3
        return jnp.asarray(spread * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(random, jax.eval_shape(network.init, jax.random.key(0), *make(SIZES[0])))


@functools.cache
def jit_apply(network: SchedulerNetwork):
    return jax.jit(network.apply)


@functools.cache
def jit_gradient():
    return jax.jit(jax.grad(summed))


def apply(obs: Observation, menu: Menu, network: SchedulerNetwork = NET) -> Heads:
    return jit_apply(network)(weights_of(network), obs, menu)


def assert_same(one: Heads, other: Heads, *names: str, rtol: float = 2e-5) -> None:
    for name in names or ("place", "forward", "act", "value"):
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=2e-5, err_msg=name)


def assert_differ(one: jax.Array, other: jax.Array) -> None:
    assert float(jnp.abs(one - other).max()) > 1e-3


def pad(leaf: jax.Array, axis: int, fill=0) -> jax.Array:
    """`leaf` with one more entry at the end of `axis`."""
    widths = [(0, 0)] * leaf.ndim
    widths[axis] = (0, 1)
    return jnp.pad(leaf, widths, constant_values=fill)


# --------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hierarchy", [True, False])
def test_heads_have_the_shapes_of_the_cluster_and_weights_do_not(size, hierarchy):
    network = SchedulerNetwork(width=8, hierarchy=hierarchy)
    p, _, _, _, w, c = size
    weights = jax.eval_shape(network.init, jax.random.key(0), *make(size))
    small = jax.eval_shape(network.init, jax.random.key(0), *make(SIZES[0]))
    assert weights == small
    heads = jax.eval_shape(network.apply, weights, *make(size))
    shapes = {name: heads[name].shape for name in ("place", "forward", "act", "value")}
    assert shapes == {"place": (p, w, c), "forward": (p, p), "act": (p,), "value": (p,)}
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((weights, heads)))


def test_weights_of_a_small_cluster_read_a_large_one():
    for seed in range(3):
        heads = apply(*make(SIZES[2], seed, padded=True))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(heads))
        assert_differ(heads.value[0], heads.value[1])


# -------------------------------------------------------------------------------------------------------------- padding


def pad_groups(obs: Observation, menu: Menu) -> tuple[Observation, Menu]:
    """One more socket of 0 GPUs in every server."""
    p, n, k = obs.group_mask.shape
    by_group = menu.workers.reshape(*menu.workers.shape[:3], n, k)
    obs = obs.replace(group=pad(obs.group, 2, 7.0), group_mask=pad(obs.group_mask, 2, False))
    return obs, menu.replace(workers=pad(by_group, 4).reshape(*menu.workers.shape[:3], -1))


def pad_servers(obs: Observation, menu: Menu) -> tuple[Observation, Menu]:
    """One more server without GPUs in every partition, in rack 0 as the builders put it."""
    k = obs.group_mask.shape[2]
    obs = obs.replace(
        group=pad(obs.group, 1, 7.0),
        group_mask=pad(obs.group_mask, 1, False),
        server=pad(obs.server, 1, 7.0),
        server_rack=pad(obs.server_rack, 1, 0),
    )
    return obs, menu.replace(workers=jnp.pad(menu.workers, [(0, 0)] * 3 + [(0, k)]))


def pad_racks(obs: Observation, menu: Menu) -> tuple[Observation, Menu]:
    """One more rack without servers in every partition."""
    return obs.replace(rack=pad(obs.rack, 1, 7.0)), menu


@pytest.mark.parametrize("padding", [pad_groups, pad_servers, pad_racks])
def test_padding_of_the_cluster_changes_nothing(padding):
    obs, menu = make()
    # every rack holds a server, so that an added one is the only padding
    obs = obs.replace(server_rack=jnp.broadcast_to(jnp.array([0, 1, 0], jnp.int32), obs.server_rack.shape))
    assert_same(apply(obs, menu), apply(*padding(obs, menu)))


def test_features_of_padding_are_never_read():
    obs, menu = make(padded=True)
    group = jnp.where(obs.group_mask[..., None], obs.group, 1e3)
    server = jnp.where(obs.group_mask.any(-1, keepdims=True), obs.server, -1e3)
    assert_same(apply(obs, menu), apply(obs.replace(group=group, server=server), menu))


def test_masked_candidates_and_jobs_change_nothing():
    obs, menu = make(padded=True)
    absent = ~menu.mask
    other = menu.replace(
        workers=jnp.where(absent[..., None], jnp.int8(3), menu.workers),
        features=jnp.where(absent[..., None], 1e3, menu.features),
    )
    job = jnp.where(obs.job_mask[..., None], obs.job, 1e3)
    # jobs that are absent have no candidates either, as in a real menu
    mask = menu.mask & obs.job_mask[:, :-1, None]
    before, after = apply(obs, menu.replace(mask=mask)), apply(obs.replace(job=job), other.replace(mask=mask))
    assert_same(before, after, "forward", "act", "value")
    np.testing.assert_allclose(
        jnp.where(mask, before.place, 0.0), jnp.where(mask, after.place, 0.0), rtol=2e-5, atol=2e-5
    )


# ----------------------------------------------------------------------------------------------------------- schedulers


def test_schedulers_are_exchangeable():
    obs, menu = make(padded=True)
    order = jnp.array([2, 0, 1])
    moved = jax.tree.map(lambda leaf: leaf[order], obs)
    moved = moved.replace(forward_mask=obs.forward_mask[order][:, order])
    heads, after = apply(obs, menu), apply(moved, jax.tree.map(lambda leaf: leaf[order], menu))
    expected = jax.tree.map(lambda leaf: leaf[order], heads)
    assert_same(after, expected.replace(forward=heads.forward[order][:, order]))


def disturb(obs: Observation, menu: Menu, scheduler: int) -> tuple[Observation, Menu]:
    """Another load on every group, server, rack, job and candidate of one scheduler."""
    changed = obs.replace(**{n: obs[n].at[scheduler].add(1.0) for n in ("group", "server", "rack", "scheduler", "job")})
    return changed, menu.replace(features=menu.features.at[scheduler].add(1.0))


@pytest.mark.parametrize("hierarchy", [True, False])
def test_without_exchange_a_scheduler_sees_only_its_own_partition(hierarchy):
    network = SchedulerNetwork(width=8, exchange_rounds=0, hierarchy=hierarchy)
    obs, menu = make()
    before, after = apply(obs, menu, network), apply(*disturb(obs, menu, 1), network)
    for name in ("place", "act", "value"):
        np.testing.assert_array_equal(before[name][0], after[name][0])
        np.testing.assert_array_equal(before[name][2], after[name][2])
        assert_differ(before[name][1], after[name][1])
    # the receiver of a forward is looked at by every sender, with or without exchange
    np.testing.assert_array_equal(before.forward[0, 2], after.forward[0, 2])
    assert_differ(before.forward[0, 1], after.forward[0, 1])


@pytest.mark.parametrize("rounds", [1, 2])
def test_with_exchange_every_scheduler_hears_of_the_others(rounds):
    network = SchedulerNetwork(width=8, exchange_rounds=rounds)
    obs, menu = make()
    before, after = apply(obs, menu, network), apply(*disturb(obs, menu, 1), network)
    for name in ("place", "act", "value"):
        for listener in (0, 2):
            assert float(jnp.abs(before[name][listener] - after[name][listener]).max()) > 1e-5


def test_exchange_carries_pooled_observations_only():
    """Jobs and candidates of others are not exchanged, their clusters are."""
    obs, menu = make()
    queue = obs.replace(job=obs.job.at[1].add(1.0)), menu.replace(features=menu.features.at[1].add(1.0))
    before, after = apply(obs, menu), apply(*queue)
    for name in ("place", "act", "value", "forward"):
        np.testing.assert_array_equal(before[name][0], after[name][0])
    after = apply(obs.replace(group=obs.group.at[1].add(1.0)), menu)
    assert float(jnp.abs(before.value[0] - after.value[0])) > 1e-5


def test_without_hierarchy_groups_do_not_reach_their_scheduler():
    obs, menu = make()
    other = obs.replace(group=obs.group.at[0].add(1.0))
    nothing = menu.replace(workers=jnp.zeros_like(menu.workers))
    flat = SchedulerNetwork(width=8, hierarchy=False)
    assert_same(apply(obs, nothing, flat), apply(other, nothing, flat))
    assert_differ(apply(obs, nothing).value[0], apply(other, nothing).value[0])


def test_placements_see_the_groups_they_touch():
    obs, menu = make()
    flat = SchedulerNetwork(width=8, hierarchy=False)
    workers = jnp.zeros_like(menu.workers).at[:, :, 0, 0].set(1).at[:, :, 1:, -1].set(1)
    menu = menu.replace(workers=workers)
    before, after = apply(obs, menu, flat), apply(obs.replace(group=obs.group.at[0, 0, 0].add(1.0)), menu, flat)
    assert_differ(before.place[0, :, 0], after.place[0, :, 0])
    np.testing.assert_allclose(before.place[0, :, 1:], after.place[0, :, 1:], atol=1e-6)


# ----------------------------------------------------------------------------------------------------------------- flat


@functools.cache
def flat_weights(network: SchedulerNetwork):
    """Those of `weights_of`, in the shapes of `SIZE`."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(network.init, jax.random.key(0), *make())
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 3, leaf.dtype), shapes)


def test_the_flat_network_differs_in_the_encoder_only_whose_shapes_are_those_of_the_cluster():
    graph, flat = (jax.eval_shape(SchedulerNetwork(width=8, kind=kind).init, jax.random.key(0), *make())["params"]
                   for kind in ("graph", "flat"))  # fmt: skip
    assert {name for name in graph if name != "encoder"} == {name for name in flat if name != "encoder"}
    assert all(graph[name] == flat[name] for name in graph if name != "encoder")
    other = jax.eval_shape(SchedulerNetwork(width=8, kind="flat").init, jax.random.key(0), *make(SIZES[2]))
    assert other["params"]["encoder"] != flat["encoder"]
    heads = jit_apply(SchedulerNetwork(width=8, kind="flat"))(
        flat_weights(SchedulerNetwork(width=8, kind="flat")), *make()
    )
    assert heads.place.shape == (3, SIZE[4], SIZE[5]) and heads.value.shape == (3,)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_flat_scheduler_sees_its_own_arrays_and_with_exchange_the_pooled_views_of_others(rounds):
    network = SchedulerNetwork(width=8, kind="flat", exchange_rounds=rounds)
    obs, menu = make()
    before = jit_apply(network)(flat_weights(network), obs, menu)
    for name in ("group", "server", "rack", "scheduler", "job"):
        after = jit_apply(network)(flat_weights(network), obs.replace(**{name: obs[name].at[1].add(1.0)}), menu)
        assert float(before.value[1]) != float(after.value[1])
        heard = bool((before.value[0] != after.value[0]) or (before.value[2] != after.value[2]))
        assert heard == (rounds == 1 and name == "scheduler"), name


# ---------------------------------------------------------------------------------------------------------------- prior


def test_prior_prefers_low_slowdown_early_jobs_and_acting_on_good_offers():
    obs, menu = make()
    weights = jax.jit(NET.init)(jax.random.key(0), obs, menu)
    flat = menu.replace(
        log_effective=jnp.full_like(menu.log_effective, 0.1), log_stake=jnp.full_like(menu.log_stake, -1.0)
    )
    for lower in ("log_effective", "log_stake"):
        dearer = flat.replace(**{lower: jnp.full_like(menu.log_stake, 2.0)})
        best = dearer.replace(**{lower: dearer[lower].at[:, 1, 2].set(-2.0)})
        place = np.asarray(jit_apply(NET)(weights, obs, best).place).reshape(SIZE[0], -1)
        assert (place.argmax(-1) == 1 * SIZE[5] + 2).all()
    heads = jit_apply(NET)(weights, obs, flat)
    assert (heads.place[:, 0].min(-1) > heads.place[:, 1].max(-1)).all()
    dear = jit_apply(NET)(weights, obs, flat.replace(log_stake=jnp.full_like(menu.log_stake, 1.0)))
    assert (heads.act > 0).all() and (dear.act < 0).all()
    # nothing to place: act, so that a forward can happen
    assert (jit_apply(NET)(weights, obs, menu.replace(mask=jnp.zeros_like(menu.mask))).act > 0).all()


def test_a_scheduler_that_gains_nothing_by_waiting_always_acts():
    """An idle partition, or an offered job that would be done before anything that runs."""
    obs, menu = make()
    dear = menu.replace(log_stake=jnp.full_like(menu.log_stake, 9.0))
    idle = obs.replace(scheduler=obs.scheduler.at[1, 0].set(1.0))
    assert (jax.nn.sigmoid(apply(idle, dear).act) == 1).tolist() == [False, True, False]
    brief = dear.replace(brief=dear.brief.at[2, 1, 0].set(True))
    assert (jax.nn.sigmoid(apply(obs, brief).act) == 1).tolist() == [False, False, True]
    not_offered = brief.replace(mask=brief.mask.at[2, 1, 0].set(False))
    assert (jax.nn.sigmoid(apply(obs, not_offered).act) < 1).all()


def test_without_waiting_the_network_always_acts():
    obs, menu = make(padded=True)
    eager = SchedulerNetwork(width=8, may_wait=False)
    weights = weights_of(NET)
    shapes = jax.eval_shape(eager.init, jax.random.key(0), obs, menu)
    assert jax.tree.structure(shapes) == jax.tree.structure(weights)  # a setting, not another network
    after = jit_apply(eager)(weights, obs, menu)
    assert (jax.nn.sigmoid(after.act) == 1).all()
    assert_same(apply(obs, menu), after, "place", "forward", "value")


def test_a_prior_of_zero_is_no_prior():
    obs, menu = make(padded=True)
    weights = weights_of(NET)
    bare = SchedulerNetwork(width=8, prior=False)
    assert "prior" in weights["params"] and "prior" not in weights_of(bare)["params"]
    silent = {"params": weights["params"] | {"prior": jnp.zeros(7)}}
    without = {"params": {name: leaf for name, leaf in weights["params"].items() if name != "prior"}}
    assert_same(jit_apply(NET)(silent, obs, menu), jit_apply(bare)(without, obs, menu))


# ------------------------------------------------------------------------------------------------------ transformations


def summed(weights, obs: Observation, menu: Menu) -> jax.Array:
    heads = NET.apply(weights, obs, menu)
    place = jnp.where(menu.mask, jnp.tanh(heads.place / 20), 0.0).sum()
    return place + sum(jnp.tanh(leaf / 20).sum() for leaf in (heads.forward, heads.act, heads.value))


def batch(count: int = 4) -> tuple[Observation, Menu]:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[make(SIZE, seed, seed % 2 == 1) for seed in range(count)])


def test_vmap_equals_a_loop_in_heads_and_gradients_and_does_not_retrace():
    traces = []

    @jax.jit
    def together(weights, obs, menu):
        traces.append(1)

        def one(obs, menu):
            return NET.apply(weights, obs, menu), jax.grad(summed)(weights, obs, menu)

        return jax.vmap(one)(obs, menu)

    weights, many = weights_of(NET), batch()
    together(jax.tree.map(lambda leaf: 2 * leaf, weights), *many)
    heads, gradients = together(weights, *many)
    assert len(traces) == 1
    for seed in range(4):
        one = make(SIZE, seed, seed % 2 == 1)
        assert_same(jax.tree.map(lambda leaf, i=seed: leaf[i], heads), apply(*one))
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(jit_gradient()(weights, *one)), strict=True):
            np.testing.assert_allclose(a[seed], b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_gradients_are_finite_even_where_nothing_is_legal(scale):
    obs, menu = make(padded=True)
    obs = obs.replace(**{n: scale * obs[n] for n in ("group", "server", "rack", "scheduler", "job")})
    nothing = menu.replace(
        mask=jnp.zeros_like(menu.mask), features=jnp.zeros_like(menu.features), workers=jnp.zeros_like(menu.workers)
    )
    for offered in (menu.replace(features=scale * menu.features), nothing):
        leaves = jax.tree.leaves(jit_gradient()(weights_of(NET), obs, offered))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)


def test_every_weight_matters():
    """No parameter is cut off from the outputs."""
    total = jax.tree.map(jnp.zeros_like, weights_of(NET))
    for seed in range(4):
        total = jax.tree.map(lambda a, b: a + jnp.abs(b), total, jit_gradient()(weights_of(NET), *make(SIZE, seed)))
    idle = [jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(total) if not leaf.any()]
    assert not idle


# --------------------------------------------------------------------------------------------------------------- graphs


def test_containment_names_every_parent():
    obs, _ = make(SIZES[2], padded=True)
    p, n, k = obs.group_mask.shape
    t = obs.rack.shape[1]
    groups, servers, racks = containment(obs)
    assert (groups.parents, servers.parents, racks.parents) == (p * n, p * t, p)
    holds = np.zeros((p, t), bool)
    for i in range(p):
        for j in range(n):
            server, rack = i * n + j, int(obs.server_rack[i, j])
            real = bool(obs.group_mask[i, j].any())
            holds[i, rack] |= real
            assert int(servers.parent[server]) == i * t + rack and float(servers.real[server]) == real
            for g in range(k):
                group = server * k + g
                assert int(groups.parent[group]) == server
                assert float(groups.real[group]) == float(obs.group_mask[i, j, g])
    np.testing.assert_array_equal(racks.parent, np.repeat(np.arange(p), t))
    np.testing.assert_array_equal(racks.real, holds.reshape(-1))


def test_a_pass_is_the_sum_of_messages_over_the_root_of_their_number():
    obs, _ = make(SIZES[2])
    _, level, _ = containment(obs)
    rng = np.random.default_rng(3)
    children = rng.normal(size=(level.parent.shape[0], 8)).astype(np.float32)
    parents = rng.normal(size=(level.parents, 8)).astype(np.float32)
    up, down = upward(level, jnp.asarray(children), parents), downward(level, jnp.asarray(children), parents)
    module = Pass(8)
    weights = module.init(jax.random.key(0), up)
    dense = weights["params"]

    def reference(child_hears: bool) -> np.ndarray:
        def message(x):
            return np.maximum(x @ np.asarray(dense["message"]["kernel"]) + np.asarray(dense["message"]["bias"]), 0)

        nodes = children if child_hears else parents
        heard = np.zeros_like(nodes)
        for i in range(len(nodes)):
            if child_hears:
                senders = parents[[int(level.parent[i])]]
            else:
                senders = children[np.asarray(level.parent) == i]
            if len(senders):
                heard[i] = message(senders).sum(0) / np.sqrt(len(senders))
        own = nodes @ np.asarray(dense["own"]["kernel"]) + np.asarray(dense["own"]["bias"])
        return nodes + np.maximum(own + heard @ np.asarray(dense["heard"]["kernel"]), 0)

    count = len(children)
    np.testing.assert_allclose(module.apply(weights, up)[count:], reference(False), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(module.apply(weights, down)[:count], reference(True), rtol=1e-4, atol=1e-5)


def test_the_graph_of_schedulers_is_complete_and_without_loops():
    graph = exchange(jnp.zeros((4, 8)), jnp.ones(4, bool))
    edges = {(int(s), int(r)) for s, r, w in zip(graph.senders, graph.receivers, graph.edges[:, 0]) if w > 0}
    assert edges == {(i, j) for i in range(4) for j in range(4) if i != j}


def test_a_scheduler_that_only_pads_is_not_heard():
    graph = exchange(jnp.zeros((4, 8)), jnp.array([True, True, False, True]))
    assert {int(s) for s, w in zip(graph.senders, graph.edges[:, 0]) if w > 0} == {0, 1, 3}
