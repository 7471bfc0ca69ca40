"""The law of sharing keeps its constraints for any weights and any input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsched.dynamics.sharing import LARGEST, Law, mean_slowdown, slowdown

C, H = 3, 4
seeds = st.integers(0, 2**31 - 1)
scales = st.sampled_from([0.1, 1.0, 10.0, 100.0])
awkward = st.floats(width=32, allow_nan=True, allow_infinity=True)


def random_law(seed, scale):
    rng = np.random.default_rng(seed)
    shapes = {"mix": (C, H), "gate": (C, H), "bias": (H,), "gain": (H,)}
    return Law(**{name: jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()})


def random_jobs(seed, count, scale=1.0):
    rng = np.random.default_rng(seed)
    drawn = scale * rng.normal(size=(count, C)), scale * rng.exponential(size=(count, C))
    return tuple(jnp.asarray(numbers, jnp.float32) for numbers in drawn)


@given(seeds, scales, st.integers(1, 6))
def test_at_least_one_and_any_order(seed, scale, count):
    law, (sensitivity, pressure) = random_law(seed, scale), random_jobs(seed, count, scale)
    value = float(slowdown(law, sensitivity[0], pressure.sum(0)))
    again = float(slowdown(law, sensitivity[0], pressure[::-1].sum(0)))
    assert 1.0 <= value < np.inf
    assert again == pytest.approx(value, rel=1e-4)  # sums of floats in another order


@given(seeds, scales)
def test_alone_is_exactly_one(seed, scale):
    law, (sensitivity, _) = random_law(seed, scale), random_jobs(seed, 5, scale)
    np.testing.assert_array_equal(slowdown(law, sensitivity, jnp.zeros((5, C))), 1.0)
    np.testing.assert_array_equal(jax.jit(slowdown)(law, sensitivity, jnp.zeros((5, C))), 1.0)


@given(seeds, scales, st.integers(0, C - 1), st.floats(0.01, 100))
def test_never_falls_in_a_pressure(seed, scale, channel, more):
    law, (sensitivity, pressure) = random_law(seed, scale), random_jobs(seed, 1, scale)
    before = slowdown(law, sensitivity, pressure)
    after = slowdown(law, sensitivity, pressure.at[:, channel].add(more))
    assert (after >= before * (1 - 1e-5)).all()  # what float32 leaves of f(z + y) - f(z)


@given(seeds, scales, st.lists(awkward, min_size=2 * C, max_size=2 * C))
def test_finite_for_any_input(seed, scale, numbers):
    law = random_law(seed, scale)
    sensitivity, pressure = jnp.asarray(numbers[:C], jnp.float32), jnp.asarray(numbers[C:], jnp.float32)
    value, slopes = jax.value_and_grad(slowdown, argnums=(0, 1, 2))(law, sensitivity, pressure)
    assert 1.0 <= float(value) < np.inf
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slopes))


def test_grows_without_bound_and_is_felt():
    law = random_law(0, 0.3)
    two, many = (float(slowdown(law, jnp.zeros(C), jnp.full(C, x))) for x in (1.0, 100.0))
    assert 1.1 < two < many / 10
    assert float(slowdown(law, jnp.zeros(C), jnp.full(C, 10 * LARGEST))) < np.inf


def test_an_ensemble_lies_between_its_members():
    members = [random_law(seed, 0.5) for seed in range(3)]
    laws = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    sensitivity, pressure = random_jobs(1, 4)
    each = jnp.stack([slowdown(law, sensitivity, pressure) for law in members])
    stacked = jnp.broadcast_to(sensitivity, (3, 4, C)), jnp.broadcast_to(pressure, (3, 4, C))
    mean = mean_slowdown(laws, *stacked)
    assert ((mean >= each.min(0) - 1e-6) & (mean <= each.max(0) + 1e-6)).all()
    np.testing.assert_allclose(mean, 1 / (1 / each).mean(0), rtol=1e-6)
