"""Which source a log is of, how its file may be packed and written, and what is said of what was understood."""

import datetime
import gzip
import io
import json
import sys
import warnings

import numpy as np
import pytest

from jaxsched.errors import NotRead, UserError
from jaxsched.workload.readers import table
from jaxsched.workload.readers.summary import details, headline, understood
from jaxsched.workload.traces import FORMATS, fill_in, read_log, read_trace
from tests.workload.readers.cases import CASES, HELIOS, ITP, SACCT, WITH_HEADER, assert_same_jobs, write_case, written


def test_schemas_do_not_contradict_themselves():
    for source in FORMATS:
        used = (*source.needs, *source.uses)
        assert len(set(used)) == len(used) and set(used).isdisjoint(source.passes), source.name
        assert source.about and (source.needs or source.bare or source.rows)


@pytest.mark.parametrize("name", CASES)
def test_unread_columns_are_said_once(name, tmp_path):
    path = write_case(tmp_path, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_trace(path)
    told = [str(one.message) for one in caught if one.category is NotRead]
    log, unread = read_log(path), CASES[name].not_read.split()
    if not unread and not log.notes and np.isnan(log.jobs["estimate_s"]).all():
        assert told == []
        return
    assert len(told) == 1 and told[0].startswith(str(path)) and "\n" not in told[0]
    assert all(column in told[0] for column in unread)


@pytest.mark.parametrize("name", WITH_HEADER)
def test_an_unknown_column_is_named(name, tmp_path):
    lines = CASES[name].content.splitlines()
    mark = "|" if name == "slurm" else ","
    wider = "".join(f"{line}{mark}{'nodes_2' if i == 0 else i}\n" for i, line in enumerate(lines))
    path = written(tmp_path / "log.csv", wider)
    if name in ("tiresias", "muri"):  # now either may be meant
        with pytest.raises(UserError, match=r"--format tiresias .* or --format muri"):
            read_log(path)
        log = read_log(path, format=name)
    else:
        log = read_log(path)
    assert log.source.name == name and "nodes_2" in log.unread
    told = details(understood(log, fill_in(log)))
    assert [line for line in told if line.startswith("  not read") and "nodes_2" in line]


@pytest.mark.parametrize("name", ["slurm as JSON", "philly-log"])
def test_an_unknown_key_is_named(name, tmp_path):
    value = json.loads(CASES[name].content)
    (value["jobs"] if isinstance(value, dict) else value)[0]["weather"] = "fine"
    assert "weather" in read_log(written(tmp_path / "log.json", json.dumps(value))).unread


def test_what_is_understood_is_said(tmp_path):
    log = read_log(written(tmp_path / "log.csv", SACCT))
    found = understood(log, fill_in(log), 16)
    assert headline(found).startswith("a trace, format slurm, of 2 jobs, 1 row left out (a step of another job), ")
    text = "\n".join(details(found))
    assert "not read  JobName, Partition, NNodes" in text and "UTC where they name no zone" in text
    assert "2025-01-01 09:59:00 UTC to 2025-01-01 10:00:00 UTC, 60 s" in text
    assert "4.2 GPU hours" in text and "widest gang 6 GPUs" in text and "1 completed, 1 failed" in text
    assert "2 (lab1 96%, lab2 4% of the GPU time); 2 users" in text and "what users asked for, of 2 jobs" in text
    # 2 * 7200 + 6 * 90 GPU seconds in 60 s
    assert found["gpus_busy"] == 249 and found["offered_load"] == 249 / 16 and "load 15.6 on 16 GPUs" in text
    json.dumps(found, allow_nan=False)


def test_many_unknown_models_are_told_in_short(tmp_path):
    """The work does not grow with their number times that of the rows, nor does what is said."""
    rows = "".join(f"j{i},{i},1,mine{i:05},99999,32,1,60\n" for i in range(20_000))
    log = read_log(written(tmp_path / "log.csv", ITP.partition("\n")[0] + "\n" + rows))
    assert len(log.notes) == 20_000 and set(log.notes.values()) == {1}
    notes = details(understood(log, fill_in(log)))[-11:]
    assert "the model 'mine00000' is not known" in notes[0] and notes[-1].endswith("19,990 notes more")


def test_formats_that_look_alike_are_asked_for(tmp_path):
    path = written(tmp_path / "log.csv", "job_id,num_gpu,submit_time,model_name,duration\n1,1,1000,vgg16,5000\n")
    with pytest.raises(UserError, match=r"tiresias and muri; say which, with --format tiresias .* or --format"):
        read_log(path)
    assert read_log(path, format="muri").jobs["duration_s"].tolist() == [5]
    assert read_log(path, format="tiresias").jobs["duration_s"].tolist() == [5000]
    with pytest.raises(UserError, match="line 1: has no column JobID, Submit, State as Slurm's sacct has them"):
        read_log(path, format="slurm")
    with pytest.raises(UserError, match="line 1: is no line of cells as the Standard Workload Format has them"):
        read_log(path, format="swf")
    with pytest.raises(UserError, match="--format: unknown 'murj', should be one of native, slurm"):
        read_log(path, format="murj")


def test_a_long_header(tmp_path):
    """It has no comma, so where commas stand between cells it would be one that is too long to be read."""
    names = "".join(f"|a_column_of_ours_{i}" for i in range(400))
    lines = [f"{line}{names if i == 0 else '|' * 400}\n" for i, line in enumerate(SACCT.splitlines())]
    assert read_log(written(tmp_path / "log", "".join(lines))).jobs["job_id"].tolist() == ["4_1", "1"]


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(HELIOS.encode()),
        HELIOS.replace(",", "\t"),
        HELIOS.replace(",", ";"),
        b"\xef\xbb\xbf" + HELIOS.replace("\n", "\r\n").encode(),
        HELIOS.replace("uA", '"uA"'),
    ],
    ids=["gzip", "tabs", "semicolons", "Windows", "quotes"],
)
def test_packing_and_separators(content, tmp_path):
    right = read_log(written(tmp_path / "log.csv", HELIOS))
    assert_same_jobs(right, read_log(written(tmp_path / "log", content)))


def test_standard_input(tmp_path, monkeypatch):
    right = read_log(written(tmp_path / "log.csv", HELIOS))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(HELIOS.encode()))))
    assert_same_jobs(right, read_log("-"))


def test_bars_at_the_end_of_lines(tmp_path):
    """`sacct -p`, and names with quotes, which mean nothing there."""
    text = "".join(f"{line}|\n" for line in SACCT.splitlines())
    assert read_log(written(tmp_path / "log.csv", text)).jobs["job_id"].tolist() == ["4_1", "1"]


def test_what_needs_pyarrow_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    for content, what in ((b"PAR1abc", "Parquet"), (b"\x28\xb5\x2f\xfdabc", "zstd")):
        with pytest.raises(UserError, match=rf"log: {what} needs pyarrow; install the extra, pip install"):
            read_log(written(tmp_path / "log", content))


def test_parquet_and_zstd(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    from pyarrow import csv, parquet

    table = csv.read_csv(io.BytesIO(HELIOS.encode()))  # with dates and numbers of its own types
    parquet.write_table(table, tmp_path / "log.parquet")
    with pyarrow.CompressedOutputStream(str(tmp_path / "log.csv.zst"), "zstd") as file:
        file.write(HELIOS.encode())
    right = read_log(written(tmp_path / "log.csv", HELIOS))
    for name in ("log.parquet", "log.csv.zst"):
        assert_same_jobs(right, read_log(tmp_path / name))
    for content, wrong in ((b"PAR1abc", "is no Parquet that"), (b"\x28\xb5\x2f\xfdabc", "is damaged, zstd says")):
        with pytest.raises(UserError, match=wrong):
            read_log(written(tmp_path / "log", content))


def test_parquet_of_every_type(tmp_path):
    """Moments with and without zones, counts as floating numbers, bytes, categories; what is not read may be a list."""
    arrow = pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    from pyarrow import parquet

    at = datetime.datetime(2024, 5, 1, 10)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    right = {
        "job_id": arrow.array([b"a", b"b"]),
        "gpu_num": arrow.array([1.0, 2.0]),
        "state": arrow.array(["COMPLETED", "FAILED"]).dictionary_encode(),
        "submit_time": arrow.array([at, at + datetime.timedelta(milliseconds=250)], arrow.timestamp("ns")),
        "start_time": arrow.array([at.replace(tzinfo=zone)] * 2, arrow.timestamp("us", "Europe/Berlin")),
        "end_time": arrow.array([at, None], arrow.timestamp("s")),
        "vc": arrow.array([7, None], arrow.int16()),
        "nodes": arrow.array([["n1"], None]),
    }
    path = tmp_path / "log"
    parquet.write_table(arrow.table(right), path)
    log = read_log(path)
    assert log.unread == ("nodes",) and log.skipped == {"no end": 1}
    assert [log.jobs[name].tolist() for name in ("job_id", "workers", "tenant")] == [["a"], [1], ["7"]]
    assert log.jobs["duration_s"].tolist() == [7200.0]  # from 10:00 in Berlin, which is 8:00 in UTC
    for unit in ("s", "ms", "us", "ns"):  # before: 60,000 s for a minute
        times = arrow.array([datetime.timedelta(minutes=1), datetime.timedelta(hours=3)], arrow.duration(unit))
        ids, gpus = arrow.array(["a", "b"]), arrow.array([1, 2])
        table = {"job_id": ids, "submit_time_s": arrow.array([0, 9]), "num_gpus": gpus, "duration_s": times}
        parquet.write_table(arrow.table(table), path)
        assert read_log(path).jobs["duration_s"].tolist() == [60.0, 10800.0]
    for name, column, wrong in (
        ("gpu_num", arrow.array([[1], [2]]), "log, column gpu_num: is no Parquet that can be read as a table"),
        ("job_id", arrow.array([b"\xff", b"b"]), "log, column job_id: is no Parquet that can be read as a table"),
        ("gpu_num", arrow.array([1.5, 2.0]), "log, row 1, gpu_num: '1.5' should be a whole number"),
        ("end_time", arrow.array([at - datetime.timedelta(days=1)] * 2), "log, 2 mistakes|2 mistakes"),
    ):
        parquet.write_table(arrow.table(right | {name: column}), path)
        with pytest.raises(UserError, match=wrong) as error:
            read_log(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", CASES)
def test_pieces_do_not_matter(name, tmp_path, monkeypatch):
    """A log that is read in pieces of three rows is the same as one that is read at once."""
    right = read_log(write_case(tmp_path, name))
    monkeypatch.setattr(table, "PIECE", 3)
    log = read_log(write_case(tmp_path, name))
    assert (log.skipped, log.notes, log.unread) == (right.skipped, right.notes, right.unread)
    assert_same_jobs(right, log)
