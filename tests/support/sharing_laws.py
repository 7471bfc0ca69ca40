"""Laws of sharing with strong interactions, and the same by the page, one job at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.cluster.gpu_types import GPU_TYPES
from jaxsched.dynamics.gpu_sharing import SharingTable
from jaxsched.dynamics.sharing import Law
from jaxsched.workload.models import MODEL_NAMES
from tests.oracle import contention


def random_table(rng) -> SharingTable:
    """A law with strong interactions on V100 and P100, two members."""
    members, channels, hidden, models = 2, 3, 4, len(MODEL_NAMES)
    law = Law(
        mix=rng.normal(0, 1, (members, channels, hidden)),
        gate=rng.normal(0, 0.5, (members, channels, hidden)),
        bias=rng.normal(0, 1, (members, hidden)),
        gain=rng.normal(0, 1, (members, hidden)),
    )
    shape = (members, len(GPU_TYPES), models, channels)
    covered = np.array([name in ("V100", "P100") for name in GPU_TYPES])
    table = SharingTable(
        laws=law, sensitivity=rng.normal(0, 1, shape), pressure=rng.uniform(0, 1, shape), covered=covered
    )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, None if leaf.dtype == bool else jnp.float32), table)


def by_hand(table: SharingTable) -> contention.Law:
    """The law in float64, one member and one job at a time."""
    t = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), table)

    def softplus(x):
        return np.logaddexp(0.0, x)

    def law(gpu_type: int, model: int, others: list[int]) -> float | None:
        if not t.covered[gpu_type]:
            return None
        ratios = []
        for a in range(t.laws.bias.shape[0]):
            x = sum(t.pressure[a, gpu_type, other] for other in others)
            s = t.sensitivity[a, gpu_type, model]
            y = (softplus(s) * x) @ softplus(t.laws.mix[a])
            z = s @ t.laws.gate[a] + t.laws.bias[a]
            half = len(z) // 2
            rise = np.append((softplus(z + y) - softplus(z))[:half], (np.tanh(z + y) - np.tanh(z))[half:])
            ratios.append(1 / (1 + rise @ softplus(t.laws.gain[a])))
        return 1 / float(np.mean(ratios))

    return law
