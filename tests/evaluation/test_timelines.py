"""Timelines: no GPU is held twice, and Perfetto's trace and the picture say what the run says."""

import csv
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.evaluation.perfetto import trace_of, write_trace
from jaxsched.evaluation.picture import cluster_svg
from jaxsched.evaluation.spans import spans_of
from jaxsched.policies.registry import parse
from jaxsched.simulation.job_table import write_jobs
from jaxsched.simulation.settings import Settings, params_for
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list

SETTINGS = Settings(record_placements=True)


def test_no_gpu_is_held_twice_and_every_gpu_second_is_there(comparison, cluster):
    for row in comparison.rows:
        for result in row.outcomes:
            spans = spans_of(result, cluster)
            held = (spans.finish_s - spans.start_s).sum()
            done = result.finished
            assert held == pytest.approx((result.jobs.num_gpus[done] * result.run_s[done]).sum())
            assert (spans.gpu < np.asarray(cluster.group_gpus).max()).all()
            keys = np.stack([spans.server, spans.group, spans.gpu], -1)
            for key in np.unique(keys, axis=0):
                own = (keys == key).all(-1)
                assert (spans.start_s[own][1:] >= spans.finish_s[own][:-1] - 1e-6).all()


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
    write_jobs(tmp_path / "jobs.csv", result, cluster)
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "finished"]
    assert rows
    for row in rows:
        parts = sum(float(row[name]) for name in ("queueing_s", "ideal_s", "slowed_s"))
        assert parts == pytest.approx(float(row["jct_s"]), abs=1e-4)


def test_runs_without_placements_are_refused(comparison, cluster):
    import dataclasses

    with pytest.raises(UserError, match="placements were not recorded"):
        result = comparison.rows[0].outcomes[0]
        params = params_for(cluster, result.jobs, SETTINGS)
        trace_of(dataclasses.replace(result, workers=None), cluster, params)
    assert not Settings().record_placements
