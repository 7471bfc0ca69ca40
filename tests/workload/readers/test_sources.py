"""Every source of job logs: right values of small files of ours, of inputs that failed, and of published files."""

import csv
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import NotRead
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import gpu_types
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import ENDS
from jaxsched.workload.readers.simulators import RUN_S
from jaxsched.workload.readers.summary import details, understood
from jaxsched.workload.traces import FORMATS, fill_in, read_log, read_trace, write_log, write_native
from tests.workload.readers.cases import (
    CASES,
    GPUS,
    HEAD,
    ITP,
    NATIVE,
    OPENB,
    PAI,
    SACCT,
    SACCT_JSON,
    SPOT,
    SWF,
    write_case,
    written,
)


@pytest.mark.parametrize("name", CASES)
def test_right_values(name, tmp_path):
    path, case = write_case(tmp_path, name), CASES[name]
    log = read_log(path)
    assert log.source.name == name.partition(" ")[0] and log.skipped == case.left_out
    assert set(log.unread) == set(case.not_read.split())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRead)
        found, skipped = read_trace(path)
    assert skipped == case.left_out
    ends = [ENDS[code] for code in found.ended]
    rows = zip(found.job_id, found.submit_s, found.duration_s, found.num_gpus, ends, log.jobs["tenant"], found.user)
    for row, right in zip(rows, case.jobs, strict=True):
        assert row[0] == right[0] and row[3:] == right[3:]
        assert row[1:3] == pytest.approx(right[1:3], rel=1e-6)


def test_every_source_has_a_case():
    assert {source.name for source in FORMATS} == {name.partition(" ")[0] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_what_import_writes_reads_the_same(name, tmp_path):
    log = read_log(write_case(tmp_path, name))
    write_log(tmp_path / "trace.csv", log)
    again = read_log(tmp_path / "trace.csv")
    assert again.source.name == "native" and again.skipped == {}
    for field, column in log.jobs.items():
        if field == "submit_s":
            column = column - column[0] if log.dated or log.source.from_start else column
        if field not in ("workers", "gpus_per_worker"):
            assert np.array_equal(again.jobs[field], column, equal_nan=column.dtype.kind == "f"), field
    assert np.array_equal(again.jobs["workers"] * again.jobs["gpus_per_worker"], log.jobs["workers"])


@pytest.mark.parametrize(
    ("content", "field", "values"),
    [
        (NATIVE, "estimate_s", [300, 100]),
        (NATIVE, "estimate_ratio", [3, 1]),
        (SWF, "estimate_s", [600, 50]),
        (SWF.replace("8 600", "8 1e-10", 1), "estimate_s", [100, 50]),
        (SACCT, "estimate_s", [1800, 86400]),
        (SACCT.replace("1-00:00:00", "99999999-00:00:00"), "estimate_s", [1800, 7200]),  # a limit that is none
        (ITP, "due_s", [693, 2855]),
        (PAI, "milli", [250, 1000, 1000]),
        (OPENB, "milli", [1000, 500]),
    ],
)
def test_estimates_and_shares(content, field, values, tmp_path):
    log = read_log(written(tmp_path / "log", content))
    assert getattr(fill_in(log), field).tolist() == values
    write_log(tmp_path / "trace.csv", log)
    assert getattr(fill_in(read_log(tmp_path / "trace.csv")), field).tolist() == values


def test_estimates_stay_in_a_trace(tmp_path):
    write_native(tmp_path / "again.csv", read_trace(written(tmp_path / "log.csv", NATIVE))[0])
    assert read_trace(tmp_path / "again.csv")[0].estimate_s.tolist() == [300, 100]


def test_dates_of_every_usual_form(tmp_path):
    moments = ["2024-05-01T10:00:00+02:00", "2024-05-01T08:00Z", "2024-05-01 08:00", "2024-05-01T08:00:00.250+0000"]
    rows = "".join(f"{i},{moment},1,5\n" for i, moment in enumerate(moments))
    log = read_log(written(tmp_path / "log.csv", HEAD + rows))
    assert log.dated and (log.jobs["submit_s"] - 1714550400).tolist() == [0, 0, 0, 0.25]


# The inputs that failed: right values worked out by hand; (jobs, GPUs, run times, submit times, rows left out).
SHARED = Path(os.environ.get("JAXSCHED_CASES", Path(__file__).parents[4] / "shared/cases")) / "logs"
FAILED = {
    "acme_trace_seren.csv": (["5000001", "5000002"], [8, 8], [117, 2693], [0, 336], 1),
    "cluster_job_log.json": (["application_1500000000001_10001"], [2], [74 + 20382], [0], 2),
    "helios_cluster_log.csv": (["100001", "100002", "100005"], [1, 4, 8], [36848, 249, 3600], [0, 26, 147], 2),
    "n_iso.csv": (["a", "b"], [1, 1], [100, 100], [0, 1800], 0),
    "n_zero_cancel.csv": (["b"], [1], [100], [5], 1),
    "n_zero_gpu.csv": (["b"], [1], [100], [5], 1),
    "native.csv.gz": (["a"], [1], [100], [0], 0),
    "openb_cpu.csv": (["pod-a", "pod-b"], [1, 1], [3600, 3600], [0, 0], 0),
    "openb_gpu_spec.csv": (["pod-a", "pod-b", "pod-c"], [1, 1, 1], [3600] * 3, [0, 10, 20], 0),
    "philly_raw_like.csv": (["0"], [2], [240], [0], 2),
    "sacct.csv": (["1001"], [2], [7200], [0], 3),
    "tiresias_known_models.csv": (["0", "1", "2"], [1, 8, 2], [164, 1470, 12700], [0, 30, 53], 0),
}


@pytest.mark.parametrize("name", FAILED)
def test_inputs_that_failed(name):
    if not (SHARED / name).is_file():
        pytest.skip("needs ../shared/cases (or JAXSCHED_CASES)")
    log = read_log(SHARED / name)
    jobs = fill_in(log)
    names, gpus, run_s, submit_s, left_out = FAILED[name]
    assert jobs.job_id.tolist() == names and jobs.num_gpus.tolist() == gpus
    assert jobs.duration_s.tolist() == run_s and jobs.submit_s.tolist() == submit_s
    assert sum(log.skipped.values()) == left_out


def test_sources_that_name_gpu_types_bind_jobs_to_them(tmp_path):
    openb, spot = tmp_path / "openb.csv", tmp_path / "spot.csv"
    openb.write_text(OPENB)
    spot.write_text(SPOT)
    jobs = fill_in(read_log(openb))
    assert jobs.allowed.tolist() == ["V100M32", "A10|T4"]
    assert jobs.cpu_milli.tolist() == [4000, 4000] and jobs.memory_mib.tolist() == [16384, 16384]
    log = read_log(spot)
    assert fill_in(log).allowed.tolist() == ["A10", "A100-SXM4-80GB", "A100-SXM4-80GB"]
    found = understood(log, fill_in(log))
    assert found["bound_to_gpu_types"] == {"A100-SXM4-80GB": 2, "A10": 1}
    assert any("3 jobs to GPU types (A100-SXM4-80GB 2, A10 1)" in line for line in details(found))
    write_log(tmp_path / "trace.csv", log)
    assert read_log(tmp_path / "trace.csv").jobs["allowed"].tolist() == log.jobs["allowed"].tolist()


def test_types_that_slurm_jobs_asked_for_bind_them(tmp_path):
    """Before: said to be unread. One that a job got without asking binds nobody, and that is said."""
    asked = SACCT.replace("|cpu=8,gres/gpu=2|", "|cpu=8,gres/gpu:a100=1,gres/gpu:v100=1|")
    log = read_log(written(tmp_path / "log.csv", asked))
    assert log.jobs["allowed"].tolist() == ["", "a100|v100"] and [*log.notes.values()] == [1]
    assert "of a type that they did not ask for" in next(iter(log.notes))
    jobs = json.loads(SACCT_JSON)
    jobs["jobs"][0]["tres"]["requested"] = [GPUS | {"name": "gpu:a100_3g.20gb"}]
    log = read_log(written(tmp_path / "log.json", json.dumps(jobs)))
    assert log.jobs["allowed"].tolist() == ["a100_3g.20gb", ""]
    servers = [Server(gpu_type=kind) for kind in ("V100", "A100", "A100 3/7")]
    speeds = {"V100": 1.0, "A100": 2.06, "A100 3/7": 0.88}
    cluster = build(servers, leaf_spine(3), 1, speeds)
    (run,) = simulate(parse_all(["pack"]), cluster, [fill_in(log)], Settings(record_placements=True))["pack"]
    assert gpu_types(run, cluster, 0) == "A100 3/7"


def counted(path: Path) -> int:
    return len(path.read_text().strip().splitlines()) - 1


def test_real_itp_and_pollux():
    """As many jobs as the files have lines; unknown models and applications are said."""
    data = Path(os.environ.get("JAXSCHED_DATA", Path(__file__).parents[4] / "shared/data")) / "adaptive"
    if not data.is_dir():
        pytest.skip("needs ../shared/data")
    itp = sorted((data / "itp").glob("*.csv"))
    pollux = sorted([*data.glob("pollux/workloads-*/*.csv"), *data.glob("sia/workloads/*/*.csv")])
    assert itp and pollux
    for path in itp:
        log = read_log(path)
        assert log.source.name == "itp" and len(log.jobs["job_id"]) == counted(path) and log.skipped == {}
        assert all("inception3" in note for note in log.notes)
    for path in pollux:
        log = read_log(path)
        assert log.source.name == "pollux" and len(log.jobs["job_id"]) + sum(log.skipped.values()) == counted(path)
        assert sum(log.skipped.values()) == path.read_text().count(",gpt_pmp,")


def test_pollux_run_times_are_those_it_published():
    """Tiresias' completion times at load 0.5 are never shorter than the run time, but for gangs of 8; some equal it."""
    data = Path(os.environ.get("JAXSCHED_DATA", Path(__file__).parents[4] / "shared/data")) / "adaptive/pollux"
    if not data.is_dir():
        pytest.skip("needs ../shared/data")
    asked = {}
    for number in (1, 2, 3, 4):
        with (data / f"workloads-0.5/workload-{number}.csv").open() as file:
            for row in csv.DictReader(file):
                kind = (row["application"], int(row["num_replicas"]), int(row["batch_size"]))
                asked[f"workload-{number}", row["name"]] = kind
    least: dict = {}
    with (data / "results_per_job.csv").open() as file:
        for row in csv.DictReader(file):
            if row["run"] == "tiresias-0.5":
                app, gpus, batch = asked[row["workload"], row["job"]]
                more = float(row["jct_s"]) - RUN_S[app][gpus, batch]
                least[app, gpus] = min(more, least.get((app, gpus), 1e9))
    assert len(least) > 8
    assert all(30 <= more <= 64 for (_, gpus), more in least.items() if gpus != 8)
