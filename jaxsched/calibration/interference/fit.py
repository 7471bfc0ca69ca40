"""Fits to measurements, and what they say: of jobs by name, of models of the catalogue, of the strength of contention.

The model is fitted by one jitted program for all members and all subsets of the rows, by Adam on a robust loss with
priors. `sharing_table` is what the simulator takes.

The strength is in the simulator's terms: on the network by DeepShare's cells, on one GPU by Gavel's pairs. The
simulator's step is `1 - c + c stretch`, with `c` the share of the step that communicates alone, and the stretch under
one co-runner that communicates for a share `c'` of its time is `1 + kappa c'^power`. So a cell's ratio is `1 / (1 +
kappa c c'^power)`. The shares `c` in (0, 1) are not measured and are fitted with the strength, one per job. As no share
is above 1, the cells bound `kappa` from below: with too small a strength no shares explain them. On one GPU a co-runner
is always met, so a pair's ratio is `1 / (1 + kappa)` and the strength is the one of least error.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, Key, PRNGKeyArray

from jaxsched.calibration.fitting import minimize
from jaxsched.calibration.interference.measurements import GPU, Item, Measurements, gpu_item
from jaxsched.calibration.interference.model import (
    NETWORK_SETTINGS,
    FitSettings,
    SharingModel,
    Vocabulary,
    law_of,
    split,
    vocabulary_of,
)
from jaxsched.cluster.gpu_types import GPU_TYPES
from jaxsched.dynamics.gpu_sharing import SharingTable
from jaxsched.dynamics.sharing import mean_slowdown
from jaxsched.errors import UserError
from jaxsched.io.files import shorten
from jaxsched.workload.models import CATALOGUE, MODEL_NAMES, ModelProfile, model_index

Parameters = dict[str, Any]  # arrays by name, see `SharingModel`; of JAX while fitting, of NumPy when read


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A fitted ensemble for one kind of sharing."""

    kind: str
    settings: FitSettings
    vocabulary: Vocabulary
    items: tuple[Item, ...]  # measured ones
    parameters: Parameters  # leaves [members, ...]


def default_settings(kind: str) -> FitSettings:
    """The settings of a kind of sharing."""
    return FitSettings() if kind == GPU else NETWORK_SETTINGS


def precision_of(vocabulary: Vocabulary, settings: FitSettings) -> Float32[np.ndarray, "K"]:
    """The prior precision of each column."""
    table = dict(settings.precisions)
    return np.array([table[column[0]] for column in vocabulary.columns], np.float32)


def fit(measured: Measurements, seed: int = 0, settings: FitSettings | None = None) -> Fitted:
    """The ensemble that all rows of `measured` give. The same on the same kind of machine, bit for bit."""
    settings = settings or default_settings(measured.kind)
    vocabulary = vocabulary_of(measured.items)
    weight = np.ones((1, len(measured.ratio)), np.float32)
    found = fit_subsets(measured, vocabulary, weight, seed, settings)
    return Fitted(measured.kind, settings, vocabulary, measured.items, jax.tree.map(lambda leaf: leaf[0], found))


def fit_subsets(
    measured: Measurements, vocabulary: Vocabulary, weight: Float32[np.ndarray, "B D"], seed: int, settings: FitSettings
) -> Parameters:
    """Parameters with leaves [B, members, ...], one fit for each row of weights of the ratios."""
    model = _model(vocabulary, settings)
    keys = jax.random.split(jax.random.key(seed), settings.members)
    design = jnp.asarray(vocabulary.design(measured.items))
    start = jax.vmap(lambda key: model.init(key, design, jnp.zeros(1, int), jnp.zeros(1, int))["params"])(keys)
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(weight), *leaf.shape)), start)
    trained = jax.tree.map(lambda leaf: jnp.ones(leaf.shape[1:], jnp.float32), start)
    trained = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(weight), *leaf.shape)), trained)
    return _descend(settings, model, many, trained, _data(measured, vocabulary, settings), weight, keys)


def adapt_subsets(
    base: Parameters,
    measured: Measurements,
    vocabulary: Vocabulary,
    weight: Float32[np.ndarray, "B D"],
    new: Bool[np.ndarray, "B K"],
    settings: FitSettings,
) -> Parameters:
    """Parameters with leaves [B, members, ...]: only the columns `new` of `base` are fitted anew, from 0.

    The law and all other columns stay as they are, so nothing that was measured before changes.
    """
    fresh = jnp.asarray(new, jnp.float32)[:, :, None]
    start = base | {"theta": base["theta"] * (1.0 - fresh[:, None])}
    trained = {name: jnp.zeros((leaf.shape[0], *leaf.shape[2:]), jnp.float32) for name, leaf in base.items()}
    trained["theta"] = trained["theta"] + fresh
    keys = jax.random.split(jax.random.key(0), settings.members)
    model = _model(vocabulary, settings)
    return _descend(settings, model, start, trained, _data(measured, vocabulary, settings), weight, keys)


def predict_ratios(
    settings: FitSettings, vocabulary: Vocabulary, parameters: Parameters, measured: Measurements
) -> Float32[np.ndarray, "D"]:
    """The ensemble's mean ratio for every row of `measured`."""
    model = _model(vocabulary, settings)
    design, victim, aggressor = jnp.asarray(vocabulary.design(measured.items)), measured.victim, measured.aggressor
    by_member = jax.vmap(lambda member: _ratios(model, member, design, victim, aggressor))(parameters)
    return np.asarray(by_member.mean(0))


def _model(vocabulary: Vocabulary, settings: FitSettings) -> SharingModel:
    return SharingModel(len(vocabulary.columns), settings.channels, settings.hidden)


def _ratios(model: SharingModel, parameters: Parameters, *arguments: Any) -> Float32[Array, "D"]:
    return cast(Array, model.apply({"params": parameters}, *arguments))


class _Data(NamedTuple):
    """What is fitted to."""

    design: Float32[Array, "E K"]
    precision: Float32[Array, "K"]
    victim: Int32[Array, "D"]
    aggressor: Int32[Array, "D"]
    ratio: Float32[Array, "D"]


def _data(measured: Measurements, vocabulary: Vocabulary, settings: FitSettings) -> _Data:
    return _Data(
        design=jnp.asarray(vocabulary.design(measured.items)),
        precision=jnp.asarray(precision_of(vocabulary, settings)),
        victim=jnp.asarray(measured.victim),
        aggressor=jnp.asarray(measured.aggressor),
        ratio=jnp.asarray(measured.ratio, jnp.float32),
    )


@partial(jax.jit, static_argnums=(0, 1))
def _descend(
    settings: FitSettings,
    model: SharingModel,
    start: Parameters,
    trained: Parameters,
    data: _Data,
    weight: Float32[Array, "B D"],
    keys: Key[Array, "members"],
) -> Parameters:
    """The fit; `start` has leaves [B, members, ...], `trained` [B, ...]."""
    design, precision, victim, aggressor, ratio = data
    shape = (design.shape[0], 2 * settings.channels)

    def loss(
        rows: Float32[Array, "D"], key: PRNGKeyArray, parameters: Parameters, index: Int32[Array, ""]
    ) -> Float32[Array, ""]:
        noise = settings.noise * jax.random.normal(jax.random.fold_in(key, index), shape)
        error = _ratios(model, parameters, design, victim, aggressor, noise) - ratio
        robust = jnp.sqrt(error**2 + settings.softness**2) - settings.softness  # Charbonnier et al., 1994
        prior = (precision[:, None] * parameters["theta"] ** 2).sum()
        law = (parameters["gate"] ** 2).sum() + (parameters["bias"] ** 2).sum()
        return (rows * robust).sum() + prior + settings.law_precision * law

    def member(begin: Parameters, mask: Parameters, rows: Float32[Array, "D"], key: PRNGKeyArray) -> Parameters:
        own = partial(loss, rows, key)
        return minimize(own, begin, steps=settings.steps, learning_rate=settings.learning_rate, trained=mask)

    members = jax.vmap(member, (0, None, None, 0))
    return jax.vmap(members, (0, 0, 0, None))(start, trained, weight, keys)


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
        if family and asked.family != asked.name:
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

    A model that was not measured has the prior of its profile (`catalogue_item`).
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


GRID = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
ENOUGH = 1.01  # a strength explains the cells if its error is within 1% of the best one's
GPU_GRID = np.round(np.arange(0.0, 5.005, 0.01), 2)
ALL_GPUS = "all"
CURVE_STEPS, CURVE_LEARNING_RATE, SOFTNESS, PRIOR = 1500, 0.05, 0.02, 0.02


@dataclasses.dataclass(frozen=True)
class Curve:
    """A fitted strength: the stretch is `1 + kappa others^power`."""

    kappa: float
    power: float
    mae: float  # of the ratio, on the rows of the fit
    shares: Float32[np.ndarray, "E"]  # c of each job


def fit_curves(measured: Measurements, kappas: tuple[float, ...], free: bool) -> list[Curve]:
    """One curve for each of `kappas`: it and power 1 or, if `free`, both fitted from there (power >= 1)."""
    victim, aggressor = jnp.asarray(measured.victim), jnp.asarray(measured.aggressor)
    ratio = jnp.asarray(measured.ratio, jnp.float32)

    def numbers(values: dict[str, Array]) -> tuple[Array, Array, Array]:
        power = 1.0 + jax.nn.softplus(values["power"]) if free else jnp.float32(1.0)
        return jnp.exp(values["kappa"]), power, jax.nn.sigmoid(values["share"])

    def predicted(values: dict[str, Array]) -> Array:
        kappa, power, share = numbers(values)
        return 1.0 / (1.0 + kappa * share[victim] * share[aggressor] ** power)

    def loss(values: dict[str, Array], _: Array) -> Array:
        robust = jnp.sqrt((predicted(values) - ratio) ** 2 + SOFTNESS**2) - SOFTNESS
        return robust.sum() + PRIOR * (values["share"] ** 2).sum()

    def descend(kappa: Array):
        start = {"kappa": jnp.log(kappa), "power": jnp.float32(-1.0), "share": jnp.zeros(len(measured.items))}
        trained = {"kappa": float(free), "power": float(free), "share": 1.0}
        values = minimize(loss, start, steps=CURVE_STEPS, learning_rate=CURVE_LEARNING_RATE, trained=trained)
        return *numbers(values), jnp.abs(predicted(values) - ratio).mean()

    kappa, power, share, mae = map(np.asarray, jax.jit(jax.vmap(descend))(jnp.asarray(kappas, jnp.float32)))
    power = np.broadcast_to(power, kappa.shape)
    return [Curve(float(k), float(p), float(e), s) for k, p, e, s in zip(kappa, power, mae, share)]


def best_curve(measured: Measurements) -> Curve:
    """Strength and power that explain the cells best."""
    return fit_curves(measured, (1.0,), free=True)[0]


def least_strength(curves: list[Curve]) -> float:
    """The smallest strength that explains the cells about as well as any."""
    best = min(curve.mae for curve in curves)
    return min(curve.kappa for curve in curves if curve.mae <= ENOUGH * best)


def gpu_strengths(measured: Measurements) -> dict[str, tuple[float, float]]:
    """Strength of least mean absolute error, to a hundredth, and that error, for each GPU type and for all pairs."""
    hardware, found = measured.hardware, {}
    for name in (*sorted(set(hardware.tolist())), ALL_GPUS):
        ratio = measured.ratio[(hardware == name) | (name == ALL_GPUS)]
        errors = np.abs(1.0 / (1.0 + GPU_GRID[:, None]) - ratio).mean(1)
        found[name] = float(GPU_GRID[errors.argmin()]), float(errors.min())
    return found
