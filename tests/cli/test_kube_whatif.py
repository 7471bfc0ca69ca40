"""`jaxsched kube whatif` on a recording: what it prints and writes, and what it says of mistakes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from jaxsched.cli.main import main
from jaxsched.kube.read.hints import read_hints
from jaxsched.kube.read.manifest import manifest_pods
from jaxsched.kube.read.settings import PlanSettings
from tests.support.kube.objects import NOW, make_node, make_pod

JOB = """
kind: Job
metadata: {name: mine, namespace: team}
spec:
  parallelism: 2
  template:
    metadata: {annotations: {jaxsched.io/duration-seconds: "100"}}
    spec:
      containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
"""


def recording(folder: Path) -> Path:
    """Two full nodes, for 600 s more at 400 s; a gang that waits, and one that comes 10 s later."""
    lasting = {"jaxsched.io/duration-seconds": "1000"}
    lines: list[dict] = [{"t": NOW - 400, "kind": "nodes", "object": make_node(f"n{i}")} for i in range(2)]
    for number in range(2):
        pod = make_pod(f"r-{number}", 8, "r", 2, node=f"n{number}", uid=f"r{number}", age_s=400, annotations=lasting)
        lines.append({"t": NOW - 400, "kind": "pods", "object": pod})
        for gang, t in (("g", NOW), ("h", NOW + 10)):
            pod = make_pod(f"{gang}-{number}", 8, gang, 2, uid=f"{gang}{number}", age_s=NOW - t, annotations=lasting)
            lines.append({"t": t, "kind": "pods", "object": pod})
    path = folder / "day.jsonl"
    lines.sort(key=lambda line: line["t"])
    path.write_text("".join(json.dumps({"type": "ADDED", **line}) + "\n" for line in lines))
    return path


SURE = ("--schedulers", "1", "--duration-error", "0", "--draws", "1")


def test_a_table_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    manifest, out = tmp_path / "job.yaml", tmp_path / "out.json"
    manifest.write_text(JOB)
    files = ["-f", str(manifest), "--json", str(out)]
    main(["kube", "whatif", str(recording(tmp_path)), *files, "--policies", "pack", "pack:sjf+backfill", *SURE])
    said = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    g, h = "default/scheduling.x-k8s.io/g", "default/scheduling.x-k8s.io/h"
    assert said[:5] == [
        ["under pack:"],
        ["gang", "waits", "starts in (5% to 95%)", "on", "behind"],
        [g, "10 s", "590 s (590 s to 590 s)", "n0, n1", "what runs now"],
        [h, "0 s", "26 min (26 min to 26 min)", "n0, n1", g],
        ["team/mine", "0 s", "43 min (43 min to 43 min)", "n0, n1", f"{g}, {h}"],
    ]
    assert said[9] == ["team/mine", "0 s", "590 s (590 s to 590 s)", "n0, n1", "what runs now"]
    rows = json.loads(out.read_text())["answers"]
    assert [(row["policy"], row["name"], row["median_s"]) for row in rows][2] == ("pack", "team/mine", 2590.0)
    assert rows[2]["behind"] == [g, h] and rows[2]["gpus"] == 16 and rows[2]["reason"] is None


def test_gangs_that_are_left_out_of_others_times_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = recording(tmp_path)
    uneven = [make_pod(f"u-{gpus}", gpus, "u", 2, uid=f"u{gpus}", age_s=30) for gpus in (1, 8)]
    with path.open("a") as file:
        file.writelines(
            json.dumps({"type": "ADDED", "t": NOW + 10, "kind": "pods", "object": pod}) + "\n" for pod in uneven
        )
    main(["kube", "whatif", str(path), "--policies", "pack", *SURE])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "not simulated: default/scheduling.x-k8s.io/u; others may start later than said, or elsewhere"


def test_a_moment_of_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = str(recording(tmp_path))
    main(["kube", "whatif", path, "--at-s", "400", "--policies", "pack", *SURE])
    said = capsys.readouterr().out
    assert "10 min (10 min to 10 min)" in said and "/h" not in said
    main(["kube", "whatif", path, "--at-s", "0"])
    assert capsys.readouterr().out == "no gang is pending\n"
    main(["kube", "whatif", path, "--at-s", "400", "--scheduler-name", "other"])
    assert "no gang of the scheduler 'other' is pending, but pods are: " in capsys.readouterr().out
    main(["kube", "whatif", path, "--policies", "pack", *SURE, "--horizon-s", "1000"])
    assert "not within 16 min: 2 pods x 8 GPUs, 0 fit now" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at-s", "1e6"], "--at-s: 1e.06 is after the end"),
        (["--at-s", "-1"], "--at-s"),
        (["--draws", "0"], "--draws: 0 should be"),
        (["--duration-error", "nan"], "--duration-error"),
        (["--horizon-s", "1"], "--horizon-s"),
        (["--seed", "-1"], "--seed"),
        (["--policies", "nonsense"], "nonsense"),
        (["--policies", "pack:las+preempt"], "--policies"),
        (["-f", "none.yaml"], "none.yaml"),
        (["-f", "list.yaml"], "kind None should be one of Pod, Job, "),
        (["-f", "kind.yaml"], "kind 'Service' should be one of Pod, Job, "),
        (["-f", "name.yaml"], "metadata.name: 'A/b' should be"),
        (["-f", "size.yaml"], "-2 pods, should be"),
        (["-f", "empty.yaml"], "spec.template.spec is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("[1]")
    Path("kind.yaml").write_text("kind: Service")
    Path("name.yaml").write_text(JOB.replace("mine", "A/b"))
    Path("size.yaml").write_text(JOB.replace("parallelism: 2", "parallelism: -2"))
    Path("empty.yaml").write_text("kind: Job\nmetadata: {name: mine}\nspec: {parallelism: 2}")
    path = str(recording(tmp_path))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as end:
        main(["kube", "whatif", path, *arguments, "--json", "out.json"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and re.search(words, error), error
    assert sorted(tmp_path.iterdir()) == before


def test_what_came_before_in_a_recording_comes_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    day, out = recording(tmp_path), tmp_path / "out.json"
    words = ["kube", "whatif", str(day), "--policies", "pack", *SURE, "--json", str(out)]
    main([*words, "--at-s", "405", "--history", str(day)])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "others come like the 2 gangs of the last 405 s recorded"  # r and g; h comes after that moment
    assert json.loads(out.read_text())["history"] == {"gangs": 2, "seconds": 405.0}
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--history", str(empty)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_has_the_example_that_errors_send_to() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.S)
    pods = manifest_pods([yaml.safe_load(example)], "docs/kubernetes.md", 0.0, PlanSettings(), 0)
    assert [pod.units("nvidia.com/gpu") for pod in pods] == [8, 8] and not any(pod.refusal for pod in pods)
    for seconds in ("90", "0.5", "1e3"):
        hints, problem = read_hints({"jaxsched.io/duration-seconds": seconds}, {})
        assert f"`{seconds}`" in page and hints.duration_s == float(seconds) and not problem
