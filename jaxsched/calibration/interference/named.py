"""Interference models by name, as `--interference` and training configurations give them.

| name | cpu, pcie, qpi | nic, link | gpu, by GPU type |
|---|---|---|---|
| `default` | analytic | analytic | fitted where measured, else analytic |
| `none` | - | - | - |
| `analytic` | analytic | analytic | analytic |
| `analytic:low`, `analytic:high` | analytic, the ends of every range of strength | likewise | likewise |
| `fitted`, or a folder | analytic | fitted | fitted where measured, else analytic |
"""

import functools
import os
from collections.abc import Sequence

from jaxsched.dynamics.interference import (
    LAWS,
    LEVELS,
    Interference,
    StretchLaw,
    check_law,
    default_interference,
    default_strengths,
    fitted,
)
from jaxsched.dynamics.sharing import SharingTable
from jaxsched.errors import UserError
from jaxsched.io.cards import SHIPPED
from jaxsched.io.files import shorten
from jaxsched.user_code import name_of
from jaxsched.workload.models import CATALOGUE, ModelProfile

DEFAULT = "default"


def interference_model(name: object) -> Interference:
    """The model `name`, see the module's table, without its `sharing_law`; or one that is given, or of a given law.

    A law alone gets the calibrated strengths as its weights. UserError on an unknown name, and on a law that is none.
    """
    if not isinstance(name, str):
        if not (isinstance(name, Interference) or callable(name)):
            raise UserError(f"interference: {name!r} should be a name, an Interference, or a law of that signature")
        return _given(name)
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


@functools.lru_cache(maxsize=64)
def _given(model: Interference | StretchLaw) -> Interference:
    """A model of the user's, checked; the same object for the same one."""
    if not isinstance(model, Interference):
        model = Interference(law=model, weights=default_strengths())
    check_law(model)
    return model


def name_of_model(model: object) -> str:
    """What reports call it."""
    return model if isinstance(model, str) else name_of(model.law if isinstance(model, Interference) else model)


def sharing_law(name: object, models: Sequence[ModelProfile] = CATALOGUE) -> SharingTable | None:
    """The fitted law of GPU sharing that goes with a model; None where the channel `gpu` is its own.

    UserError if there should be one and its folder cannot be read.
    """
    if not isinstance(name, str):
        return name.sharing if isinstance(name, Interference) else None
    if name != DEFAULT and (name in LAWS or name.partition(":")[0] in LAWS):
        return None
    from jaxsched.calibration.interference.files import load_model
    from jaxsched.calibration.interference.fit import sharing_table  # heavier than what whole GPUs need
    from jaxsched.calibration.interference.measurements import GPU

    parts = load_model(SHIPPED if name == DEFAULT else name).parts
    return sharing_table(parts[GPU], models) if GPU in parts else None
