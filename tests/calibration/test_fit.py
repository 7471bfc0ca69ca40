"""The fit: it learns a law that is there, repeats itself bit for bit, and adapts without forgetting."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.calibration.fitting import folds
from jaxsched.calibration.interference.fit import adapt_subsets, fit, predict_ratios, slowdowns
from jaxsched.calibration.interference.model import NAMES
from jaxsched.calibration.interference.validate import errors, leave_family_out, predict_out_of_fold
from tests.support.interference_files import QUICK


@pytest.fixture(scope="module")
def fitted(synthetic):
    return fit(synthetic, settings=QUICK)


def ratios(fitted, measured):
    return predict_ratios(fitted.settings, fitted.vocabulary, fitted.parameters, measured)


def test_predicts_rows_it_has_not_seen(synthetic):
    predicted = predict_out_of_fold(synthetic, 3, settings=QUICK)
    found = {name: errors(synthetic, ratios) for name, ratios in predicted.items()}
    assert set(found) == {"model", *NAMES}
    ours = found["model"]["mae"]
    assert ours["all"] < 0.02
    assert all(ours["all"] < found[name]["mae"]["all"] for name in NAMES)
    assert found["constant"]["mae"]["all"] < found["none"]["mae"]["all"]


def test_both_directions_of_a_pair_are_in_one_fold(synthetic):
    fold = folds(synthetic.row, 5, 0)
    for row in range(synthetic.rows):
        assert len(set(fold[synthetic.row == row])) == 1
    assert np.bincount(fold).min() > 0.15 * len(fold)


def test_bit_for_bit(synthetic, fitted):
    again = fit(synthetic, settings=QUICK)
    other = fit(synthetic, seed=1, settings=QUICK)
    for one, two in zip(jax.tree.leaves(fitted.parameters), jax.tree.leaves(again.parameters)):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(fitted.parameters["theta"], other.parameters["theta"])


def without(measured, family, few=0):
    """(rows without the family, `few` rows with it, all other rows with it)."""
    names = np.array([item.family for item in measured.items])
    mine = (names[measured.victim] == family) | (names[measured.aggressor] == family)
    mixed = mine & (names[measured.victim] != names[measured.aggressor])
    rows = np.random.default_rng(0).permutation(np.unique(measured.row[mixed]))[:few]
    shown = np.isin(measured.row, rows)
    return only(measured, ~mine), measured.pick(shown), measured.pick(mine & ~shown)


def only(measured, kept):
    """The rows, and only the items they mention."""
    part = measured.pick(kept)
    used = np.unique(np.concatenate([part.victim, part.aggressor]))
    place = np.searchsorted(used, np.arange(len(part.items)))
    items = tuple(part.items[i] for i in used)
    return dataclasses.replace(part, items=items, victim=place[part.victim], aggressor=place[part.aggressor])


def adapt(fitted, measured):
    """`fitted` with the items of `measured` that it does not know, from however few rows, without refitting the rest.

    Rows between known items are ignored. No rows at all leave the new items at their prior.
    """
    vocabulary = fitted.vocabulary.extend(measured.items)
    fresh = np.arange(len(vocabulary.columns)) >= len(fitted.vocabulary.columns)
    theta = jnp.asarray(fitted.parameters["theta"])
    wider = jnp.concatenate([theta, jnp.zeros((len(theta), int(fresh.sum()), theta.shape[-1]), theta.dtype)], 1)
    base = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], fitted.parameters | {"theta": wider})
    weight = np.ones((1, len(measured.ratio)), np.float32)
    found = adapt_subsets(base, measured, vocabulary, weight, fresh[None], fitted.settings)
    known = {item.key for item in fitted.items}
    items = fitted.items + tuple(item for item in measured.items if item.key not in known)
    parameters = jax.tree.map(lambda leaf: leaf[0], found)
    return dataclasses.replace(fitted, vocabulary=vocabulary, items=items, parameters=parameters)


@pytest.mark.slow
def test_adapts_to_a_new_family_and_forgets_nothing(synthetic):
    rest, few, unseen = without(synthetic, "Beta", 40)
    base = fit(rest, settings=QUICK)
    blind, taught = ratios(base, unseen), adapt(base, few)
    error = lambda values: np.abs(values - unseen.ratio).mean()
    assert error(ratios(taught, unseen)) < 0.5 * error(blind)
    np.testing.assert_allclose(ratios(base, rest), ratios(taught, rest), rtol=1e-6)  # sums with more zeros in them
    assert len(taught.items) == len(synthetic.items) and len(base.items) == len(rest.items)


@pytest.mark.long
def test_leaving_families_out(synthetic):
    table = leave_family_out(synthetic, shots=(0, 3), draws=1, members=2)
    assert set(table) == {0, 3} and set(table[0]) == {"model", *NAMES}
    assert table[3]["model"]["mae"]["all"] < table[0]["model"]["mae"]["all"]


def test_more_co_runners_are_never_better(fitted):
    items = [item for item in fitted.items if item.hardware == "k80"][:4]
    two, four = slowdowns(fitted, items[:2]), slowdowns(fitted, items)
    assert (four[:2] >= two - 1e-6).all() and (two >= 1).all()
    np.testing.assert_allclose(slowdowns(fitted, items[::-1])[::-1], four, rtol=1e-5)
    np.testing.assert_array_equal(slowdowns(fitted, items[:1]), 1.0)
