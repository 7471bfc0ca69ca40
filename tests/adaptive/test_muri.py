"""Muri's simulator by its rules: by hand, and to what was published; mistakes are one line."""

import csv

import numpy as np
import pytest

from jaxsched.adaptive.papers.muri import PLAYS, RigidJobs, play_muri, read_rigid, start_seconds
from jaxsched.cli.main import main
from jaxsched.errors import UserError
from tests.adaptive.files import SHARED

HEADER = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time"


def rigid(*rows, start_s=10.0):
    submit_s, gpus, seconds = np.array(rows, float).T
    names = [str(i) for i in range(len(rows))]
    return RigidJobs(names, submit_s, gpus.astype(int), seconds, np.ones(len(rows)), np.full(len(rows), start_s))


@pytest.mark.parametrize("policy", PLAYS)
def test_what_ends_next_loses_nothing(policy):
    """Two jobs side by side: when the short one ends the long one loses a start, and at its own end nothing."""
    jobs = rigid((0, 1, 100), (0, 1, 300))
    np.testing.assert_allclose(PLAYS[policy](jobs, (8,), False), [100, 300])
    assert PLAYS["SRTF"](jobs, (8,), True).tolist() == [100, 310]


def test_the_order_of_shortest():
    """By time the wide job comes first, by GPU time the narrow one."""
    jobs = rigid((0, 8, 50), (0, 1, 100))
    assert PLAYS["SRTF"](jobs, (8,), False).tolist() == [50, 150]
    assert PLAYS["SRSF"](jobs, (8,), False).tolist() == [150, 100]


def test_a_wide_gang_needs_whole_nodes():
    """12 GPUs are free, on three nodes: 8 of them are no place for 16, nor 4 and 4 for 8."""
    jobs = rigid((0, 4, 100), (0, 4, 110), (0, 8, 120), (0, 16, 130))
    assert PLAYS["SRTF"](jobs, (8, 8), False).tolist() == [100, 110, 120, 250]


def test_tiresias_falls_at_its_gpu_seconds():
    """3,250 GPU-seconds on 5 GPUs are 650 s; then the job that waits comes first."""
    jobs = rigid((0, 5, 1000), (1, 5, 100))
    assert PLAYS["Tiresias"](jobs, (8,), False).tolist() == [1100, 750]


def test_starts():
    assert [start_seconds("vgg16", gpus) for gpus in (1, 2, 3, 4, 32, 64)] == [7, 7, 7, 8, 10, 10]
    assert start_seconds("unknown", 4) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_id,num_gpu\n1,1\n", "no column submit_time"),
        (f"{HEADER}\n", "no jobs"),
        (f"{HEADER}\n1,65,0,5,vgg16,10\n", "line 2, num_gpu: '65' should be at most 64, the GPUs of Muri's cluster"),
        (f"{HEADER}\n1,1,0,5,vgg16,0\n", "line 2, iteration_time: '0' should be a finite number > 0"),
    ],
)
def test_mistakes_of_a_trace(text, said, tmp_path):
    path = tmp_path / "trace1.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_rigid(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_trace_that_nobody_has_published(tmp_path, capsys):
    """Any number of a trace is played; without a published figure there is none."""
    (tmp_path / "trace7.csv").write_text(f"{HEADER}\n1,1,0,5000,vgg16,10\n2,1,4000,6000,new,10\n")
    (tmp_path / "muri_published.csv").write_text("figure,policy,trace,seconds\nmean_jct,SRTF,7,50\n")
    main(["reproduce-table", "muri", "--data", str(tmp_path), "--jobs-out", str(tmp_path / "jobs.csv")])
    lines = capsys.readouterr().out.splitlines()
    (known,) = [line for line in lines if line.startswith("mean_jct  SRTF      7 ")]
    (unknown,) = [line for line in lines if line.startswith("mean_jct  SRSF      7 ")]
    assert known.split()[4:6] == ["50.0", "+25.650%"] and "%" not in unknown
    rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
    # The first job loses all of its first 4 s when the second is submitted, the second 10 s when the first ends.
    jct_s = [float(row["jct_s"]) for row in rows if (row["policy"], row["trace"]) == ("SRTF", "7")]
    assert jct_s == pytest.approx([50.75 + 4, 60.9 + 10])


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the published files are not here")
def test_published_means(tmp_path):
    """All 12 figures of trace 3 and its twin; `jaxsched reproduce-table muri` plays all traces."""
    (tmp_path / "trace3.csv").write_bytes((SHARED.parent / "traces" / "muri_trace3.csv").read_bytes())
    (tmp_path / "muri_published.csv").write_bytes((SHARED / "muri_published.csv").read_bytes())
    lines = []
    play_muri(tmp_path, lines.append)
    assert len(lines) == 12
    for line in lines:
        assert line.ours_s == pytest.approx(line.published_s, rel=1e-7)
