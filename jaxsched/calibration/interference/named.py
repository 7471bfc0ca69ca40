"""Interference models by name, as `--interference` and training configurations give them.

| name | cpu, pcie, qpi | nic, link | gpu, by GPU type |
|---|---|---|---|
| `default` | analytic | analytic | fitted where measured, else analytic |
| `none` | - | - | - |
| `analytic` | analytic | analytic | analytic |
| `analytic:low`, `analytic:high` | analytic, the ends of every range of strength | likewise | likewise |
| `fitted`, or a folder | analytic | fitted | fitted where measured, else analytic |
"""

import os
from collections.abc import Sequence

from jaxsched.calibration.data import SHIPPED
from jaxsched.dynamics.interference import LAWS, LEVELS, Interference, default_interference, default_strengths, fitted
from jaxsched.dynamics.sharing import SharingTable
from jaxsched.errors import UserError
from jaxsched.io.inputs import shorten
from jaxsched.workload.models import CATALOGUE, ModelProfile

DEFAULT = "default"


def interference_model(name: str) -> Interference:
    """The model `name`, see the module's table, without its `sharing_law`. UserError on an unknown name."""
    kind, _, level = name.partition(":")
    if name == DEFAULT:
        return default_interference()
    if kind == "analytic" and level in LEVELS[1:]:
        return Interference(law=LAWS[kind], weights=default_strengths(level))
    if name in LAWS:
        return Interference(law=LAWS[name], weights=default_strengths())
    if name == SHIPPED or os.path.isdir(name):
        from jaxsched.calibration.interference.files import load_model  # only fitted models need what reads them

        return Interference(law=fitted, weights=load_model(name).strengths)
    known = ", ".join((DEFAULT, *LAWS, *(f"analytic:{level}" for level in LEVELS[1:]), SHIPPED))
    raise UserError(
        f"unknown interference model {shorten(name)!r}: should be one of {known}, or a fitted model's folder"
    )


def sharing_law(name: str, models: Sequence[ModelProfile] = CATALOGUE) -> SharingTable | None:
    """The fitted law of GPU sharing that goes with the model `name`; None where the channel `gpu` is its own.

    UserError if there should be one and its folder cannot be read.
    """
    if name != DEFAULT and (name in LAWS or name.partition(":")[0] in LAWS):
        return None
    from jaxsched.calibration.interference.files import load_model
    from jaxsched.calibration.interference.measurements import GPU
    from jaxsched.calibration.interference.predict import sharing_table  # heavier than what whole GPUs need

    parts = load_model(SHIPPED if name == DEFAULT else name).parts
    return sharing_table(parts[GPU], models) if GPU in parts else None
