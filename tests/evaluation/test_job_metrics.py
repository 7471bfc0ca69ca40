import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxsched.env.state import FINISHED, RUNNING, WAITING
from jaxsched.evaluation.metrics import count_waiting, job_counts, metrics, notes, unstable
from jaxsched.simulation.outcome import NOT_ARRIVED, REJECTED, Outcome, RunStats
from jaxsched.workload.jobs import make_job_list

STATS = RunStats(1.0, 0.0, 1, 1.0, 1, 1, 1, 1, 0, "jax")
NAN = math.nan


def make(submit, duration, workers, status, start, finish, **changes) -> Outcome:
    jobs = make_job_list(submit, duration, workers)
    values = dict(
        policy="p", jobs=jobs, status=np.array(status, np.int8), partition=np.zeros(len(submit), np.int16),
        start_s=np.array(start, float), finish_s=np.array(finish, float), workers=None, cut_off=None, stats=STATS,
        forwards=np.zeros(len(submit), np.int8),
    )  # fmt: skip
    return Outcome(**(values | changes))


def test_figures_by_hand():
    result = make(
        [10, 20, 50], [100, 50, 30], [2, 4, 1], [FINISHED, FINISHED, FINISHED], [60, 60, 120], [160, 160, 165]
    )
    found = metrics(result, total_gpus=8)
    assert found.jct_mean_s == pytest.approx((150 + 140 + 115) / 3)
    assert found.jct_p50_s == pytest.approx(140)
    assert found.jct_p95_s == pytest.approx(140 + 0.9 * 10)  # linear between the second and the third of three
    assert found.jct_p99_s == pytest.approx(140 + 0.98 * 10)
    assert found.queue_mean_s == pytest.approx((50 + 40 + 70) / 3)
    assert found.makespan_s == pytest.approx(165 - 10)
    assert found.gpu_utilisation == pytest.approx((2 * 100 + 4 * 100 + 1 * 45) / (8 * 155))
    assert found.slowdown_mean == pytest.approx((1 + 2 + 1.5) / 3)


def test_a_line_of_the_list_is_a_metric_everywhere(tmp_path):
    """In a copy of the package: in the table, in JSON, and on the page of a saved result."""
    package = Path(__file__).parents[2] / "jaxsched"
    shutil.copytree(package, tmp_path / "jaxsched", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "jaxsched/evaluation/metrics.py"
    line = '    Metric("done", lambda run: float(len(run.gpus)), "jobs", "jobs done"),\n)\nCOLUMNS = '
    text = file.read_text()
    assert text.count(")\nCOLUMNS = ") == 1
    file.write_text(text.replace(")\nCOLUMNS = ", line))
    code = """
import jaxsched
from jaxsched.evaluation.saved import read_result, make_saved_page
found = jaxsched.compare("leaf-spine-1", "poisson", "first-fit", num_jobs=5, seeds=1)
open("a.json", "w").write(found.dumps())
open("table", "w").write(repr(found))
open("page", "w").write(make_saved_page({"a": read_result("a.json")}))
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True)
    head, _, row = (tmp_path / "table").read_text().splitlines()[:3]
    at = head.index("jobs done")
    assert row[at : at + len("jobs done")].strip() == "5.000"
    assert json.loads((tmp_path / "a.json").read_text())["policies"]["first-fit"]["done"] == 5
    assert '<th scope="col">jobs done</th>' in (tmp_path / "page").read_text()


def test_rejected_jobs_are_counted_and_left_out_of_the_figures():
    result = make([0, 0], [100, 100], [1, 999], [FINISHED, REJECTED], [60, NAN], [160, NAN])
    assert metrics(result, 8).jct_mean_s == pytest.approx(160)
    counts = job_counts(result)
    assert dataclasses.asdict(counts) == {"arrived": 2, "finished": 1, "running": 0, "queued": 0, "rejected": 1}


def test_account_of_a_run_that_was_cut_off():
    status = [FINISHED, RUNNING, WAITING, REJECTED, NOT_ARRIVED]
    start, finish = [60, 60, NAN, NAN, NAN], [160, NAN, NAN, NAN, NAN]
    result = make([0, 1, 2, 3, 999], [100] * 5, [1] * 5, status, start, finish, cut_off="at the horizon of 200 s")
    counts = job_counts(result)
    assert counts.arrived == counts.finished + counts.running + counts.queued + counts.rejected == 4
    assert all(math.isnan(value) for value in dataclasses.astuple(metrics(result, 8)))
    (note,) = notes([result], [0])
    assert "at the horizon of 200 s" in note and "2 jobs had not finished and 1 had not arrived" in note


def test_a_growing_queue_is_called_unstable_and_a_steady_one_is_not():
    submit = np.arange(100.0)
    steady = make(submit, [1.0] * 100, [1] * 100, [FINISHED] * 100, submit + 20, submit + 21)
    growing = make(submit, [1.0] * 100, [1] * 100, [FINISHED] * 100, 2 * submit, 2 * submit + 1)
    assert count_waiting(growing, 99.0) == 50  # jobs 50..99 start after 99 s
    assert unstable(steady) is None
    assert unstable(growing) is not None
    assert notes([growing], [7])[0].startswith("unstable: 50 of 100 jobs")
    assert notes([steady, growing], [4, 5])[0].startswith("unstable on 1 of 2 seeds (5): ")


def test_few_jobs_are_not_called_a_growing_queue():
    submit = np.arange(20.0)
    few = make(submit, [1.0] * 20, [1] * 20, [FINISHED] * 20, submit + np.arange(20) / 2, submit + 30)
    assert count_waiting(few, 19.0) == 7 and count_waiting(few, 9.0) == 3
    assert unstable(few) is None


def test_deadlines_by_hand():
    """In time, 30 s late, without a deadline, rejected with one."""
    status, start, finish = [FINISHED] * 3 + [REJECTED], [0, 0, 0, NAN], [50, 90, 500, NAN]
    jobs = make_job_list([0, 10, 10, 10], 40, 1, due_s=[50, 50, math.inf, 50])
    found = metrics(make([0] * 4, [40] * 4, [1] * 4, status, start, finish, jobs=jobs), 8)
    assert found.deadlines_met == pytest.approx(1 / 3) and found.late_mean_s == pytest.approx(15)
    none = metrics(make([0], [40], [1], [FINISHED], [0], [50]), 8)
    assert math.isnan(none.deadlines_met) and math.isnan(none.late_mean_s)
