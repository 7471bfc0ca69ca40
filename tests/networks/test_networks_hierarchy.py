"""The network on made-up observations of any size: what it may depend on, and what not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import Menu, Observation
from jaxsched.networks.hierarchy import SchedulerNetwork
from tests.support.network_cases import SIZE, SIZES, apply, assert_differ, assert_same, make, pad

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
    shapes = {name: getattr(heads, name).shape for name in ("place", "forward", "act", "value")}
    assert shapes == {"place": (p, w * c), "forward": (p, p), "act": (p,), "value": (p,)}
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
    by_group = menu.workers.reshape(*menu.workers.shape[:2], n, k)
    obs = obs.replace(group=pad(obs.group, 2, 7.0), group_mask=pad(obs.group_mask, 2, False))
    return obs, menu.replace(workers=pad(by_group, 3).reshape(*menu.workers.shape[:2], -1))


def pad_servers(obs: Observation, menu: Menu) -> tuple[Observation, Menu]:
    """One more server without GPUs in every partition, in rack 0 as the builders put it."""
    k = obs.group_mask.shape[2]
    obs = obs.replace(
        group=pad(obs.group, 1, 7.0),
        group_mask=pad(obs.group_mask, 1, False),
        server=pad(obs.server, 1, 7.0),
        server_rack=pad(obs.server_rack, 1, 0),
    )
    return obs, menu.replace(workers=jnp.pad(menu.workers, [(0, 0)] * 2 + [(0, k)]))


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
    mask = menu.mask & jnp.take_along_axis(obs.job_mask, menu.rank, 1)
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
    changed = obs.replace(
        **{n: getattr(obs, n).at[scheduler].add(1.0) for n in ("group", "server", "rack", "scheduler", "job")}
    )
    return changed, menu.replace(features=menu.features.at[scheduler].add(1.0))


@pytest.mark.parametrize("hierarchy", [True, False])
def test_without_exchange_a_scheduler_sees_only_its_own_partition(hierarchy):
    network = SchedulerNetwork(width=8, exchange_rounds=0, hierarchy=hierarchy)
    obs, menu = make()
    before, after = apply(obs, menu, network), apply(*disturb(obs, menu, 1), network)
    for name in ("place", "act", "value"):
        np.testing.assert_array_equal(getattr(before, name)[0], getattr(after, name)[0])
        np.testing.assert_array_equal(getattr(before, name)[2], getattr(after, name)[2])
        assert_differ(getattr(before, name)[1], getattr(after, name)[1])
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
            assert float(jnp.abs(getattr(before, name)[listener] - getattr(after, name)[listener]).max()) > 1e-5


def test_exchange_carries_pooled_observations_only():
    """Jobs and candidates of others are not exchanged, their clusters are."""
    obs, menu = make()
    queue = obs.replace(job=obs.job.at[1].add(1.0)), menu.replace(features=menu.features.at[1].add(1.0))
    before, after = apply(obs, menu), apply(*queue)
    for name in ("place", "act", "value", "forward"):
        np.testing.assert_array_equal(getattr(before, name)[0], getattr(after, name)[0])
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
    first = jnp.arange(menu.mask.shape[1]) % SIZE[5] == 0
    workers = jnp.zeros_like(menu.workers).at[:, first, 0].set(1).at[:, ~first, -1].set(1)
    menu = menu.replace(workers=workers)
    before, after = apply(obs, menu, flat), apply(obs.replace(group=obs.group.at[0, 0, 0].add(1.0)), menu, flat)
    assert_differ(before.place[0, first], after.place[0, first])
    np.testing.assert_allclose(before.place[0, ~first], after.place[0, ~first], atol=1e-6)
