"""`jaxsched interference`: what it writes, and mistakes in one line."""

import json

import pytest

from jaxsched.cli.main import main
from tests.support.commands import refused
from tests.support.interference_files import GPU_HEADER, NETWORK_HEADER

PAIRS = GPU_HEADER + "v100,ResNet-18 (batch size 64),LM (batch size 20),10,20,8,12\nk80,A3C,CycleGAN,1,1,0.5,0.6\n"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


def test_evaluate_writes_the_errors(tmp_path):
    (tmp_path / "pairs.csv").write_text(PAIRS)
    main(["interference", "evaluate", "--data", str(tmp_path / "pairs.csv"), "--json", str(tmp_path / "e.json")])
    found = json.loads((tmp_path / "e.json").read_text())
    assert (found["rows"], found["ratios"], found["fitted_to_it"]) == (2, 4, False)
    assert set(found["mae"]) == set(found["mape"]) == {"k80", "v100", "all"}
    assert set(found["references"]) == {"none", "constant", "additive", "completion"}
    assert set(found["models"]) == {"ResNet-18 (batch size 64)", "LM (batch size 20)", "A3C", "CycleGAN"}
    assert found["references"]["none"]["mae"]["k80"] == pytest.approx(0.45)


def test_predict(tmp_path, capsys):
    jobs = ["ResNet-18 (batch size 64)", "ResNet-50 (batch size 48)", "vgg16"]
    main(["interference", "predict", *jobs, "--gpu", "P100", "--json", str(tmp_path / "p.json")])
    found = json.loads((tmp_path / "p.json").read_text())
    assert [row["known"] for row in found["jobs"]] == ["measured", "family", "prior"]
    assert all(row["slowdown"] > 1 for row in found["jobs"])
    main(["interference", "predict", *jobs[:2], "--gpu", "p100", "--json", str(tmp_path / "two.json")])
    two = json.loads((tmp_path / "two.json").read_text())
    assert all(a["slowdown"] < b["slowdown"] for a, b in zip(two["jobs"], found["jobs"]))


def test_mistakes(tmp_path, capsys):
    (tmp_path / "net.csv").write_text(NETWORK_HEADER + "A,8,2,B,4,4,0.7\n")
    (tmp_path / "bad.csv").write_text(PAIRS + "k80,A3C,CycleGAN,1,0,0.5,0.6\n")
    bad = tmp_path / "bad.csv"
    assert "bad.csv, line 4, solo_b: '0' should be" in refused(capsys, "interference", "evaluate", "--data", bad)
    assert "bad.csv, line 4" in refused(capsys, "interference", "fit", "--data", bad, "--out", tmp_path / "m")
    assert "no/such.csv: no such file" in refused(capsys, "interference", "evaluate", "--data", "no/such.csv")
    assert "no file card.json" in refused(
        capsys, "interference", "evaluate", "--model", tmp_path, "--data", tmp_path / "net.csv"
    )
    assert "should be one of k80, p100, v100" in refused(
        capsys, "interference", "predict", "A3C", "A3C", "--gpu", "a100"
    )
    assert "unknown model 'nix'" in refused(capsys, "interference", "predict", "A3C", "nix")
    assert "at least two models" in refused(capsys, "interference", "predict", "A3C")
    assert "does not exist" in refused(capsys, "interference", "fit", "--data", bad, "--out", tmp_path / "no" / "m")
    assert not (tmp_path / "m").exists()
