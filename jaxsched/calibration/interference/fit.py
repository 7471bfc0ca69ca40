"""Fitting: one jitted program for all members and all subsets of the rows, by Adam on a robust loss with priors."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, Key, PRNGKeyArray

from jaxsched.calibration.fitting import minimize
from jaxsched.calibration.interference.measurements import GPU, Item, Measurements
from jaxsched.calibration.interference.model import (
    NETWORK_SETTINGS,
    FitSettings,
    SharingModel,
    Vocabulary,
    vocabulary_of,
)

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
    measured: Measurements,
    vocabulary: Vocabulary,
    weight: Float32[np.ndarray, "B D"],
    seed: int,
    settings: FitSettings,
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
