"""The fitted law of sharing as the simulator takes it: a table over GPU types and the models of the catalogue."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxsched.calibration.interference.fit import Fitted
from jaxsched.calibration.interference.model import law_of
from jaxsched.calibration.interference.predict import catalogue_item, latents
from jaxsched.cluster.servers import GPU_TYPES
from jaxsched.dynamics.gpu_sharing import SharingTable
from jaxsched.workload.models import CATALOGUE, ModelProfile

# Gavel's names of GPU types by ours. openb tells V100s by their memory; Gavel's had 16 GB.
MEASURED_GPUS = {"V100": "v100", "V100M16": "v100", "V100M32": "v100", "P100": "p100", "K80": "k80"}


def sharing_table(fitted: Fitted, models: Sequence[ModelProfile] = CATALOGUE) -> SharingTable:
    """Sensitivities and pressures of every one of the models on every GPU type that `fitted` covers, else 0.

    A model that was not measured has the prior of its profile (`predict.catalogue_item`).
    """
    known = {item.hardware for item in fitted.items}
    hardware = [MEASURED_GPUS.get(name) for name in GPU_TYPES]
    covered = np.array([name in known for name in hardware])
    size = (fitted.settings.members, len(GPU_TYPES), len(models), fitted.settings.channels)
    sensitivity, pressure = np.zeros((2, *size), np.float32)
    for place, name in enumerate(hardware):
        if name in known:
            items = [catalogue_item(fitted, model, name, models)[0] for model in range(len(models))]
            sensitivity[:, place], pressure[:, place] = latents(fitted, items)
    return SharingTable(
        laws=law_of(fitted.parameters),
        sensitivity=jnp.asarray(sensitivity),
        pressure=jnp.asarray(pressure),
        covered=jnp.asarray(covered),
    )
