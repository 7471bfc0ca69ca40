import csv
import json
import math

import numpy as np
import pytest

from jaxsched.bounds import jct_lower_bound_s
from jaxsched.errors import UserError
from jaxsched.evaluation import figures, tables
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.metrics import METRICS
from jaxsched.simulation.outcome import JOB_COLUMNS, write_jobs
from jaxsched.simulation.settings import Settings

POLICY_KEYS = {
    "jct_ci95_s", "ratio_to_best_baseline", "gap_to_bound", "jobs", "share_by_tenant", "by_end",
    *(metric.name for metric in METRICS),
}  # fmt: skip
JOB_KEYS = {"arrived", "finished", "running", "queued", "rejected"}


@pytest.mark.slower
def test_json_has_the_schema_and_only_numbers_that_json_knows(comparison, job_lists):
    found = json.loads(comparison.dumps())
    assert set(found) == {"jobs", "bound_s", "policies", "config", "versions"}
    assert list(found["policies"]) == ["pack", "random"]
    total = sum(map(len, job_lists))
    for jobs in (found["jobs"], *(policy["jobs"] for policy in found["policies"].values())):
        assert set(jobs) == JOB_KEYS
        assert jobs["arrived"] == total == jobs["finished"] + jobs["running"] + jobs["queued"] + jobs["rejected"]
    for policy in found["policies"].values():
        assert set(policy) == POLICY_KEYS
        low, high = policy["jct_ci95_s"]
        assert low < policy["jct_mean_s"] < high
    assert min(policy["ratio_to_best_baseline"] for policy in found["policies"].values()) == 1.0
    assert found["config"]["cluster"] == "leaf-spine-2" and found["config"]["interval_s"] == 60.0
    assert {"jaxsched", "jax", "python", "device"} <= set(found["versions"])


def test_options_are_of_settings_or_of_jobs_and_none_is_lost(tmp_path):
    (tmp_path / "models.yaml").write_text("models: [{name: hog, compute_s: 0.05, gradient_bytes: 4.0e+9}]\n")
    (tmp_path / "jobs.csv").write_text("job_id,submit_time_s,num_gpus,duration_s,model\na,0,4,600,hog\n")
    of = {"models": str(tmp_path / "models.yaml"), "interval_s": 30.0, "seed": 3, "knows": "nothing"}
    found = compare("leaf-spine-1", str(tmp_path / "jobs.csv"), "pack", Settings(max_forwards=1), **of)
    assert found.config["models"] == of["models"] and found.config["seeds"] == [3] and found.settings.seed == 3
    assert (found.config["interval_s"], found.config["max_forwards"]) == (30.0, 1)
    assert found.rows[0].jobs.finished == 1
    for wrong, said in (({"seeds": 1.5}, "seeds: 1.5 should be"), ({"failure_seed": 4}, "failure_seed: says which")):
        with pytest.raises(UserError, match=said):
            compare("leaf-spine-1", "philly-like", "pack", **wrong)
    with pytest.raises(UserError, match=r"compare: unknown option .know.; perhaps you meant .knows.; known ones: "):
        compare("leaf-spine-1", "philly-like", "pack", know="nothing")


def test_rejected_jobs_have_a_reason(comparison, job_lists):
    large = sum(int((jobs.num_gpus > 8).sum()) for jobs in job_lists)
    assert large > 0
    for row in comparison.rows:
        assert row.jobs.rejected == large
        assert row.rejections == {"larger than any partition": large}
    (line,) = tables.accounts({row.name: (row.jobs, row.rejections) for row in comparison.rows})
    assert line.endswith(f"{large} rejected ({large} larger than any partition)")


def test_ratio_is_paired_by_seed(comparison):
    best = comparison.best_baseline
    for row in comparison.rows:
        pairs = [np.nanmean(one.jct_s) / np.nanmean(other.jct_s) for one, other in zip(row.outcomes, best.outcomes)]
        assert row.ratio == pytest.approx(np.mean(pairs))


def test_gap_is_paired_by_seed_and_in_every_format(comparison, cluster, job_lists):
    bounds = [jct_lower_bound_s(cluster, jobs, 60.0) for jobs in job_lists]
    assert comparison.bound_s == pytest.approx(np.mean(bounds))
    for row in comparison.rows:
        gaps = [np.nanmean(one.jct_s) / bound for one, bound in zip(row.outcomes, bounds, strict=True)]
        assert row.gap == pytest.approx(np.mean(gaps)) and row.gap > 1
        assert comparison.to_json()["policies"][row.name]["gap_to_bound"] == row.gap
        for text in (tables.plain_text(comparison), tables.markdown(comparison)):
            assert "to bound" in text and f"{row.gap:.3f}" in text


def test_tables_name_every_policy_once(comparison):
    text, marked = tables.plain_text(comparison), tables.markdown(comparison)
    for name in ("pack", "random"):
        assert sum(line.startswith(name) for line in text.splitlines()) == 1
        assert sum(line.startswith(f"| {name}") for line in marked.splitlines()) == 1
    assert len({len(line) for line in text.splitlines()[:2]}) == 1
    assert tables.rich_table(comparison).row_count == 2


def test_jobs_file_says_where_every_job_ran(comparison, cluster, tmp_path):
    result = comparison.rows[0].outcomes[0]
    write_jobs(tmp_path / "jobs.csv", result, cluster)
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == (*JOB_COLUMNS, "tenant") and len(rows) == len(result.jobs)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.csv"]
    held: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for row in rows:
        if row["status"] == "rejected":
            assert int(row["num_gpus"]) > 8 and not row["placement"] and not row["start_s"] and not row["finish_s"]
            continue
        assert row["status"] == "finished"
        assert float(row["submit_s"]) <= float(row["start_s"]) < float(row["finish_s"])
        assert row["gpu_type"] == "V100" and row["forwards"] == "0"
        items = [item.split(":") for item in row["placement"].split("+")]
        assert sum(int(gpus) for _, _, gpus in items) == int(row["num_gpus"])
        for server, group, gpus in items:
            held.setdefault((server, group), []).append((float(row["start_s"]), float(row["finish_s"]), int(gpus)))
    assert {server for server, _ in held} == {"0", "1"} and {group for _, group in held} == {"0", "1"}
    for spans in held.values():
        for moment, _, _ in spans:
            assert sum(gpus for start, finish, gpus in spans if start <= moment < finish) <= 4


def test_figures_are_written_whole(comparison, tmp_path):
    pytest.importorskip("matplotlib")
    figures.jct_distribution(comparison, tmp_path / "jct.png")
    rows = [{"decisions": 100.0}, {"decisions": 50.0, "validation_jct_s": 7.0}]
    figures.learning_curve(rows, tmp_path / "curve.svg", references={"pack": 9.0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.svg", "jct.png"]
    assert (tmp_path / "jct.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_for_people():
    assert tables.number(math.nan) == "–"
    assert tables.number(12345.678) == "12,345.7"
    assert tables.plus_minus(5.0, (4.0, 6.0)) == "5.0 ± 1.0"
    assert tables.plus_minus(5.0, (math.nan, math.nan)) == "5.0"
