"""What became of every job: the same in CSV, Parquet and a data frame."""

import csv
from pathlib import Path

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.presets import get_cluster
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse_all
from jaxsched.simulation import outcome
from jaxsched.simulation.outcome import JOB_COLUMNS, Outcome, check_jobs_file, write_jobs
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.load import WorkloadOptions, get_workload


@pytest.fixture(scope="module")
def cluster():
    return get_cluster("leaf-spine-1", 1)


@pytest.fixture(scope="module")
def result(cluster) -> Outcome:
    """Two jobs that finish and one that fits nowhere."""
    jobs = make_job_list([0.0, 30.0, 40.0], [100.0, 200.0, 300.0], [1, 4, 16])
    ((found,),) = simulate(parse_all(["pack"]), cluster, [jobs], Settings(record_placements=True)).values()
    return found


def test_it_says_where_a_job_ran_who_handed_it_on_and_when_the_input_says_it_came(tmp_path):
    mixed = build([Server(), Server(gpu_type="A100")], leaf_spine(2), 2)
    lines = [f"job-{i},{1000 + i},8,600,0,lab{i},u{i}" for i in range(2)]  # both are given to the first scheduler
    header = "job_id,submit_time_s,num_gpus,duration_s,home,tenant,user"
    (tmp_path / "trace.csv").write_text("\n".join([header, *lines, ""]))
    jobs, _ = get_workload(tmp_path / "trace.csv", WorkloadOptions(load=100.0, total_gpus=16))
    settings = Settings(record_placements=True, engine="compiled")
    ((found,),) = simulate(parse_all(["pack:forward"]), mixed, [jobs], settings).values()
    columns = outcome.job_columns(found, mixed)
    assert columns["given_submit_s"].tolist() == [1000.0, 1001.0] and columns["submit_s"].tolist() == [0.0, 6.0]
    assert columns["scheduler"].tolist() == columns["forwards"].tolist() == [0, 1]
    assert columns["gpu_type"].tolist() == ["V100", "A100"]
    assert columns["tenant"].tolist() == ["lab0", "lab1"] and columns["user"].tolist() == ["u0", "u1"]
    write_jobs(tmp_path / "jobs.csv", found, mixed)
    assert [row["user"] for row in csv.DictReader((tmp_path / "jobs.csv").open())] == ["u0", "u1"]


@pytest.mark.slow
def test_parquet_holds_what_csv_holds(result, cluster, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra tables")
    write_jobs(tmp_path / "jobs.csv", result, cluster)
    write_jobs(tmp_path / "jobs.parquet", result, cluster)
    rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
    found = parquet.read_table(tmp_path / "jobs.parquet").to_pylist()
    assert tuple(found[0]) == JOB_COLUMNS and len(found) == len(rows) == 3
    for row, other in zip(rows, found, strict=True):
        for name in JOB_COLUMNS:
            if isinstance(other[name], float):
                assert float(row[name]) == pytest.approx(other[name], abs=1e-6)
            else:
                assert row[name] == ("" if other[name] is None else str(other[name]))
    assert found[2]["jct_s"] is None and found[2]["scheduler"] is None and found[2]["status"] == "rejected"


@pytest.mark.slow
def test_a_data_frame_has_a_line_per_job(result, cluster):
    pytest.importorskip("pandas", reason="needs the extra tables")
    frame = result.to_pandas(cluster)
    assert list(frame.columns) == list(JOB_COLUMNS[1:]) and list(frame.index) == result.jobs.job_id.tolist()
    np.testing.assert_array_equal(frame["jct_s"], result.jct_s)
    assert frame["placement"].iloc[1].count(":") == 2 and frame["placement"].iloc[2] == ""
    assert (result.to_pandas()["placement"] == "").all()


@pytest.mark.slow
def test_without_the_packages_the_message_says_what_to_install(result, monkeypatch):
    monkeypatch.setattr(outcome.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs pandas; install the extra: pip install 'jaxsched\[tables\]'"):
        result.to_pandas()
    with pytest.raises(UserError, match=r"jobs.parquet: Parquet needs pyarrow"):
        check_jobs_file(Path("jobs.parquet"))
    check_jobs_file(Path("jobs.csv"))
