"""Predictions for jobs by name, and for all models of the catalogue: the table that the simulator takes."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from jaxsched.calibration.interference.fit import Fitted
from jaxsched.calibration.interference.measurements import GPU, Item, gpu_item
from jaxsched.calibration.interference.model import law_of, split
from jaxsched.cluster.gpu_types import GPU_TYPES
from jaxsched.dynamics.gpu_sharing import SharingTable
from jaxsched.dynamics.sharing import mean_slowdown
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.workload.models import CATALOGUE, MODEL_NAMES, ModelProfile, model_index

# Models of the catalogue that Gavel measured under other names; all others get the prior of their profile.
MEASURED_AS = {
    "resnet18": "ResNet-18 (batch size 128)",
    "resnet50": "ResNet-50 (batch size 64)",
    "lstm_lm": "LM (batch size 80)",
    "a2c": "A3C",  # the same network and loop, asynchronous
}
PROFILED_ON = "v100"  # the catalogue's step times


def find_item(fitted: Fitted, name: str, hardware: str) -> tuple[Item, str]:
    """The job `name` on `hardware`, and what is known of it: 'measured', 'family' or 'prior'.

    UserError on unknown hardware, and on a name that is neither measured, nor a batch size of a measured family, nor
    in the catalogue.
    """
    known = sorted({item.hardware for item in fitted.items})
    if hardware not in known:
        raise UserError(f"--gpu {hardware}: no measurement on it, should be one of {', '.join(known)}")
    here = {item.name.lower(): item for item in fitted.items if item.hardware == hardware}
    if name.lower() in here:
        return here[name.lower()], "measured"
    if fitted.kind == GPU:
        asked = gpu_item(hardware, name, 1.0)
        family = [item for item in here.values() if item.family.lower() == asked.family.lower()]
        if family and asked.scale[0] > 0:
            return _rescale(family, asked), "family"
        if name.lower() in MODEL_NAMES or any(name.lower() in row.aliases for row in CATALOGUE):
            return catalogue_item(fitted, model_index(name), hardware)
    names = sorted({item.name for item in fitted.items if item.hardware == hardware})
    raise UserError(
        f"unknown model {shorten(name)!r}: should be one of {', '.join(names)}, or of {', '.join(MODEL_NAMES)}"
    )


def catalogue_item(
    fitted: Fitted, model: int, hardware: str, models: Sequence[ModelProfile] = CATALOGUE
) -> tuple[Item, str]:
    """The job of one of the models on `hardware`: as measured where it was, else by its profile."""
    row = models[model]
    measured = {item.key: item for item in fitted.items}
    key = (hardware, MEASURED_AS.get(row.name, ""))
    if key in measured:
        return measured[key], "measured"
    # Another GPU's step time: as much longer as the measured items are there, on the geometric mean.
    speed = {
        gpu: float(np.mean([item.profile[1] for item in fitted.items if item.hardware == gpu]))
        for gpu in {hardware, PROFILED_ON} & {item.hardware for item in fitted.items}
    }
    slower = speed[hardware] - speed.get(PROFILED_ON, speed[hardware])
    item = gpu_item(hardware, f"{row.name} (batch size {row.batch_size})", 1.0 / row.compute_s)
    return Item(hardware, row.name, row.name, item.scale, (item.profile[0], item.profile[1] + slower)), "prior"


def latents(
    fitted: Fitted, items: list[Item]
) -> tuple[Float32[np.ndarray, "members items C"], Float32[np.ndarray, "members items C"]]:
    """Sensitivity and pressure of jobs known or not."""
    design = jnp.asarray(fitted.vocabulary.design(items))
    sensitivity, pressure = jax.vmap(lambda theta: split(design @ theta))(jnp.asarray(fitted.parameters["theta"]))
    return np.asarray(sensitivity), np.asarray(pressure)


def slowdowns(fitted: Fitted, items: list[Item]) -> Float32[np.ndarray, "items"]:
    """The slowdown of each job when all of them share; any number of jobs."""
    sensitivity, pressure = latents(fitted, items)
    others = np.stack([np.delete(pressure, i, axis=1).sum(1) for i in range(len(items))], 1)
    return np.asarray(mean_slowdown(law_of(fitted.parameters), jnp.asarray(sensitivity), jnp.asarray(others)))


def _rescale(family: list[Item], asked: Item) -> Item:
    """A batch size that was not measured: the step time by the line through the family's."""
    batch, step = (np.array([item.profile[i] for item in family]) for i in range(2))
    slope = np.polyfit(batch, step, 1)[0] if len(set(batch)) > 1 else 1.0
    at = asked.scale[0]
    time = float(step.mean() + slope * (at - batch.mean()))
    return Item(family[0].hardware, asked.name, family[0].family, (at,), (at, time if math.isfinite(time) else at))


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
