"""Step times by placement: readers, the model by hand, what it learns, and what it refuses."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.calibration.step_time import (
    PLACEMENT_COLUMNS,
    SCALABILITY_COLUMNS,
    StepTimes,
    cross_validate,
    extrapolate,
    fit_step_times,
    predict_step_s,
    read_step_times,
    step_s,
)
from jaxsched.cli.main import main
from jaxsched.errors import UserError

PLACEMENTS, SCALABILITY = ",".join(PLACEMENT_COLUMNS) + "\n", ",".join(SCALABILITY_COLUMNS) + "\n"
KINDS = ["1", "2", "3", "4", "11", "12", "22", "24", "44", "111", "122", "222", "444", "1111", "2222", "3344", "4444"]


def test_reads_both_formats(tmp_path):
    (tmp_path / "a.csv").write_text(PLACEMENTS + "m,1143,8,0.5,0.1\n")
    (tmp_path / "b.csv").write_text(SCALABILITY + "m,4,10,8,0.6,0.1\n")
    times = read_step_times([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert times.placement.tolist() == ["1+1+3+4", "2+2+3+3"]
    assert [array.tolist() for array in times.spread] == [[4, 4], [9, 10], [4, 3]]
    assert times.step_s.tolist() == [0.5, 0.6] and times.batch.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("model,place\n", "line 1: the header"),
        (PLACEMENTS, "no measurement"),
        (PLACEMENTS + "m,1103,8,0.5,0.1\n", "line 2, placement: '1103' should be"),
        (PLACEMENTS + "m,11,8,0,0.1\n", "line 2, step_time_s: '0' should be a finite number > 0"),
        (PLACEMENTS + "m,11,8,1,-0.1\n", "line 2, sync_time_s: '-0.1'"),
        (SCALABILITY + "m,4,3,8,1,0.1\n", "line 2, gpus: '3' should be at least the number of nodes, 4"),
    ],
)
def test_refused(tmp_path, text, wanted):
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_step_times([path])
    assert str(path) in str(error.value) and wanted in str(error.value)


def parameters(net=0.3, pcie=0.01, straggle=1e-6, gamma=1.0):
    raw = {"net": np.log(net), "pcie": np.log(pcie), "straggle": np.log(straggle)}
    raw["overlap"] = np.log(np.expm1(max(gamma - 1.0, 1e-6)))
    return {name: jnp.full(1, value, jnp.float32) for name, value in raw.items()}


def one(placement, compute=1.0, **values):
    gpus = list(map(int, placement))
    shape = (jnp.array([x], jnp.int32) for x in (len(gpus), sum(gpus), max(gpus)))
    return float(step_s(parameters(**values), jnp.zeros(1, int), jnp.array([compute]), *shape)[0])


def test_by_hand():
    assert one("1") == 1.0
    assert one("2") == pytest.approx(1 + 1.0 * 0.01, rel=1e-5)  # b = 2 (n-1)/n = 1
    assert one("11") == pytest.approx(1 + 1.0 * 0.3, rel=1e-5)
    assert one("22") == pytest.approx(1 + 1.5 * 0.31, rel=1e-5)
    assert one("1111") == pytest.approx(1 + 1.5 * 0.15, rel=1e-5)  # two pairs of neighbours
    assert one("11", straggle=0.1) == pytest.approx(1.1 + 0.3, rel=1e-5)
    assert one("11", net=1.0, gamma=2.0) == pytest.approx(2**0.5, rel=1e-4)  # overlap


def synthetic():
    rng = np.random.default_rng(0)
    rows = []
    for name, net, gamma in (("a", 0.3, 1.2), ("b", 0.05, 1.0)):
        for batch in (8, 16, 32):
            for placement in KINDS:
                exact = one(placement, compute=0.01 * batch + 0.02, net=net, gamma=gamma, straggle=0.02)
                rows.append((name, batch, "+".join(placement), exact * np.exp(0.01 * rng.normal())))
    return StepTimes(*map(np.array, zip(*rows)))


@pytest.mark.long
def test_learns_what_is_there():
    times = synthetic()
    for table in (cross_validate(times), extrapolate(times)):
        assert table["model"]["median"]["all"] < 0.03
        assert table["model"]["median"]["all"] < 0.3 * table["mean"]["median"]["all"]
    fitted = fit_step_times(times)
    again = fit_step_times(times)
    assert all(np.array_equal(fitted.parameters[name], again.parameters[name]) for name in fitted.parameters)
    # a batch size that was not measured lies between its neighbours
    between = StepTimes(np.array(["a"] * 3), np.array([16, 24, 32]), np.array(["1+1"] * 3), np.ones(3))
    assert (np.diff(predict_step_s(fitted, between)) > 0).all()


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    times = synthetic()
    lines = [
        f"{m},{p.replace('+', '')},{b},{s},0\n"
        for m, b, p, s in zip(times.model, times.batch, times.placement, times.step_s)
    ]
    (tmp_path / "data.csv").write_text(PLACEMENTS + "".join(lines))
    data, out = str(tmp_path / "data.csv"), str(tmp_path / "model")
    main(["placement", "fit", "--data", data, "--out", out, "--max-nodes", "2"])
    main(["placement", "evaluate", "--model", out, "--data", data, "--min-nodes", "3", "--json", f"{out}/e.json"])
    found = json.loads((tmp_path / "model" / "e.json").read_text())
    assert found["rows"] == 6 * sum(len(kind) > 2 for kind in KINDS)
    assert found["median"]["all"] < 0.03 < found["references"]["mean"]["median"]["all"]
    assert set(found["mape"]) == {"a", "b", "all"}
    with pytest.raises(SystemExit) as end:
        main(["placement", "evaluate", "--model", out, "--data", data, "--min-nodes", "9"])
    assert end.value.code == 2 and "1 to 4 nodes" in capsys.readouterr().err
