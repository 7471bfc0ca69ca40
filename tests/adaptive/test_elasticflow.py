"""Deadlines: by hand, what ElasticFlow promises, and mistakes in one line."""

import csv

import numpy as np
import pytest

from jaxsched.adaptive.papers.elasticflow import DueJobs, Run, edf, elasticflow, paces, play_deadlines, play_elasticflow
from jaxsched.cli.main import main
from jaxsched.errors import UserError
from tests.adaptive.files import SHARED

HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


def due(*rows, pace=(1.0, 2.0, 3.0)):
    """Of each job: submission, deadline, iterations."""
    submit_s, deadline_s, iterations = np.array(rows, float).T
    names = [str(i) for i in range(len(rows))]
    return DueJobs(names, submit_s, deadline_s, iterations, np.ones(len(rows), int), np.tile(pace, (len(rows), 1)))


def test_who_cannot_be_in_time_is_dropped():
    """One GPU: after the first job there are 40 s for the second, which needs 60."""
    jobs = due((0, 100, 60), (0, 100, 60))
    assert play_deadlines(jobs, 1, elasticflow, restart_s=0.0).tolist() == [60, np.inf]
    assert play_deadlines(jobs, 1, edf, restart_s=0.0).tolist() == [60, 120]


def test_what_no_plan_needs_is_spent():
    """Two GPUs are enough for both; four are there, and a job alone has them all."""
    assert play_deadlines(due((0, 1000, 120)), 4, elasticflow, restart_s=0.0).tolist() == [40]
    both = play_deadlines(due((0, 1000, 120), (0, 1000, 120)), 4, elasticflow, restart_s=0.0)
    assert both.tolist() == [60, 60]


def test_a_restart_delays():
    assert play_deadlines(due((0, 1000, 120)), 4, edf, restart_s=20.0).tolist() == [60]
    assert play_deadlines(due((0, 1000, 150)), 4, edf, restart_s=20.0).tolist() == [70]


def test_deadlines_before_all():
    """The later job has the earlier deadline, and only both GPUs make it."""
    jobs = due((0, 600, 300), (60, 120, 110), pace=(1.0, 2.0))
    assert play_deadlines(jobs, 2, elasticflow, restart_s=0.0).tolist() == [210, 115]


@pytest.mark.parametrize("seed", range(20))
def test_admitted_jobs_are_in_time_and_no_gpu_is_given_twice(seed):
    rng = np.random.default_rng(seed)
    size, total = 12, 8
    submit_s = np.sort(rng.integers(0, 1500, size)).astype(float)
    pace = np.cumsum(rng.uniform(0.05, 1.0, (size, 4)), axis=1)
    iterations = rng.uniform(50, 900, size) * pace[:, 0]
    deadline_s = submit_s + rng.uniform(60, 1500, size)
    jobs = DueJobs([str(i) for i in range(size)], submit_s, deadline_s, iterations, np.ones(size, int), pace)

    def watched(run: Run, now_s, there, new):
        chosen, kept = elasticflow(run, now_s, there, new)
        assert sum(1 << place for place in chosen.values()) <= total and set(chosen) <= set(kept)
        return chosen, kept

    finish_s = play_deadlines(jobs, total, watched, restart_s=0.0)
    admitted = np.isfinite(finish_s)
    assert (finish_s[admitted] <= deadline_s[admitted] + 1e-6).all() and admitted.any()


def test_paces_come_from_all_logs(tmp_path):
    (tmp_path / "a.csv").write_text(f"{HEADER}\n1,0,100,bert,99,64,1,50\n2,0,200,bert,99,64,4,50\n")
    found = paces([tmp_path / "a.csv"])
    assert found["bert", 64].tolist() == [2, 0, 4, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_id,deadline\n1,1\n", "no column submission_time"),
        (f"{HEADER}\n1,100,10,bert,100,64,1,50\n", "line 2, deadline: '100' should be after the submission at 100"),
        (f"{HEADER}\n1,100,10,bert,200,64,1,0\n", "line 2, duration: '0' should be a finite number > 0"),
    ],
)
def test_mistakes(text, said, tmp_path):
    (tmp_path / "195job.csv").write_text(text)
    with pytest.raises(UserError) as error:
        play_elasticflow(tmp_path)
    assert said in str(error.value) and "195job.csv" in str(error.value) and "\n" not in str(error.value)


def test_the_command(tmp_path, capsys):
    (tmp_path / "itp").mkdir()
    (tmp_path / "itp" / "195job.csv").write_text(f"{HEADER}\n1,0,100,bert,200,64,1,100\n2,0,1000,bert,100,64,1,1000\n")
    main(["reproduce-table", "elasticflow", "--data", str(tmp_path), "--jobs-out", str(tmp_path / "jobs.csv")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ElasticFlow")]
    assert line.split()[1] == "0.500" and line.split()[-1] == "0.500"
    rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
    assert [row["finish_s"] for row in rows if row["policy"] == "ElasticFlow"] == ["120", ""]


@pytest.mark.slower
@pytest.mark.skipif(not SHARED.exists(), reason="the published logs are not here")
def test_the_order_of_the_published_policies():
    """EDF, Tiresias, ElasticFlow; the shares themselves are not those of the testbed (docs/results/adaptive.md)."""
    lines = []
    play_elasticflow(SHARED, lines.append)
    met = {line.policy: line.met for line in lines}
    assert met["EDF"] < met["Tiresias"] < met["ElasticFlow"]
