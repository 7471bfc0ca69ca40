"""Folders of weights and a card: as written, so read; the same content, the same bytes; every fault is one line."""

import subprocess
import sys

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.io import cards
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE

WEIGHTS = {"b": np.arange(3, dtype=np.float32), "a": {"x": np.ones((2, 2), np.float32)}}


@pytest.fixture
def folder(tmp_path):
    cards.write(tmp_path / "deep" / "it", "toy", WEIGHTS, {"rows": 3, "data": ["x"]})
    return tmp_path / "deep" / "it"


def test_as_written_so_read(folder):
    weights, card = cards.read(folder, "toy")
    np.testing.assert_array_equal(weights["b"], WEIGHTS["b"])
    np.testing.assert_array_equal(weights["a"]["x"], WEIGHTS["a"]["x"])
    assert card == cards.read_card(folder, "toy") and {"jaxsched", "jax", "cpu", "device"} <= set(card["versions"])
    assert {name: card[name] for name in ("what", "schema", "rows")} == {"what": "toy", "schema": 1, "rows": 3}
    assert sorted(path.name for path in folder.iterdir()) == [CARD_FILE, WEIGHTS_FILE]


def test_the_same_content_gives_the_same_bytes(folder, tmp_path):
    cards.write(tmp_path / "b", "toy", dict(reversed(WEIGHTS.items())), {"data": ["x"], "rows": 0})
    assert (tmp_path / "b" / CARD_FILE).read_bytes() != (folder / CARD_FILE).read_bytes()
    cards.update(tmp_path / "b", "toy", rows=3)
    for name in (CARD_FILE, WEIGHTS_FILE):
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()


def test_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"other .*: card\.json is of 'toy', should be of 'other'"):
        cards.read(folder, "other")
    with pytest.raises(UserError, match=r"toy .*: no file card\.json; name a folder that has one"):
        cards.update(tmp_path, "toy", rows=1)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match=r"toy .*: no file weights\.msgpack"):
        cards.read(folder, "toy")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"toy .*file/it: cannot be written: Not a directory"):
        cards.write(tmp_path / "file" / "it", "toy", WEIGHTS, {})


def test_versions_are_found_without_jax_until_asked_for():
    check = "import sys, jaxsched.machine; print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.strip() == "False"
