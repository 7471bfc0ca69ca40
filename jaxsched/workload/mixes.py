"""Mixes: named weights over the models of the catalogue, for jobs whose model is not known."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.workload.catalogue import MEASURED, Catalogue
from jaxsched.workload.models import MODEL_NAMES


@dataclasses.dataclass(frozen=True)
class Mix:
    """Weights over models; a model that is not named has weight 0. UserError on an unknown model or a bad weight."""

    name: str
    weights: Mapping[str, float]
    catalogue: Catalogue = MEASURED

    def __post_init__(self) -> None:
        values = np.array(list(self.weights.values()), np.float64)
        for model in self.weights:
            self.catalogue.index(model)
        if not len(values) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
            raise UserError(
                f"mix {self.name!r}: weights must be finite, not negative and not all 0: {dict(self.weights)}"
            )

    @property
    def probabilities(self) -> Float64[np.ndarray, "models"]:
        """Shares in the order of the catalogue, sums to 1."""
        weights = np.zeros(len(self.catalogue.models))
        for model, weight in self.weights.items():
            weights[self.catalogue.index(model)] += weight
        return weights / weights.sum()


_HEAVY = 0.7  # assumption: the share of jobs with the bottleneck that gives the mix its name


def _tilted(name: str, models: tuple[str, ...]) -> Mix:
    """`models` share 70% of the jobs evenly, all others share the rest."""
    others = len(MODEL_NAMES) - len(models)
    return Mix(name, {m: _HEAVY / len(models) if m in models else (1 - _HEAVY) / others for m in MODEL_NAMES})


MIXES: dict[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("default", dict.fromkeys(MODEL_NAMES, 1.0)),
        _tilted("network-heavy", ("vgg16", "vgg19", "bert", "lstm_lm", "vit_l", "llama_1b")),
        _tilted("cpu-heavy", ("textcnn", "a2c", "dqn", "resnet18", "shufflenet_v2", "ncf")),
        # the eight models of the Muri traces, which have them in nearly equal shares
        Mix("muri", dict.fromkeys(("vgg16", "vgg19", "resnet18", "shufflenet_v2", "bert", "gpt2", "a2c", "dqn"), 1.0)),
    )
}


def get_mix(mix: str | Mix | Mapping[str, float], catalogue: Catalogue = MEASURED) -> Mix:
    """A mix by name, of models with commas between in equal shares, from weights, or as it is.

    UserError names the unknown mix or model and the known ones.
    """
    if isinstance(mix, Mix):
        return mix
    if not isinstance(mix, str):
        return Mix("custom", dict(mix), catalogue)
    if mix in MIXES:
        return dataclasses.replace(MIXES[mix], catalogue=catalogue)
    if "," not in mix and mix not in catalogue:
        raise UserError(
            f"mix: unknown mix {shorten(mix)!r}; known mixes are {', '.join(MIXES)}, or models with commas between"
        )
    return Mix(mix, dict.fromkeys(mix.split(","), 1.0), catalogue)
