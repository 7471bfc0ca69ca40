"""Errors of a fitted model and of references: on new rows, over folds, and with a family left out but for k rows."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from jaxsched.calibration.fitting import MODEL, Errors, figures_by_group, folds
from jaxsched.calibration.interference.files import FittedModel
from jaxsched.calibration.interference.fit import adapt_subsets, default_settings, fit_subsets, predict_ratios
from jaxsched.calibration.interference.measurements import Measurements
from jaxsched.calibration.interference.model import NAMES, FitSettings, References, fit_references, vocabulary_of
from jaxsched.errors import UserError


def errors(measured: Measurements, predicted: Float[np.ndarray, "D"]) -> Errors:
    """{"mae": {hardware or "all": x}, "mape": {...}} of predicted ratios; MAPE is a fraction."""
    off = np.abs(predicted - measured.ratio)
    return {
        "mae": figures_by_group(measured.hardware, off),
        "mape": figures_by_group(measured.hardware, off / measured.ratio),
    }


def errors_by_model(measured: Measurements, predicted: Float[np.ndarray, "D"]) -> dict[str, Any]:
    """{name: {"rows", "mae", "mape"}} over each victim's ratios, all hardware."""
    off = np.abs(predicted - measured.ratio)
    names = np.array([item.name for item in measured.items])[measured.victim]
    return {
        str(name): {
            "rows": int((names == name).sum()),
            "mae": float(off[names == name].mean()),
            "mape": float((off / measured.ratio)[names == name].mean()),
        }
        for name in np.unique(names)
    }


def predict_out_of_fold(
    measured: Measurements, count: int = 5, seed: int = 0, settings: FitSettings | None = None
) -> dict[str, Float64[np.ndarray, "D"]]:
    """Ratios of every row predicted by fits without its fold, by "model" and the names of the references."""
    settings = settings or default_settings(measured.kind)
    fold = folds(measured.row, count, seed)  # both directions of a pair in one
    weight = np.array([fold != number for number in range(count)], np.float32)
    vocabulary = vocabulary_of(measured.items)
    found = fit_subsets(measured, vocabulary, weight, seed, settings)
    predicted = {name: np.zeros(len(fold)) for name in (MODEL, *NAMES)}
    for number in range(count):
        out = fold == number
        parameters = jax.tree.map(lambda leaf, number=number: leaf[number], found)
        predicted[MODEL][out] = predict_ratios(settings, vocabulary, parameters, measured)[out]
        references = fit_references(measured, weight[number])
        for name in NAMES:
            predicted[name][out] = _reference(references, name, measured)[out]
    return predicted


def leave_family_out(
    measured: Measurements, shots: tuple[int, ...] = (0, 2, 5), draws: int = 2, seed: int = 0, members: int = 4
) -> dict[int, dict[str, Errors]]:
    """{k: {"model" or reference: errors}}: each family left out in turn, then adapted to k rows of each of its items.

    The k rows are drawn at random from those with a partner of another family; errors are over all other rows with the
    family. References are refitted on the remaining families' rows and the same k rows.
    """
    settings = dataclasses.replace(default_settings(measured.kind), members=members)
    vocabulary = vocabulary_of(measured.items)
    names = np.array([item.family for item in measured.items])
    families = np.unique(names)
    of_victim, of_aggressor = names[measured.victim], names[measured.aggressor]
    inside = np.array([(of_victim == family) | (of_aggressor == family) for family in families])
    base = fit_subsets(measured, vocabulary, (~inside).astype(np.float32), seed, settings)
    new = np.array([[_belongs(column, family) for column in vocabulary.columns] for family in families])
    new |= np.array(
        [
            [column[0] == "item" and _item_family(measured, column) == f for column in vocabulary.columns]
            for f in families
        ]
    )
    rng = np.random.default_rng(seed)
    table: dict[int, dict[str, Errors]] = {}
    for k in shots:
        repeats = draws if k else 1
        which = np.repeat(np.arange(len(families)), repeats)
        few = np.array([_draw_rows(measured, of_victim, of_aggressor, families[f], k, rng) for f in which])
        start = jax.tree.map(lambda leaf, which=which: leaf[which], base)
        found = adapt_subsets(start, measured, vocabulary, few.astype(np.float32), new[which], settings)
        collected: dict[str, list[np.ndarray]] = {name: [] for name in (MODEL, *NAMES)}
        tests = []
        for i, f in enumerate(which):
            test = inside[f] & ~few[i]
            tests.append(np.flatnonzero(test))
            parameters = jax.tree.map(lambda leaf, i=i: leaf[i], found)
            collected[MODEL].append(predict_ratios(settings, vocabulary, parameters, measured)[test])
            references = fit_references(measured, ~inside[f] | few[i])
            for name in NAMES:
                collected[name].append(_reference(references, name, measured)[test])
        rows = np.concatenate(tests)
        tested = dataclasses.replace(
            measured,
            victim=measured.victim[rows],
            aggressor=measured.aggressor[rows],
            ratio=measured.ratio[rows],
            row=np.arange(len(rows), dtype=np.int32),
        )
        table[k] = {name: errors(tested, np.concatenate(values)) for name, values in collected.items()}
    return table


def _reference(references: References, name: str, measured: Measurements) -> Float64[np.ndarray, "D"]:
    return references.predict(name, measured.hardware, measured.victim, measured.aggressor)


def _belongs(column: tuple[str, ...], family: str) -> bool:
    """Whether a column of the design is this family's alone (its items' columns apart)."""
    place = {"family": 1, "family@hardware": 1, "scale@family@hardware": 2}.get(column[0])
    return place is not None and column[place] == family


def _item_family(measured: Measurements, column: tuple[str, ...]) -> str:
    return next(item.family for item in measured.items if item.key == column[1:])


def _draw_rows(
    measured: Measurements,
    of_victim: Shaped[np.ndarray, "D"],
    of_aggressor: Shaped[np.ndarray, "D"],
    family: str,
    k: int,
    rng: np.random.Generator,
) -> Bool[np.ndarray, "D"]:
    """`k` random rows, with both directions, of each item of the family with a partner outside it."""
    taken = np.zeros(len(measured.ratio), bool)
    mixed = (of_victim == family) != (of_aggressor == family)
    for number, item in enumerate(measured.items):
        if item.family == family and k:
            own = mixed & ((measured.victim == number) | (measured.aggressor == number))
            rows = np.unique(measured.row[own])
            taken |= np.isin(measured.row, rng.permutation(rows)[:k])
    return taken


def evaluate(model: FittedModel, measured: Measurements) -> dict:
    """{"kind", "rows", "ratios", "mae", "mape", "models", "references"}; UserError on hardware it does not know."""
    if measured.kind not in model.parts:
        raise UserError(
            f"the model knows {', '.join(model.parts)} sharing only, the data are of {measured.kind} sharing"
        )
    fitted, references = model.parts[measured.kind], model.references[measured.kind]
    known = {item.hardware for item in fitted.items}
    for hardware in sorted({item.hardware for item in measured.items}):
        if hardware not in known:
            raise UserError(f"the model has no measurement on {hardware!r}, only on {', '.join(sorted(known))}")
    predicted = predict_ratios(fitted.settings, fitted.vocabulary, fitted.parameters, measured)
    index = {item.key: i for i, item in enumerate(fitted.items)}
    place = np.array([index.get(item.key, -1) for item in measured.items])
    victim, aggressor = place[measured.victim], place[measured.aggressor]
    compared = {
        name: errors(measured, references.predict(name, measured.hardware, victim, aggressor)) for name in NAMES
    }
    return {
        "kind": measured.kind,
        "rows": measured.rows,
        "ratios": len(measured.ratio),
        **errors(measured, predicted),
        "models": errors_by_model(measured, predicted),
        "references": compared,
    }
