"""The strength of contention on a network is bounded from below by the cells, and the default is that bound."""

import itertools

import numpy as np
import pytest

from jaxsched.calibration.interference.fit import GRID, best_curve, fit_curves, gpu_strengths, least_strength
from jaxsched.calibration.interference.measurements import read_measurements
from jaxsched.cli.main import main
from jaxsched.dynamics.interference import CALIBRATION
from tests.support.interference_files import GPU_HEADER, NETWORK_HEADER, data_file


def cells(tmp_path, kappa, largest):
    shares = dict(zip("ABCDEFGH", np.linspace(0.05, largest, 8)))
    rows = [
        f"{a},8,{n},{b},8,2,{1 / (1 + kappa * shares[a] * shares[b]):.4f}\n"
        for a, b in itertools.product(shares, shares)
        for n in (2,)
    ]
    path = tmp_path / "cells.csv"
    path.write_text(NETWORK_HEADER + "".join(rows))
    return path


def test_finds_the_bound(tmp_path):
    (measured,) = read_measurements([cells(tmp_path, kappa=1.5, largest=0.99)])
    curves = fit_curves(measured, (0.5, 1.0, 1.5, 2.0), free=False)
    errors = [curve.mae for curve in curves]
    assert errors[0] > 3 * errors[2] and errors[1] > 2 * errors[2]  # too weak, however much the jobs communicate
    assert errors[3] < 1.5 * errors[2] + 0.005  # stronger with smaller shares explains them as well
    assert best_curve(measured).power >= 1.0


def test_the_default_comes_from_the_cells():
    (measured,) = read_measurements([data_file("deepshare-network")])
    curves = fit_curves(measured, GRID, free=False)
    assert least_strength(curves) == CALIBRATION["nic"].default == CALIBRATION["link"].default
    best = min(curve.mae for curve in curves)
    low = next(curve for curve in curves if curve.kappa == pytest.approx(CALIBRATION["nic"].low))
    assert 1.02 * best < low.mae < 1.04 * best


def test_strengths_on_one_gpu(tmp_path, capsys, monkeypatch):
    shared = {"k80": 1 / 1.8, "v100": 1 / 1.3}
    rows = [f"{gpu},A (batch size {b}),B,1,1,{x:.6f},{x:.6f}\n" for gpu, x in shared.items() for b in (1, 2)]
    path = tmp_path / "pairs.csv"
    path.write_text(GPU_HEADER + "".join(rows))
    found = gpu_strengths(read_measurements([path])[0])
    assert found["k80"] == (0.8, pytest.approx(0, abs=1e-6)) and found["v100"][0] == 0.3
    assert 0.3 <= found["all"][0] <= 0.8 and found["all"][1] > 0.1
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    main(["interference", "calibrate", "--data", str(path)])
    assert "k80" in capsys.readouterr().out


def test_the_default_on_one_gpu_comes_from_the_pairs():
    found = gpu_strengths(read_measurements([data_file("gavel-gpu-sharing")])[0])
    kappa = {name: strength for name, (strength, _) in found.items()}
    assert kappa.pop("all") == CALIBRATION["gpu"].default
    assert (min(kappa.values()), max(kappa.values())) == (CALIBRATION["gpu"].low, CALIBRATION["gpu"].high)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    main(["interference", "calibrate", "--data", str(cells(tmp_path, 1.0, 0.9))])
    assert "the weakest within 1% of the best" in capsys.readouterr().out
