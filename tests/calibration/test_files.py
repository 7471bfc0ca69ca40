"""Folders of fitted models: round trip, same bytes, and what is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxsched.calibration.interference.files import load_model, save_model
from jaxsched.calibration.interference.fit import fit
from jaxsched.calibration.interference.model import fit_references
from jaxsched.calibration.interference.validate import evaluate
from jaxsched.errors import UserError
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE
from tests.support.interference_files import QUICK

CARD = {"data": []}


@pytest.fixture(scope="module")
def folder(synthetic, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, [(fit(synthetic, settings=QUICK), fit_references(synthetic))], CARD)
    return folder


@pytest.mark.slow
def test_round_trip(synthetic, folder, tmp_path):
    loaded = load_model(folder)
    found = evaluate(loaded, synthetic)
    assert found["rows"] == synthetic.rows
    assert found["mae"]["all"] < 0.02 < found["references"]["additive"]["mae"]["all"]
    assert set(found["mae"]) == {"k80", "p100", "all"} == set(found["references"]["none"]["mape"])
    assert set(found["models"]) == {item.name for item in synthetic.items}
    part = loaded.parts["gpu"]
    save_model(tmp_path / "again", [(part, loaded.references["gpu"])], CARD)
    for name in (CARD_FILE, WEIGHTS_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert [path.name for path in sorted(folder.iterdir())] == [CARD_FILE, WEIGHTS_FILE]


def test_the_same_fit_gives_the_same_bytes(synthetic, folder, tmp_path):
    save_model(tmp_path / "b", [(fit(synthetic, settings=QUICK), fit_references(synthetic))], CARD)
    assert (tmp_path / "b" / WEIGHTS_FILE).read_bytes() == (folder / WEIGHTS_FILE).read_bytes()


def test_refused(synthetic, folder, tmp_path):
    with pytest.raises(UserError, match=r"no file card\.json"):
        load_model(tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    card = json.loads((folder / CARD_FILE).read_text())
    (broken / CARD_FILE).write_text(json.dumps(card | {"schema": 99}))
    (broken / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes())
    with pytest.raises(UserError, match="schema 99"):
        load_model(broken)
    (broken / CARD_FILE).write_text("nix")
    with pytest.raises(UserError, match="not a readable"):
        load_model(broken)
    (broken / CARD_FILE).write_text(json.dumps(card))
    loaded = load_model(broken)
    part = loaded.parts["gpu"]
    nan = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), part.parameters)
    save_model(broken, [(dataclasses.replace(part, parameters=nan), loaded.references["gpu"])], CARD)
    with pytest.raises(UserError, match="not finite"):
        load_model(broken)


def test_unknown_hardware_is_refused(synthetic, folder):
    loaded = load_model(folder)
    with pytest.raises(UserError, match="no measurement on 'v100'"):
        evaluate(loaded, _on(synthetic, "v100"))


def _on(measured, gpu):
    return dataclasses.replace(
        measured, items=tuple(dataclasses.replace(item, hardware=gpu) for item in measured.items)
    )
