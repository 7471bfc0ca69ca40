"""The shipped model: there, within its bounds, and rebuilt bit for bit from the data."""

import json
from itertools import pairwise

import numpy as np
import pytest

from jaxsched.calibration.interference.files import load_model
from jaxsched.calibration.interference.fit import catalogue_item, slowdowns
from jaxsched.cli.main import main
from jaxsched.io.cards import CARD_FILE, WEIGHTS_FILE, shipped_folder
from jaxsched.machine import versions
from jaxsched.workload.models import MODEL_NAMES
from tests.support.interference_files import data_file


def test_every_model_of_the_catalogue_has_a_slowdown_on_every_gpu():
    part = load_model("fitted").parts["gpu"]
    for gpu in ("k80", "p100", "v100"):
        items = [catalogue_item(part, i, gpu)[0] for i in range(len(MODEL_NAMES))]
        known = [catalogue_item(part, i, gpu)[1] for i in range(len(MODEL_NAMES))]
        assert known.count("measured") == 4
        both = np.array([slowdowns(part, [a, b]) for a, b in pairwise(items)])
        assert (both >= 1).all() and (both < 30).all()


def test_small_and_without_pickle():
    folder = shipped_folder("interference")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    card = json.loads((folder / CARD_FILE).read_text())
    assert {row["licence"] for row in card["data"]} == {"MIT", "Apache-2.0"}


def same_machine(card):
    here = versions()
    return all(card["versions"][name] == here[name] for name in ("jax", "flax", "cpu", "device"))


@pytest.mark.slow
def test_rebuilt_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    folder = shipped_folder("interference")
    files = [str(data_file(name)) for name in ("gavel-gpu-sharing", "deepshare-network")]
    if not same_machine(json.loads((folder / CARD_FILE).read_text())):
        pytest.skip("built on another kind of machine, or with other versions")
    main(["interference", "fit", "--data", *files, "--out", str(tmp_path / "interference")])
    assert (tmp_path / "interference" / WEIGHTS_FILE).read_bytes() == (folder / WEIGHTS_FILE).read_bytes()
    old, new = (json.loads((one / CARD_FILE).read_text()) for one in (folder, tmp_path / "interference"))
    assert new | {"versions": old["versions"]} == old
