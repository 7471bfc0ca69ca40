"""The fitted law of sharing: how pressures and a sensitivity become a slowdown. Pure functions of its weights.

Each job has a pressure vector `p >= 0` and a sensitivity vector `s` over a few latent channels. The pressures of
co-runners add up; with the sums `x`, hidden unit `h` sees `y_h = sum_c softplus(mix_ch) softplus(s_c) x_c`, stands at
`z_h = s . gate_h + bias_h`, and

    slowdown = 1 + sum_h softplus(gain_h) (f_h(z_h + y_h) - f_h(z_h))

with `f = softplus` for the first half of the units, which goes on growing, and `tanh` for the others, which saturate.
All weights of the way from `x` to the slowdown are positive and `f` grows, so the constraints hold for every value of
the weights: slowdown >= 1, never falling in any pressure, exactly 1 without pressure, independent of the order.
"""

import jax
import jax.numpy as jnp
from jax import Array

from jaxsched.pytree import Pytree

LARGEST = 1e4  # of a latent number; beyond it float32 sums lose the difference f(z + y) - f(z)


class Law(Pytree):
    """Weights of the law; `C` latent channels, `H` hidden units. Leaves may have leading axes (members)."""

    mix: Array  # float32[..., C, H]
    gate: Array  # float32[..., C, H]
    bias: Array  # float32[..., H]
    gain: Array  # float32[..., H]


def slowdown(law: Law, sensitivity: Array, pressure: Array) -> Array:
    """float32[...]: step time among co-runners over step time alone.

    Args:
        law: without leading axes. sensitivity: float32[..., C]. pressure: float32[..., C], >= 0, of all co-runners.
    Any input gives a finite result: numbers are clipped to `LARGEST`, what is no number counts as 0.
    """
    sensitivity = jnp.clip(jnp.nan_to_num(sensitivity), -LARGEST, LARGEST)
    pressure = jnp.clip(jnp.nan_to_num(pressure), 0.0, LARGEST)
    pushed = jnp.minimum((jax.nn.softplus(sensitivity) * pressure) @ jax.nn.softplus(law.mix), LARGEST)
    at = jnp.clip(sensitivity @ law.gate + law.bias, -LARGEST, LARGEST)
    half = law.bias.shape[-1] // 2
    grows = jax.nn.softplus(at + pushed) - jax.nn.softplus(at)
    saturates = jnp.tanh(at + pushed) - jnp.tanh(at)
    rise = jnp.concatenate([grows[..., :half], saturates[..., half:]], -1)
    return 1.0 + jnp.maximum(rise * jax.nn.softplus(law.gain), 0.0).sum(-1)


def mean_slowdown(laws: Law, sensitivity: Array, pressure: Array) -> Array:
    """float32[...]: the slowdown of an ensemble, one over the mean of the members' throughput ratios.

    Args: `laws` with a leading axis of members, `sensitivity` and `pressure` float32[members, ..., C].
    """
    return 1.0 / (1.0 / jax.vmap(slowdown)(laws, sensitivity, pressure)).mean(0)


class SharingTable(Pytree):
    """The fitted law of sharing and what it knows of each model; `A` members, `C` latent channels, `T` GPU types."""

    laws: Law  # leaves [A, ...]
    sensitivity: Array  # float32[A, T, models, C]
    pressure: Array  # float32[A, T, models, C], >= 0
    covered: Array  # bool[T], GPU types (places in `cluster.servers.GPU_TYPES`) that were measured
