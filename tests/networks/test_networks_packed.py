"""A batch of environments, and the appraisal of menus that are not empty alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.networks import hierarchy
from jaxsched.networks.hierarchy import apply_alone, apply_in_blocks, apply_packed
from tests.support.network_cases import NET, SIZE, apply, assert_same, make, weights_of

COUNT = 5


def batch(kept: float):
    """Environments of which some schedulers, drawn by lot, have an empty menu."""
    obs, menu = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[make(SIZE, seed) for seed in range(COUNT)])
    some = jnp.asarray(np.random.default_rng(0).random(menu.mask.shape[:2]) < kept)
    return obs, jax.tree.map(lambda leaf: jnp.where(some.reshape(*some.shape, *[1] * (leaf.ndim - 2)), leaf, 0), menu)


@pytest.fixture(autouse=True, params=[(12, 96), (4, 3)], ids=["whole menus at once", "parts in blocks"])
def sizes(request, monkeypatch):
    """Of what is appraised together, for menus of 12 options."""
    for name, size in zip(("PART", "BLOCK"), request.param, strict=True):
        monkeypatch.setattr(hierarchy, name, size)


def jit_packed(share: float):
    return jax.jit(lambda obs, menu: apply_packed(NET, weights_of(NET), obs, menu, share))


def one_by_one(obs, menu):
    heads = [apply(*jax.tree.map(lambda leaf, i=i: leaf[i], (obs, menu))) for i in range(COUNT)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *heads)


@pytest.mark.slow
def test_environments_side_by_side_do_not_hear_of_each_other():
    obs, menu = batch(1.0)
    assert_same(apply(obs, menu), one_by_one(obs, menu))


@pytest.mark.parametrize("kept", [0.0, 0.4, 1.0])
def test_packed_is_the_same_where_there_is_room(kept):
    obs, menu = batch(kept)
    heads, whole = jit_packed(1.0)(obs, menu)
    assert whole.all()
    expected = one_by_one(obs, menu)
    assert_same(heads, expected, "forward", "act", "value")
    np.testing.assert_allclose(
        jnp.where(menu.mask, heads.place, 0.0), jnp.where(menu.mask, expected.place, 0.0), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("kept", [0.0, 0.4, 1.0])
def test_alone_and_side_by_side_on_an_accelerator_nothing_is_missing(kept, share):
    obs, menu = batch(kept)
    with traced_for(ACCELERATOR):
        of_one = lambda obs, menu: apply_alone(NET, weights_of(NET), obs, menu, share)
        heads = jax.jit(jax.vmap(of_one))(obs, menu)
    expected = one_by_one(obs, menu)
    assert_same(heads, expected, "forward", "act", "value")
    np.testing.assert_allclose(
        jnp.where(menu.mask, heads.place, 0.0), jnp.where(menu.mask, expected.place, 0.0), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("kept", [0.0, 0.4, 1.0])
def test_in_blocks_nothing_is_missing_however_many_menus_there_are(kept, share):
    obs, menu = batch(kept)
    weights = weights_of(NET)
    heads = jax.jit(lambda obs, menu: apply_in_blocks(NET, weights, obs, menu, share))(obs, menu)
    expected = one_by_one(obs, menu)
    assert_same(heads, expected, "forward", "act", "value")
    np.testing.assert_allclose(
        jnp.where(menu.mask, heads.place, 0.0), jnp.where(menu.mask, expected.place, 0.0), rtol=2e-5, atol=2e-5
    )


def test_menus_beyond_the_room_are_said_to_be_missing_and_spoil_no_other():
    obs, menu = batch(0.8)
    heads, whole = jit_packed(0.2)(obs, menu)
    some = menu.mask.any(-1)
    assert whole.dtype == bool and int((whole & some).sum()) == 3 and bool(whole[~some].all())
    expected = one_by_one(obs, menu)
    assert_same(*(jax.tree.map(lambda leaf: leaf[whole], x) for x in (heads, expected)), "act", "forward", "value")


def test_gradients_are_those_of_the_network_as_a_whole():
    obs, menu = batch(0.4)

    def total(heads):
        place = jnp.where(menu.mask, heads.place, 0.0)
        return sum((jnp.sin(head) ** 2).sum() for head in (place, heads.forward, heads.value))

    packed = jax.jit(jax.grad(lambda weights: total(apply_packed(NET, weights, obs, menu, 1.0)[0])))
    plain = jax.jit(jax.grad(lambda weights: total(NET.apply(weights, obs, menu))))
    weights = weights_of(NET)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain(weights)))
    assert largest > 1.0
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5 * largest),
        packed(weights), plain(weights),
    )  # fmt: skip
