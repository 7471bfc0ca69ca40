"""The network's gradients, and the network under vmap."""

import functools
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.observation import Menu, Observation
from jaxsched.networks.hierarchy import Heads
from tests.support.network_cases import NET, SIZE, apply, assert_same, make, weights_of


def summed(weights, obs: Observation, menu: Menu) -> jax.Array:
    heads = cast(Heads, NET.apply(weights, obs, menu))
    place = jnp.where(menu.mask, jnp.tanh(heads.place / 20), 0.0).sum()
    return place + sum(jnp.tanh(leaf / 20).sum() for leaf in (heads.forward, heads.act, heads.value))


@functools.cache
def jit_gradient():
    return jax.jit(jax.grad(summed))


def batch(count: int = 4) -> tuple[Observation, Menu]:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[make(SIZE, seed, seed % 2 == 1) for seed in range(count)])


@pytest.mark.slower
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
    obs = obs.replace(**{n: scale * getattr(obs, n) for n in ("group", "server", "rack", "scheduler", "job")})
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
