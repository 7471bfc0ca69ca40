"""Readers: what they read, and what they refuse with file, line and reason."""

import json

import pytest

from jaxsched.calibration.interference.measurements import GPU, NETWORK, read_measurements
from jaxsched.errors import DoubtfulFile, UserError
from tests.support.interference_files import GPU_HEADER, NETWORK_HEADER, data_file


def refused(path) -> str:
    with pytest.raises(UserError) as error:
        read_measurements([path])
    said = str(error.value)
    assert str(path) in said and "\n" not in said
    return said


def test_pairs_on_a_gpu(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(GPU_HEADER + "k80,A (batch size 4),B,2,10,1,4\nk80,B,B,10,10,5,5\n")
    (found,) = read_measurements([path])
    assert (found.kind, found.rows, len(found.ratio)) == (GPU, 2, 3)  # a model beside itself is one measurement
    assert [item.name for item in found.items] == ["A (batch size 4)", "B"]
    assert [item.family for item in found.items] == ["A", "B"]
    assert found.items[0].scale == (2.0,) and found.items[0].profile == (2.0, -1.0)
    assert found.ratio.tolist() == [0.5, 0.4, 0.5]
    assert found.victim.tolist() == [0, 1, 1] and found.aggressor.tolist() == [1, 0, 1]
    assert found.row.tolist() == [0, 0, 1]


def test_throughputs_of_other_units_are_told(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(GPU_HEADER + "k80,A,B,1,1,0.5,50\n")
    with pytest.warns(DoubtfulFile, match=r"line 2, shared_b: '50' should be at most 10 times solo_b"):
        read_measurements([path])


def test_cells_of_a_network_and_several_files(tmp_path):
    (tmp_path / "net.csv").write_text(NETWORK_HEADER + "A,8,2,B,4,4,0.75\n")
    (tmp_path / "gpu.csv").write_text(GPU_HEADER + "v100,A,B,1,1,0.5,0.5\n")
    gpu, network = read_measurements([tmp_path / "net.csv", tmp_path / "gpu.csv", tmp_path / "net.csv"])
    assert (gpu.kind, network.kind, network.rows) == (GPU, NETWORK, 2)
    assert [item.name for item in network.items] == ["A 8x2", "B 4x4"]
    assert network.items[0].scale == (3.0, 1.0) and network.ratio.tolist() == [0.75, 0.75]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "empty"),
        (GPU_HEADER, "no measurement"),
        ("gpu,model_a,model_b\nk80,A,B\n", "line 1: the header"),
        (GPU_HEADER.replace("solo_a", "alone_a"), "line 1: the header"),
        (GPU_HEADER + "k80,A,B,1,1,0.5,0\n", "line 2, shared_b: '0' should be a finite number > 0"),
        (GPU_HEADER + "k80,A,B,1,1,0.5,0.5\nk80,A,B,-1,1,0.5,0.5\n", "line 3, solo_a: '-1'"),
        (GPU_HEADER + "k80,A,B,1,1,nan,0.5\n", "line 2, shared_a: 'nan'"),
        (GPU_HEADER + "a100,A,B,1,1,0.5,0.5\n", "line 2, gpu_type: 'a100' should be one of k80, p100, v100"),
        (GPU_HEADER + "k80,,B,1,1,0.5,0.5\n", "line 2, model_a"),
        (GPU_HEADER + "k80,A,B,1,1,0.5\n", "line 2: 6 cells"),
        (NETWORK_HEADER + "A,8,2,B,4,4,0\n", "line 2, throughput_ratio: '0'"),
        (NETWORK_HEADER + "A,8,2,B,4,4,95.6\n", "should be at most 2: a share of the throughput alone, 0.9 and not 90"),
        (NETWORK_HEADER + "A,8,2,B,4.5,4,0.9\n", "line 2, aggressor_gpus: '4.5'"),
    ],
)
def test_refused(tmp_path, text, wanted):
    path = tmp_path / "data.csv"
    path.write_text(text)
    assert wanted in refused(path)


def test_missing(tmp_path):
    assert "no such file" in refused(tmp_path / "nix.csv")
    assert "no such file" in refused(tmp_path / "nix.json")


def gavel(**changes):
    a, b = "('A (batch size 4)', 1)", "('B', 1)"
    table = {
        a: {"null": 2.0, b: [1.0, 4.0], "('A (batch size 4)', 1)": [0.0, 0.0]},
        b: {"null": 10.0, a: [4.0, 1.0]},
        "('A (batch size 4)', 2)": {"null": 3.5},
    }
    return {"k80": table, "k80_unconsolidated": table} | changes


def test_upstream_json(tmp_path):
    path = tmp_path / "throughputs.json"
    path.write_text(json.dumps(gavel()))
    (found,) = read_measurements([path])
    assert (found.kind, found.rows) == (GPU, 1)
    assert sorted(found.ratio.tolist()) == [0.4, 0.5]
    assert [item.name for item in found.items] == ["A (batch size 4)", "B"]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("{\n nix", "line 2: is not JSON"),
        ("[]", "should map GPU types"),
        (json.dumps(gavel(a100={})), "unknown GPU 'a100'"),
        (json.dumps({"k80": {"('A', 1)": {"null": 0.0}}}), "('A', 1), null: 0.0 should be a finite number > 0"),
        (
            json.dumps({"k80": {"('A', 1)": {"null": 1.0, "('B', 1)": [0.5, -1]}, "('B', 1)": {"null": 1.0}}}),
            "('B', 1): -1 should be a finite number > 0",
        ),
    ],
)
def test_json_refused(tmp_path, content, wanted):
    path = tmp_path / "throughputs.json"
    path.write_text(content)
    assert wanted in refused(path)


def test_the_real_files():
    gpu, network = read_measurements([data_file("gavel-gpu-sharing"), data_file("deepshare-network")])
    assert (gpu.rows, network.rows) == (781, 720)
    assert sorted({item.hardware for item in gpu.items}) == ["k80", "p100", "v100"]
    assert len({item.family for item in network.items}) == 6
