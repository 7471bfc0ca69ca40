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
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32

from jaxsched.pytree import Pytree

LARGEST = 1e4  # of a latent number; beyond it float32 sums lose the difference f(z + y) - f(z)


class Law(Pytree):
    """Weights of the law; `C` latent channels, `H` hidden units. Leaves may have leading axes (members)."""

    mix: Float32[Array, "*members C H"]
    gate: Float32[Array, "*members C H"]
    bias: Float32[Array, "*members H"]
    gain: Float32[Array, "*members H"]


def slowdown(
    law: Law, sensitivity: Float[Array | np.ndarray, "*#jobs C"], pressure: Float[Array | np.ndarray, "*#jobs C"]
) -> Float32[Array, "*#jobs"]:
    """Step time among co-runners over step time alone.

    Args: `law` without leading axes; `pressure >= 0` of all co-runners.
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


def mean_slowdown(
    laws: Law, sensitivity: Float32[Array, "A *jobs C"], pressure: Float32[Array, "A *jobs C"]
) -> Float32[Array, "*jobs"]:
    """The slowdown of an ensemble `laws` of `A` members, one over the mean of their throughput ratios."""
    return 1.0 / (1.0 / jax.vmap(slowdown)(laws, sensitivity, pressure)).mean(0)


class SharingTable(Pytree):
    """The fitted law of sharing and what it knows of each model; `A` members, `C` latent channels, `T` GPU types."""

    laws: Law  # leaves [A, ...]
    sensitivity: Float32[Array, "A T models C"]
    pressure: Float32[Array, "A T models C"]  # >= 0
    covered: Bool[Array, "T"]  # GPU types (places in `cluster.gpu_types.GPU_TYPES`) that were measured
