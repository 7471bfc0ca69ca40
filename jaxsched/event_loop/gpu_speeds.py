"""How fast models run on which GPUs: fields of `World`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import Cluster, distinct_speeds
from jaxsched.dynamics.gpu_types import relative_speed
from jaxsched.env.gpu_choice import tiers
from jaxsched.workload.models import Profiles


def speeds_of(cluster: Cluster, profiles: Profiles) -> Float64[np.ndarray, "models P NK"]:
    """How fast each model runs on each group, over the cluster's reference type."""
    if distinct_speeds(cluster) == 1:
        return np.ones((profiles.compute_s.shape[0], cluster.shape[0], cluster.shape[1] * cluster.shape[2]))
    model = jnp.arange(profiles.compute_s.shape[0])[:, None, None, None]
    speed = relative_speed(profiles, model, cluster.group_gpu_type, cluster.group_speed, cluster.reference)
    return np.asarray(speed, np.float64).reshape(len(model), cluster.shape[0], -1)


def tiers_of(cluster: Cluster, profiles: Profiles) -> dict[str, Any]:
    """The fields of `World` that say which GPUs are faster than which."""
    count = distinct_speeds(cluster)
    if count == 1:
        groups = (cluster.shape[0], cluster.shape[1] * cluster.shape[2])
        return dict(group_tier=np.zeros(groups, np.int64), tier_speed=np.ones((profiles.compute_s.shape[0], 1)))
    tier, kind = tiers(cluster, count)
    model = jnp.arange(profiles.compute_s.shape[0])[:, None]
    speed = relative_speed(profiles, model, kind, tier, cluster.reference)
    above = (np.asarray(tier) > np.asarray(cluster.group_speed)[..., None]).sum(-1)
    return dict(
        group_tier=above.reshape(cluster.shape[0], -1).astype(np.int64),
        tier_speed=np.asarray(speed, np.float64),
    )
