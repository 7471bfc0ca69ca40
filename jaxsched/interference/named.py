"""Interference models by name, as `--interference` and training configurations give them."""

from pathlib import Path

import chex

from jaxsched.dynamics.interference import LEVELS, MODELS, Interference, default_strengths, fitted
from jaxsched.errors import UserError
from jaxsched.fitted import SHIPPED


def interference_model(name: str) -> tuple[Interference, chex.ArrayTree]:
    """The model `name` and its weights.

    `none`, `analytic`, `analytic:low` or `analytic:high` (the ends of the range of every strength), `fitted`, or the
    folder of a fitted model. UserError on anything else.
    """
    kind, _, level = name.partition(":")
    if kind == "analytic" and level in LEVELS[1:]:
        return MODELS[kind], default_strengths(level)
    if name in MODELS:
        return MODELS[name], default_strengths()
    if name == SHIPPED or Path(name).is_dir():
        from jaxsched.interference.files import load_model  # only fitted models need what reads them

        return fitted, load_model(name).strengths
    known = ", ".join((*MODELS, *(f"analytic:{level}" for level in LEVELS[1:]), SHIPPED))
    raise UserError(f"unknown interference model {name!r}: should be one of {known}, or a fitted model's folder")
