"""The page of a comparison: it needs nothing else, holds what the runs hold, and works in a browser."""

import base64
import dataclasses
import html
import json
import math
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxsched.cluster.outages import Outages
from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.decisions import decisions_of
from jaxsched.evaluation.report import ADDED, SCRIPT, _pack_numbers, embed, pack_column, report_html, runs, write_report
from jaxsched.evaluation.saved import make_saved_page, read_result
from jaxsched.evaluation.tables import legend
from jaxsched.policies.registry import parse
from jaxsched.simulation.outcome import DONE
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import make_job_list

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def data_of(page: str) -> dict:
    """What a page holds, its columns as lists of numbers that `unpacked` reads."""
    (text,) = re.findall(r'<script id="data" type="text/plain">(.*?)</script>', page, re.S)
    content = zlib.decompress(base64.b64decode(text), wbits=-15)
    size, head = np.frombuffer(content[:8], "<u4").tolist()
    assert size == len(content)

    def found(value: dict) -> dict:
        if {"kind", "at", "count"} <= set(value):
            wide = np.dtype(value["kind"]).itemsize
            begin = 8 + head + value["at"]
            planes = np.frombuffer(content[begin : begin + value["count"] * wide], np.uint8).reshape(wide, -1)
            return {"kind": value["kind"], "values": np.frombuffer(planes.T.tobytes(), value["kind"])}
        return value

    return json.loads(content[8 : 8 + head], object_hook=found)


def unpacked(column: dict) -> np.ndarray:
    return np.zeros(column["zeros"], column["kind"]) if "zeros" in column else column["values"]


def test_a_page_needs_nothing_else_and_holds_the_runs(comparison, cluster):
    page = report_html(comparison, cluster)
    assert not re.findall(r"(?:src|href)=|https?://|@import", page) and "<!--" not in page
    data = data_of(page)
    assert data["gpus"] == int(np.asarray(cluster.group_gpus).sum()) == data["servers"][-1]
    for row, run in zip(comparison.rows, data["policies"], strict=True):
        result = row.outcomes[0]
        assert run["name"] == row.name
        np.testing.assert_array_equal(unpacked(run["finish_s"]), np.nan_to_num(result.finish_s, nan=-1.0))
        assert len(unpacked(run["gpu"])) == result.jobs.num_gpus[result.finished].sum()
        assert unpacked(run["gpu"]).max() < data["gpus"]
        added = sum(unpacked(run["parts"][name]) for name in ADDED)
        alone_s = result.jct_s - result.queue_s - result.jobs.duration_s
        np.testing.assert_allclose(added, np.nan_to_num(alone_s), atol=1e-5 * np.nanmax(result.jct_s))
    np.testing.assert_array_equal(unpacked(data["jobs"]["submit_s"]), comparison.rows[0].outcomes[0].jobs.submit_s)


def test_a_page_says_who_came_and_when_the_run_ended(cluster):
    """Before: rejected jobs waited to the end, and a run that was cut off ended with its last finish."""
    gpus = int(np.asarray(cluster.group_gpus).sum())
    users = {"user": np.array(["b", "a", "b", ""])}
    jobs = make_job_list([0.0, 0.0, 60.0, 1200.0], [300.0, 1e6, 1e6, 60.0], [1, 1, 2 * gpus, 1])
    jobs = dataclasses.replace(jobs, **users)
    found = compare(cluster, [jobs], ["pack"], Settings(horizon_s=600.0, record_placements=True))
    data = data_of(report_html(found, cluster))
    (run,) = data["policies"]
    assert run["end_s"] == 600.0 == run["links"]["end_s"] and unpacked(run["came"]).tolist() == [1, 1, 0, 0]
    assert [data["tenants"][number] for number in unpacked(data["jobs"]["user"])] == jobs.user.tolist()


def test_a_page_shows_runs_with_outages_of_a_file(cluster):
    out = Outages(np.array([0]), np.array([60.0]), np.array([120.0]))
    jobs, settings = make_job_list([0.0], 300.0, 1), Settings(outages=out, record_placements=True)
    found = compare(cluster, [jobs], ["pack"], settings)
    assert found.rows[0].outcomes[0].attempts.job.tolist() == [0, 0]
    assert len(unpacked(data_of(report_html(found, cluster))["policies"][0]["attempts"]["start"])) == 2


def test_a_page_takes_less_room_than_its_numbers(comparison, cluster):
    kept = runs(comparison, cluster)
    again = kept | {"policies": [run | {"name": f"{run['name']} again"} for run in kept["policies"]] + kept["policies"]}
    once, twice = embed(kept), embed(again)
    assert len(once) < 0.5 * len(json.dumps(kept))
    assert len(twice) < 1.05 * len(once)  # columns that are alike stand in it once


def test_a_column_that_is_none_is_refused():
    for text in ("?", "AAAA", 5):
        with pytest.raises(UserError, match="a column of numbers cannot be read, should be the base64 of float64"):
            embed({"start_s": {"kind": "float64", "base64": text}})


@pytest.mark.parametrize("most", [5, 255, 256, 65_535, 65_536, 2**31 - 1])
def test_numbers_of_models_and_users_are_kept_whatever_they_are(most):
    """Before: the 257th model was shown as the first."""
    column = _pack_numbers(np.array([0, most], np.int32))
    assert np.frombuffer(base64.b64decode(str(column["base64"])), str(column["kind"])).tolist() == [0, most]


def test_names_cannot_break_out_of_the_page(comparison, cluster):
    row = dataclasses.replace(comparison.rows[0], name="</script><b>x")
    page = report_html(dataclasses.replace(comparison, rows=[row]), cluster)
    assert "</script><b>" not in page and data_of(page)["policies"][0]["name"] == "</script><b>x"


def test_too_many_policies_are_refused(comparison, cluster):
    rows = [dataclasses.replace(comparison.rows[0], name=str(number)) for number in range(7)]
    with pytest.raises(UserError, match="7 policies, a page holds at most 6"):
        report_html(dataclasses.replace(comparison, rows=rows), cluster)


@pytest.fixture
def saved(comparison, cluster, tmp_path):
    """Results in files, by what they are called: one with runs, one with figures only."""
    content = comparison.to_json()
    kept = content | {"runs": runs(comparison, cluster)}
    slower = content | {"config": content["config"] | {"interval_s": 30.0}}
    for name, result in {"kept": kept, "figures": slower}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    return {name: read_result(tmp_path / f"{name}.json") for name in ("kept", "figures")}


def test_saved_results_stand_side_by_side(saved, comparison):
    page = make_saved_page(saved)
    assert "interval s 60" in page and "interval s 30" in page and page.count("<tbody>") == 2
    mean = f"{comparison.rows[0].figures.jct_mean_s / 60:,.1f}"
    assert page.count(f"<td>{mean}</td>") >= 2
    names = [run["name"] for run in data_of(page)["policies"]]
    assert names == ["pack (kept)", "random (kept)"]
    assert page.count("No policy that never stops a job is under") == 2
    stopping = dataclasses.replace(saved["figures"], config=saved["figures"].config | {"preemption": True})
    assert "<li>No policy is under" in make_saved_page({"stopping": stopping})
    only = make_saved_page({"figures": saved["figures"]})
    assert "<script" not in only and "<!--" not in only and mean in only


def test_what_is_said_below_a_table_stands_on_the_page_of_saved_results(comparison, tmp_path):
    row = dataclasses.replace(comparison.rows[0], notes=["unstable: 9 of 10 jobs wait"])
    noted = dataclasses.replace(comparison, rows=[row, *comparison.rows[1:]])
    (tmp_path / "noted.json").write_text(noted.dumps())
    page = make_saved_page({"noted": read_result(tmp_path / "noted.json")})
    below = [f"<li>{html.escape(line)}</li>" for line in legend(noted)]
    for start in ("<li>jobs, ", "<li>run times are on ", "<li>† "):
        (line,) = [line for line in below if line.startswith(start)]
        assert line in page, start
    assert page.count(f"{row.name} †") == 1


def test_remarks_that_are_none_are_refused(saved, tmp_path):
    content = json.loads((tmp_path / "figures.json").read_text())
    content["config"]["runs"] = {"pack": {"notes": 5}}
    (tmp_path / "odd.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="is no result of `jaxsched evaluate --json`"):
        read_result(tmp_path / "odd.json")


def test_kept_runs_of_other_jobs_are_refused(saved):
    result = saved["kept"]
    other = dataclasses.replace(result, runs=result.runs | {"gpus": 1})
    with pytest.raises(UserError, match="the runs of b are not of the same jobs and cluster as those of a"):
        make_saved_page({"a": result, "b": other})
    twice = make_saved_page({"a": result, "b": result})
    assert len(data_of(twice)["policies"]) == 4
    with pytest.raises(UserError, match="8 policies, a page holds at most 6"):
        make_saved_page({name: result for name in "abcd"})


def test_what_is_no_result_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"policies": {"pack": {"jct_mean_s": "fast"}}, "config": {}}')
    with pytest.raises(UserError, match=r"a.json: is no result of `jaxsched evaluate --json`: policies.jct_mean_s"):
        read_result(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"policies": {}, "config": {}}')
    with pytest.raises(UserError, match="has no policies"):
        read_result(tmp_path / "a.json")


def test_runs_that_are_none_are_refused(saved, tmp_path):
    kept = dataclasses.asdict(saved["kept"])
    numbers = {"kind": "float64", "zeros": 10**9}
    first = kept["runs"]["policies"][0]
    for found, place in (
        ({}, "missing required field `policies`"),
        (kept["runs"] | {"policies": 0.5}, "policies"),
        (kept["runs"] | {"policies": []}, "policies"),
        ({name: value for name, value in kept["runs"].items() if name != "gpus"}, "gpus"),
        (kept["runs"] | {"policies": [first | {"start_s": numbers}]}, "start_s"),
        (kept["runs"] | {"policies": [first | {"parts": {"a\nb": 1}}]}, r"'a\\nb'"),
    ):
        path = tmp_path / "a.json"
        path.write_text(json.dumps(kept | {"runs": found}))
        with pytest.raises(UserError, match=f"keep-runs.*{place}") as error:
            read_result(path)
        assert "\n" not in str(error.value)
    kept["policies"]["pack"]["jct_ci95_s"] = [1.0, 2.0, 3.0]
    path.write_text(json.dumps(kept))
    with pytest.raises(UserError, match="jct_ci95_s"):
        read_result(path)


# Moves the slider, zooms by key, points at the longest bar, searches, and leaves what it saw in the page.
VISIT = """<pre id="seen"></pre><script>
const told = []; window.onerror = message => told.push(String(message)); const before = hover.textContent;
const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
document.getElementById("in").click(); const zoomed = view.to - view.from;
slider.value = 500; slider.dispatchEvent(new Event("input")); const moved = view.from;
canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" })); const full = view.to - view.from;
const j = runs[0].attempts.job[runs[0].held[0]], g = runs[0].gpu[0], t = (runs[0].start[j] + runs[0].finish[j]) / 2;
canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + t / end * box.width,
  clientY: box.top + (g + .5) / data.gpus * box.height }));
search.value = jobs.id[j]; search.dispatchEvent(new Event("input"));
const mean = r => r.finish.reduce((sum, f, j) => sum + (f < 0 ? 0 : f - jobs.submit_s[j]), 0)
  / r.finish.filter(f => f >= 0).length;
document.getElementById("seen").textContent = JSON.stringify({ told, zoomed, moved, full, end, job: jobs.id[j],
  hover: hover.textContent, rows: document.querySelectorAll("#why tbody tr").length,
  beside: [...document.querySelectorAll("#why tbody tr")].find(row => row.cells[0].textContent === jobs.id[j])
    .cells[4].textContent,
  other: time(runs[1].finish[j] - jobs.submit_s[j]),
  hidden: ["links", "here"].map(id => document.getElementById(id).hidden), mean: runs.map(mean) });
</script></body>"""


def visited(path: Path, script: str) -> Any:
    """What `script` has left in the element `seen` of a page, after it ran in a browser without complaints."""
    page = path.read_text().replace("</body>", script)
    path.write_text(page)
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2400"]
    command += [f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run([*command, f"file://{path}"], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    return json.loads(text)


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian's package chromium)")
def test_it_works_in_a_browser(comparison, cluster, tmp_path):
    write_report(tmp_path / "report.html", comparison, cluster)
    seen = visited(tmp_path / "report.html", VISIT)
    assert seen["told"] == [] and seen["hidden"] == [True, True]
    assert seen["zoomed"] == pytest.approx(seen["end"] / 2) and seen["full"] == pytest.approx(seen["end"])
    assert seen["moved"] == pytest.approx(seen["end"] / 4) and f"job {seen['job']} (" in seen["hover"]
    assert seen["rows"] >= 1 and seen["beside"] == seen["other"]  # the same job under the other policy
    for row, mean in zip(comparison.rows, seen["mean"], strict=True):
        result = row.outcomes[0]
        assert mean == pytest.approx(result.jct_s[result.finished].mean())


@pytest.fixture(scope="module")
def stopped():
    """A comparison in which jobs are stopped and servers fail, and its cluster."""
    cluster, rng = get_cluster("leaf-spine-2", 1), np.random.default_rng(0)
    jobs = make_job_list(np.sort(rng.uniform(0, 4e4, 40)), rng.uniform(1e3, 2e4, 40), rng.choice([1, 2, 8], 40))
    settings = Settings(record_placements=True, preemption=True, failures="20,0.5", checkpoint_s=600.0)
    return compare(cluster, [jobs], ["pack:las+backfill+preempt", "pack"], settings), cluster


@pytest.mark.slow
def test_a_page_holds_every_attempt_and_all_parts(stopped, tmp_path):
    found, cluster = stopped
    (tmp_path / "kept.json").write_text(json.dumps(found.to_json() | {"runs": runs(found, cluster)}))
    data = data_of(make_saved_page({"kept": read_result(tmp_path / "kept.json")}))
    for row, run in zip(found.rows, data["policies"], strict=True):
        result, attempts = row.outcomes[0], row.outcomes[0].attempts
        np.testing.assert_array_equal(unpacked(run["attempts"]["job"]), attempts.job)
        np.testing.assert_array_equal(unpacked(run["attempts"]["ended"]), attempts.ended)
        start_s = unpacked(run["attempts"]["start"]) * run["attempts"]["interval_s"]
        np.testing.assert_allclose(start_s, attempts.start_s)
        held_s, done = unpacked(run["attempts"]["held_s"]), attempts.ended == DONE
        np.testing.assert_allclose(held_s[~done], (attempts.end_s - attempts.start_s)[~done], rtol=1e-6)
        np.testing.assert_array_equal(result.finish_s[attempts.job[done]], attempts.end_s[done])  # so it needs none
        assert done.any() and not held_s[done].any()
        assert len(unpacked(run["gpu"])) == result.jobs.num_gpus[attempts.job].sum()
        added = sum(unpacked(run["parts"][name]) for name in ADDED)
        np.testing.assert_allclose(result.queue_s + result.jobs.duration_s + added, result.jct_s, rtol=1e-5)


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian's package chromium)")
def test_numbers_reach_a_browser(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "few": (np.arange(3), np.int32),  # a block with fixed codes
        "alike": (np.full(100_000, 1e9), np.float64),  # the longest copies
        "noise": (rng.normal(size=20_000), np.float64),  # planes that do not deflate stand as they are
        "mixed": (np.sort(rng.integers(0, 60_000, 50_000)), np.uint16),  # far copies
        "floats": (rng.exponential(size=9_999).astype(np.float32), np.float32),
        "bytes": (rng.integers(0, 4, 777), np.uint8),
        "none": (np.zeros(5), np.float32),
    }
    parts = [columns, *({name: column} for name, column in columns.items())]
    texts = [embed({"name": "Zoë", **{name: pack_column(*column) for name, column in part.items()}}) for part in parts]
    script = f"""<pre id="seen"></pre><script>{SCRIPT.read_text()}
const check = values => values.reduce((sum, value, i) => (sum + value * (i % 97)) % 1e6, 0);
document.getElementById("seen").textContent = JSON.stringify({json.dumps(texts)}.map(text => {{
  const [{{ name, ...columns }}, unpacked] = embed(text);
  const told = Object.entries(columns).map(([name, column]) => [name, unpacked(column)]);
  return [name, Object.fromEntries(told.map(([name, x]) => [name, [x.constructor.name, x.length, check(x)]]))];
}}));
</script></body>"""
    (tmp_path / "page.html").write_text("<!doctype html><html><body></body></html>")
    for part, (text, seen) in zip(parts, visited(tmp_path / "page.html", script), strict=True):
        assert text == "Zoë" and set(seen) == set(part)
        for name, (values, kind) in part.items():
            numbers, check = values.astype(kind), 0.0
            for i, value in enumerate(numbers.tolist()):
                check = math.fmod(check + value * (i % 97), 1e6)
            assert seen[name] == [f"{numbers.dtype.name.capitalize()}Array", len(numbers), check]


# Points at the last attempt of the job that had most of them.
VISIT_ATTEMPTS = """<pre id="seen"></pre><script>
const told = []; window.onerror = message => told.push(String(message));
const canvas = document.querySelector("#timelines canvas"), box = canvas.getBoundingClientRect();
const own = runs[0].attempts;
const j = own.total.indexOf(Math.max(...own.total)), i = own.job.lastIndexOf(j), k = runs[0].held.indexOf(i);
canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + (own.from[i] + own.to[i]) / 2 / end * box.width,
  clientY: box.top + (runs[0].gpu[k] + .5) / data.gpus * box.height }));
search.value = jobs.id[j]; search.dispatchEvent(new Event("input"));
const row = [...document.querySelectorAll("#why tbody tr")].find(row => row.cells[0].textContent === jobs.id[j]);
document.getElementById("seen").textContent = JSON.stringify({ told, job: j, hover: hover.textContent,
  key: document.getElementById("key").textContent, attempts: row.cells[row.cells.length - 1].textContent,
  restarts: own.resume.reduce((sum, s, i) => sum + s - own.from[i], 0), ran: Array.from(runs[0].ran),
  waits: waits[0].y });
</script></body>"""


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian's package chromium)")
def test_attempts_in_a_browser(stopped, tmp_path):
    found, cluster = stopped
    write_report(tmp_path / "report.html", found, cluster)
    seen, result = visited(tmp_path / "report.html", VISIT_ATTEMPTS), found.rows[0].outcomes[0]
    most = int(np.bincount(result.attempts.job)[seen["job"]])
    assert seen["told"] == [] and most > 3 and seen["attempts"] == str(most)
    assert f"here attempt {most} of {most}, " in seen["hover"] and seen["hover"].endswith("restarting, done")
    assert seen["key"].startswith("restarting") and min(seen["waits"]) == 0
    assert seen["restarts"] == pytest.approx(result.interruptions.restarting_s.sum())
    np.testing.assert_allclose(seen["ran"], result.run_s, rtol=1e-5)


# Points at the busiest link in the middle of the run, asks for it by key, and for the second decision.
VISIT_LINKS = """<pre id="seen"></pre><script>
const told = []; window.onerror = message => told.push(String(message));
const heat = document.querySelector("#heat canvas"), box = heat.getBoundingClientRect();
heat.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + box.width / 2, clientY: box.top + 2 }));
const link = document.getElementById("on-link").textContent; heat.focus();
heat.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
decision.value = 1; decision.dispatchEvent(new Event("change"));
const rows = [...document.querySelectorAll("#places tbody tr")].map(row => row.textContent);
document.getElementById("seen").textContent = JSON.stringify({ told, rows, link,
  byKey: document.getElementById("on-link").textContent, focused: document.activeElement === heat,
  options: decision.options.length });
</script></body>"""


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian's package chromium)")
def test_links_and_decisions_in_a_browser(tmp_path):
    cluster, settings, policy = get_cluster("leaf-spine-24", 1), Settings(record_placements=True), parse("pack")
    jobs = make_job_list([0.0, 0.0, 600.0], [6000.0, 6000.0, 3000.0], [72, 4, 8])
    found = compare(cluster, [jobs], [policy], settings)
    decisions = decisions_of(policy, found.rows[0].outcomes[0], cluster, settings, np.arange(3))
    write_report(tmp_path / "report.html", found, cluster, {"pack": decisions})
    seen = visited(tmp_path / "report.html", VISIT_LINKS)
    assert seen["told"] == [] and seen["options"] == 3
    assert len(seen["rows"]) >= 2 and sum(": taken" in row for row in seen["rows"]) == 1
    assert re.fullmatch(r"pack: link \d+, (out of|into) rack \d, [1-9]\d*% asked for at [\d.]+ h", seen["link"])
    assert seen["focused"] and seen["byKey"].split("rack")[0] == seen["link"].split("rack")[0]
    assert re.search(r", [\d.]+% asked for over the whole run$", seen["byKey"])
