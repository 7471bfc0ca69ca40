"""How fast a model runs on a GPU type, relative to the cluster's reference type (docs/semantics.md, section 4)."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int, Int32

from jaxsched.workload.models import Profiles


@functools.partial(jax.jit, inline=True)
def relative_speed(
    profiles: Profiles,
    model: Int[Array, "*#shape"],
    gpu_type: Int[Array, "*#shape"],
    speed: Float32[Array, "*#shape"],
    reference: Int32[Array, ""],
) -> Float32[Array, "*#shape"]:
    """Speed of a model on a type over that on the type `reference`; exactly 1 on that.

    As measured, where the profile has both types. Else the part of a step that keeps the host busy takes as long on
    any type, and the rest as much longer as the type is slower.

    Args: `speed` of the type over that of the reference, as in `Cluster.group_speed`.
    """
    host = profiles.sens_cpu[model]
    generic = jnp.where(speed == 1.0, 1.0, 1.0 / (host + (1.0 - host) / speed))
    if profiles.speed is None:
        return generic
    last = profiles.speed.shape[-1] - 1  # a column of zeros: types of one's own, and padding
    there = profiles.speed[model, jnp.where((gpu_type >= 0) & (gpu_type < last), gpu_type, last)]
    here = profiles.speed[model, jnp.minimum(reference, last)]
    return jnp.where((there > 0) & (here > 0), there / jnp.maximum(here, 1e-9), generic)
