"""Timelines: no GPU is held twice, and Perfetto's trace and the picture say what the run says."""

import csv
import dataclasses
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.evaluation.figures import cluster_svg
from jaxsched.evaluation.parts import SLOWED, parts_of
from jaxsched.evaluation.timelines import spans_of, trace_of, write_trace
from jaxsched.policies.registry import parse
from jaxsched.simulation.outcome import JOB_COLUMNS, STOPPED_COLUMNS, write_jobs
from jaxsched.simulation.settings import Settings, params_for
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list

SETTINGS = Settings(record_placements=True)


def test_no_gpu_is_held_twice_and_every_gpu_second_is_there(comparison, cluster):
    for row in comparison.rows:
        for result in row.outcomes:
            spans = spans_of(result, cluster)
            held = (spans.end_s - spans.start_s).sum()
            done = result.finished
            assert held == pytest.approx((result.jobs.num_gpus[done] * result.run_s[done]).sum())
            assert (spans.gpu < np.asarray(cluster.group_gpus).max()).all()
            keys = np.stack([spans.server, spans.group, spans.gpu], -1)
            for key in np.unique(keys, axis=0):
                own = (keys == key).all(-1)
                assert (spans.start_s[own][1:] >= spans.end_s[own][:-1] - 1e-6).all()


def test_jobs_that_share_a_gpu_are_on_one_line(comparison, cluster):
    """Two halves are on the first GPU until 200 s; whole jobs are beside them."""
    workers = np.zeros((4, cluster.group_gpus[0].size), np.int8)
    workers[:, 0] = 1
    result = dataclasses.replace(
        comparison.rows[0].outcomes[0],
        jobs=make_job_list(np.zeros(4), np.ones(4), np.ones(4, int), milli=np.array([500, 500, 1000, 1000])),
        partition=np.zeros(4, np.int16),
        start_s=np.array([0.0, 0.0, 0.0, 120.0]),
        finish_s=np.array([100.0, 200.0, 110.0, 300.0]),
        workers=workers,
        gpu=np.array([0, 0, -1, -1], np.int32),
    )
    spans = spans_of(result, cluster)
    assert spans.gpu.tolist() == [0, 0, 1, 1] and (spans.group == 0).all()


def test_a_trace_for_perfetto_reads_back(comparison, cluster, tmp_path):
    result = comparison.rows[0].outcomes[0]
    write_trace(tmp_path / "trace.json", result, cluster, params_for(cluster, result.jobs, SETTINGS))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert sum(event["dur"] for event in slices) / 1e6 == pytest.approx(
        (result.jobs.num_gpus * np.nan_to_num(result.run_s)).sum()
    )
    assert {event["name"] for event in slices} == set(result.jobs.job_id[result.finished].tolist())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= named
    for name in ("jobs that wait", "GPUs in use"):
        counts = [event["args"]["count"] for event in events if event["name"] == name]
        assert min(counts) == counts[-1] == 0 and max(counts) > 0


@pytest.mark.slow
def test_a_trace_counts_what_links_carry():
    cluster, jobs = get_cluster("leaf-spine-24", 1), make_job_list([0.0], [6000.0], [72])
    ((result,),) = simulate([parse("pack")], cluster, [jobs], SETTINGS).values()
    events = trace_of(result, cluster, params_for(cluster, jobs, SETTINGS))["traceEvents"]
    shares = [tuple(event["args"].values()) for event in events if event["name"].startswith("link")]
    assert len(shares) == 8 and min(shares) == (0.0,) < max(shares)  # in and out of two racks, from a start to an end


@pytest.fixture(scope="module")
def stopped():
    """A run of jobs that are stopped, on servers that fail, and what it needs to be drawn."""
    cluster, rng = get_cluster("leaf-spine-2", 1), np.random.default_rng(0)
    jobs = make_job_list(np.sort(rng.uniform(0, 4e4, 40)), rng.uniform(1e3, 2e4, 40), rng.choice([1, 2, 8], 40))
    settings = Settings(record_placements=True, preemption=True, failures="20,0.5", checkpoint_s=600.0)
    ((result,),) = simulate([parse("pack:las+backfill+preempt")], cluster, [jobs], settings).values()
    assert (
        result.interruptions is not None
        and min(result.interruptions.stops.sum(), result.interruptions.failure_restarts.sum()) > 3
    )
    return result, cluster, params_for(cluster, jobs, settings)


@pytest.mark.slow
def test_a_trace_has_a_slice_for_every_attempt_and_restart(stopped):
    result, cluster, params = stopped
    attempts, gpus = result.attempts, result.jobs.num_gpus
    events = trace_of(result, cluster, params)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    restarts = [event for event in slices if event["name"] == "restart"]
    held = [event for event in slices if event["name"] != "restart"]
    assert len(held) == gpus[attempts.job].sum() and len(restarts) == gpus[attempts.job[attempts.restart_s > 0]].sum()
    assert sum(event["dur"] for event in held) / 1e6 == pytest.approx((gpus * result.run_s).sum())
    assert {event["args"]["ended"] for event in held} == {"done", "stopped", "server failed"}
    waits = [event["args"]["count"] for event in events if event["name"] == "jobs that wait"]
    assert min(waits) == waits[-1] == 0 < max(waits)


@pytest.mark.slow
def test_a_picture_shows_restarts(stopped):
    result, cluster, _ = stopped
    text = cluster_svg([result], cluster)
    restarts = result.jobs.num_gpus[result.attempts.job[result.attempts.restart_s > 0]].sum()
    assert text.count('fill="#54278f"') == restarts + 1 and ">restarting</text>" in text


@pytest.mark.slow
def test_tables_of_stopped_jobs_say_what_it_cost(stopped, tmp_path):
    result, cluster, _ = stopped
    write_jobs(tmp_path / "jobs.csv", result, cluster)
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == JOB_COLUMNS + STOPPED_COLUMNS
    assert [int(row["stops"]) for row in rows] == result.interruptions.stops.tolist()
    assert all(float(row["restarts_s"]) + float(row["lost_s"]) <= float(row["slowed_s"]) + 1e-3 for row in rows)


def test_a_picture_is_svg_with_a_bar_per_job_and_gpu(comparison, cluster):
    results = [row.outcomes[0] for row in comparison.rows]
    for moving in (True, False):
        text = cluster_svg(results, cluster, moving=moving)
        root = ET.fromstring(text)
        bars = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("height") == "3.6"]
        assert len(bars) == sum(len(spans_of(result, cluster).job) for result in results)
        assert ("<animate " in text) is moving and "pack" in str(root[0].text)


def test_the_parts_of_completion_times_add_up(comparison, cluster, tmp_path):
    result = comparison.rows[0].outcomes[0]
    parts = parts_of(result, cluster, params_for(cluster, result.jobs, Settings()))
    write_jobs(tmp_path / "jobs.csv", result, cluster, {name: getattr(parts, name) for name in SLOWED})
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "finished"]
    assert rows and tuple(rows[0]) == (*JOB_COLUMNS, "tenant", *SLOWED)
    for row in rows:
        whole = sum(float(row[name]) for name in ("queueing_s", "ideal_s", "slowed_s"))
        assert whole == pytest.approx(float(row["jct_s"]), abs=1e-4)
        assert sum(float(row[name]) for name in SLOWED) == pytest.approx(float(row["slowed_s"]), abs=1e-2)


def test_runs_without_placements_are_refused(comparison, cluster):
    with pytest.raises(UserError, match="placements were not recorded"):
        result = comparison.rows[0].outcomes[0]
        params = params_for(cluster, result.jobs, SETTINGS)
        trace_of(dataclasses.replace(result, workers=None), cluster, params)
    assert not Settings().record_placements
