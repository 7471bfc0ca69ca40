"""A recording in the simulator, offline: pure, no cluster and no client needed."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from jaxsched.cli.main import main
from jaxsched.errors import UserError
from jaxsched.kube.cluster.record import Recorder, read_recording
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.whatif.recorded import plan_again, read_day
from tests.support.kube.objects import NOW, make_node, make_pod


def write(path: Path, cut: bool = False) -> Path:
    """Four nodes; gangs of 2 pods that wait 10 s and run for 100 s; one that never ends."""
    lines = [{"t": NOW, "kind": "nodes", "type": "ADDED", "object": make_node(f"n{i}")} for i in range(4)]
    for number in range(6):
        start = NOW + 50 * number
        pods = [
            make_pod(f"g{number}-{k}", 4, f"g{number}", 2, uid=f"g{number}-{k}", age_s=-50 * number) for k in range(2)
        ]
        lines += [{"t": start, "kind": "pods", "type": "ADDED", "object": pod} for pod in pods]
        places = {f"default/g{number}-{k}": f"n{number % 4}" for k in range(2)}
        key = f"default/scheduling.x-k8s.io/g{number}"
        lines.append({"t": start + 10, "kind": "plan", "placements": {key: places}})
        for pod in pods:
            bound = json.loads(json.dumps(pod))
            bound["spec"]["nodeName"] = f"n{number % 4}"
            lines.append({"t": start + 10, "kind": "pods", "type": "MODIFIED", "object": bound})
            if number < 5:
                gone = {"metadata": {"uid": pod["metadata"]["uid"]}}
                lines.append({"t": start + 110, "kind": "pods", "type": "DELETED", "object": gone})
    lines.sort(key=lambda line: line["t"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + ('{"t": 1, "ki' if cut else ""))
    return path


def test_gangs_become_jobs(tmp_path: Path) -> None:
    day = read_day(read_recording(write(tmp_path / "r", cut=True)), PlanSettings())
    assert len(day.jobs) == 5 and day.skipped == {"unfinished": 1}
    np.testing.assert_allclose(day.jobs.submit_s, [0, 50, 100, 150, 200])
    np.testing.assert_allclose(day.jobs.duration_s, 100)
    np.testing.assert_allclose(day.jct_s, 110)
    np.testing.assert_allclose(day.wait_s, 10)
    assert day.jobs.tenant_name.tolist() == ["default"] * 5
    assert day.jobs.num_gpus.tolist() == [8] * 5 and int(day.cluster.group_gpus.sum()) == 32


def test_a_pod_that_has_finished_has_ended(tmp_path: Path) -> None:
    """Whether it is deleted then, or an hour later."""
    lines = [json.loads(line) for line in write(tmp_path / "r").read_text().splitlines()]
    for line in lines:
        uid = line.get("object", {}).get("metadata", {}).get("uid", "")
        if line.get("type") == "DELETED" and uid < "g3":
            pod = next(one["object"] for one in lines if one.get("object", {}).get("metadata", {}).get("name") == uid)
            place = {"spec": pod["spec"] | {"nodeName": "n0"}, "status": {"phase": "Succeeded"}}
            line |= {"type": "MODIFIED", "object": pod | place}
    late = [line | {"t": line["t"] + 3600} for line in lines if line.get("type") == "DELETED"]
    day = read_day([*lines, *late], PlanSettings())
    assert day.skipped == {"unfinished": 1} and day.jct_s.tolist() == pytest.approx([110.0] * 5)


def test_gangs_are_bound_to_the_gpu_types_of_nodes_that_they_may_use(tmp_path: Path) -> None:
    """By node selector, or by node affinity; one that may use all is not."""
    label, lines = "nvidia.com/gpu.product", [json.loads(x) for x in write(tmp_path / "r").read_text().splitlines()]
    products = {"n0": "NVIDIA-A100-SXM4-80GB", "n1": "NVIDIA-H100-80GB-HBM3", "n2": "Tesla-T4", "n3": "Tesla-T4"}

    def affinity(*names: str) -> dict:
        term = {"matchExpressions": [{"key": label, "operator": "In", "values": [*names]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return {"affinity": {"nodeAffinity": required}}

    asks = {"g0": {"nodeSelector": {label: products["n0"]}}, "g1": affinity(products["n1"], products["n2"])}
    asks["g2"], asks["g3"] = affinity(*products.values()), {"nodeSelector": {label: "Tesla-T4"}}
    for line in lines:
        meta = line.get("object", {}).get("metadata", {})
        if line["kind"] == "nodes":
            meta["labels"][label] = products[meta["name"]]
        elif gang := meta.get("labels", {}).get("scheduling.x-k8s.io/pod-group"):
            line["object"]["spec"] |= asks.get(gang, {})
    path = tmp_path / "bound.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    day = read_day(read_recording(path), PlanSettings())
    assert day.jobs.allowed.tolist() == ["A100", "H100|T4", "", "T4", ""]


def test_only_gangs_of_one_scheduler(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no gang from its start"):
        read_day(read_recording(write(tmp_path / "r")), PlanSettings(), "default-scheduler")


@pytest.mark.parametrize("text", ["nonsense\n", "[]\n", '{"t": 1, "kind": "cats"}\n', '{"t": 1, "kind": "plan"}\n'])
def test_what_is_no_recording_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "r")
    path.write_text(path.read_text().splitlines(keepends=True)[0] + text)
    with pytest.raises(UserError, match=r"r:2: is no line of a recording"):
        list(read_recording(path))


@pytest.mark.parametrize("wrong", [{"metadata": [1]}, {"metadata": "x"}, {}, {"metadata": {}, "spec": [1]}])
def test_an_object_that_is_none_is_refused(wrong: dict, tmp_path: Path) -> None:
    """Before: pods without a name, and a check that found nothing."""
    path = write(tmp_path / "r")
    line = {"t": NOW, "kind": "pods", "type": "ADDED", "object": wrong}
    path.write_text(json.dumps(line) + "\n" + path.read_text())
    with pytest.raises(UserError, match=r"r:1: is no line of a recording \(object: "):
        list(read_recording(path))


@pytest.mark.long
def test_plans_are_made_again_offline(tmp_path: Path) -> None:
    *lines, last = plan_again(read_recording(write(tmp_path / "r")), PlanSettings(schedulers=2), "pack")
    assert len(lines) == 6 and all("1 gangs then, 1 now" in line for line in lines)
    assert last.endswith("of 6 gangs on the same nodes as recorded")


def test_times_that_cannot_be_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Before: a mean JCT far below 0, and of nearly two billion seconds, without a word."""
    lines = [json.loads(line) for line in write(tmp_path / "r").read_text().splitlines()]
    wrong = {"g0": "2099-01-01T00:00:00Z", "g1": None, "g2": "yesterday"}
    for line in lines:
        meta = line.get("object", {}).get("metadata", {})
        if (gang := meta.get("labels", {}).get("scheduling.x-k8s.io/pod-group")) in wrong:
            meta["creationTimestamp"] = wrong[gang]
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    day = read_day(read_recording(path), PlanSettings())
    assert day.skipped == {"created after they started": 1, "without a time of creation": 2, "unfinished": 1}
    assert (day.jct_s > 0).all() and len(day.jobs) == 2
    assert "left out: 1 created after they started, 2 without a time of creation" in day.summary()[0]


def test_ends_before_starts_are_left_out(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in write(tmp_path / "r").read_text().splitlines()]
    for line in lines:
        if line.get("type") == "DELETED" and line["object"]["metadata"]["uid"].startswith("g0"):
            line["t"] -= 1000
    assert read_day(lines, PlanSettings()).skipped == {"ended before they started": 1, "unfinished": 1}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_times_without_a_zone_are_utc_and_that_is_said_once(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Before: they were read in the zone of the machine."""
    path = write(tmp_path / "r")
    plain = tmp_path / "plain.jsonl"
    plain.write_text(path.read_text().replace('Z"', '"'))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        main(["kube", "replay", str(plain), "--policies", "pack", "--schedulers", "2"])
    finally:
        monkeypatch.undo()
        time.tzset()
    said = capsys.readouterr()
    assert "mean JCT 110.0 s, mean wait 10.0 s" in said.out
    assert said.err.count("without a time zone are taken as UTC") == 1


def test_other_resources_are_gpus_too(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path / "r")
    path.write_text(path.read_text().replace("nvidia.com/gpu", "amd.com/gpu"))
    main(["kube", "replay", str(path), "--policies", "pack", "--schedulers", "2", "--gpu-resource", "amd.com/gpu"])
    assert "recorded: 5 gangs on 32 GPUs" in capsys.readouterr().out


def test_the_command_compares_policies(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.json"
    path = str(write(tmp_path / "r"))
    main(["kube", "replay", path, "--policies", "pack", "greedy-wait", "--schedulers", "2", "--json", str(out)])
    said = capsys.readouterr().out
    assert "recorded: 5 gangs on 32 GPUs, mean JCT 110.0 s, mean wait 10.0 s" in said and "greedy-wait" in said
    assert json.loads(out.read_text())


def test_racks_are_domains_where_labels_say_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path / "r")
    path.write_text(path.read_text().replace("cloud.provider.com/topology-rack", "volcano.sh/hypernode"))
    day = read_day(read_recording(path), PlanSettings(domain_block=2, topology=("volcano.sh/hypernode",)))
    assert int(day.cluster.domain_block.max()) == 2
    options = ["--topology", "volcano", "--domain-block", "2", "--policies", "pack:fifo+racks"]
    main(["kube", "replay", str(path), *options])
    assert "recorded: 5 gangs on 32 GPUs" in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments, words in (
        (["replay", str(tmp_path / "none")], "no such file|cannot be read"),
        (["run", "--policy", "pack", "--checkpoint", "x"], "exclude each other"),
        (["run", "--shadow", "--dry-run"], "exclude each other"),
        (["run", "--default-duration-s", "-1"], "--default-duration-s: -1.0 should"),
        (["run", "--default-model", "gpt9"], "--default-model: unknown model 'gpt9'; known models are"),
        (["run", "--kubeconfig", str(tmp_path / "none")], "kubeconfig"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["kube", *arguments])
        error = capsys.readouterr().err
        assert end.value.code == 2 and error.count("\n") == 1, error
        import re

        assert re.search(words, error), error


def test_who_set_the_fields_of_an_object_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    recorder = Recorder(path)
    volume = {"metadata": {"name": "disk", "managedFields": [{"manager": "kubectl"}]}, "spec": {"capacity": {}}}
    recorder.change("persistentvolumes", "ADDED", volume)
    recorder.close()
    _, line = read_recording(path)
    assert line["object"] == {"metadata": {"name": "disk"}, "spec": {"capacity": {}}}


@pytest.mark.parametrize("length", [3, 40, 200_000])
def test_what_a_crash_left_of_a_line_is_taken_away(tmp_path: Path, length: int) -> None:
    """Before: the next line was appended to it, and the recording could not be read."""
    path = tmp_path / "day.jsonl"
    node, cut = (
        make_node("n0"),
        json.dumps({"t": NOW, "kind": "nodes", "x": "y" * length}, separators=(",", ":"))[:length],
    )
    for ends in (cut, ""):
        recorder = Recorder(path)
        recorder.change("nodes", "ADDED", node)
        recorder.close()
        with path.open("a") as file:
            file.write(ends)
    assert [line["kind"] for line in read_recording(path)] == ["start", "nodes"] * 2


@pytest.mark.parametrize(
    "content", [b"no recording", b"a,b\n1,2\n", b'{"time": 1}\n', b'{"t":1,"kind":"cats"}\n', b"\xff\xfe\n", b"\n"]
)
def test_another_file_is_not_appended_to(tmp_path: Path, content: bytes) -> None:
    """Before: it was, whatever it held."""
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^--record .*table\.csv: there is a file that is no recording; name"):
        Recorder(path)
    assert path.read_bytes() == content


def test_an_empty_file_and_a_recording_are_appended_to(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").touch()
    for path in (empty, write(tmp_path / "day.jsonl")):
        Recorder(path).close()
        *_, last = read_recording(path)
        assert last["kind"] == "start"


def life(name: str, uid: str, from_s: float, bound_s: float, until_s: float, gpus: int = 4) -> list[dict]:
    """A pod of the gang `x`, at seconds of the recording: it comes, is bound, and is gone."""
    pod = make_pod(name, gpus, "x", 1, uid=uid, age_s=-from_s)
    bound = pod | {"spec": pod["spec"] | {"nodeName": "n0"}}
    gone = {"metadata": {"uid": uid}}
    steps = [(from_s, "ADDED", pod), (bound_s, "MODIFIED", bound), (until_s, "DELETED", gone)]
    return [{"t": NOW + at, "kind": "pods", "type": kind, "object": of} for at, kind, of in steps]


def node_line(at_s: float, kind: str, name: str) -> dict:
    return {"t": NOW + at_s, "kind": "nodes", "type": kind, "object": make_node(name)}


def day_of(*lines: dict):
    return read_day(sorted(lines, key=lambda line: line["t"]), PlanSettings())


def test_gangs_of_one_name_are_several_jobs():
    """Before: one job of all their pods, from the first one's submission on."""
    day = day_of(node_line(0, "ADDED", "n0"), *life("x-0", "a", 0, 10, 310), *life("x-0", "b", 2000, 2010, 2310))
    assert len(day.jobs) == 2 and not day.skipped and len(set(day.jobs.job_id)) == 2
    assert day.jobs.num_gpus.tolist() == [4, 4] and day.jobs.submit_s.tolist() == [0.0, 2000.0]
    assert day.jct_s.tolist() == [310.0, 310.0] and day.wait_s.tolist() == [10.0, 10.0]


def test_what_ended_while_nobody_recorded_is_not_joined_to_later_gangs():
    """One gang is gone when it begins anew, and another of its name comes; a third runs all the time."""
    gone, kept = life("x-0", "a", 0, 10, 9999)[:2], life("y-0", "c", 0, 10, 2500)
    for line in (kept[0], kept[1]):
        line["object"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "y"
    again = [{"t": NOW + 1000, "kind": "start"}, node_line(1001, "ADDED", "n0"), kept[1] | {"t": NOW + 1001}]
    day = day_of(node_line(0, "ADDED", "n0"), *gone, *kept, *again, *life("x-0", "b", 2000, 2010, 2310))
    assert sorted(day.jct_s.tolist()) == [310.0, 2500.0] and day.skipped == {"unfinished": 1}


def test_a_gang_whose_pods_are_replaced_one_by_one_is_left_out():
    two = [*life("x-0", "a", 0, 10, 310), *life("x-1", "b", 0, 10, 900), *life("x-2", "c", 320, 330, 900)]
    day = day_of(node_line(0, "ADDED", "n0"), *two, *life("x-0", "d", 2000, 2010, 2310))
    assert day.jct_s.tolist() == [310.0] and day.skipped == {"whose pods were replaced while others ran": 1}


def test_what_was_over_before_the_recording_is_left_out():
    """Before: it had run from when it was first seen until it was deleted."""
    old = life("x-0", "a", 0, 0, 500)[1:]
    old[0]["object"] |= {"status": {"phase": "Succeeded"}}
    lived = life("x-0", "b", 20, 30, 2310)
    for lines in ([*lived[:1], *old, *lived[1:]], [*old, *lived]):
        day = day_of(node_line(0, "ADDED", "n0"), *lines)
        assert day.jct_s.tolist() == [2290.0] and day.skipped == {"over before the recording": 1}
        assert day.jobs.job_id.tolist() == ["default/scheduling.x-k8s.io/x"]


def test_what_ran_before_the_recording_is_left_out():
    """Before: it had run from when it was first seen, and had waited until then."""
    old = life("x-0", "a", -10_000, 0, 100)[1:]
    old[0] |= {"type": "ADDED"}
    made = life("y-0", "c", 50, 50, 150)[1:]  # with a node's name from the first
    made[0] |= {"type": "ADDED"}
    made[0]["object"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "y"
    day = day_of(node_line(0, "ADDED", "n0"), *old, *made, *life("x-0", "b", 2000, 2010, 2310))
    assert day.jct_s.tolist() == [310.0, 100.0] and day.skipped == {"running before the recording": 1}


def test_a_node_in_the_place_of_another_is_none_more():
    nodes = [node_line(0, "ADDED", "n0"), node_line(0, "ADDED", "n1"), node_line(60, "DELETED", "n1")]
    day = day_of(*nodes, node_line(70, "ADDED", "n2"), *life("x-0", "a", 0, 10, 310))
    assert int(day.cluster.group_gpus.sum()) == 16


def test_a_gang_for_nodes_that_were_gone_is_left_out():
    """As any job it would have had others' GPUs."""
    label, alone = "nvidia.com/gpu.product", life("y-0", "c", 50, 60, 150)
    lines = [node_line(0, "ADDED", "n0"), node_line(100, "ADDED", "n1"), node_line(170, "ADDED", "n2")]
    lines.append(node_line(160, "DELETED", "n0"))
    for line, product in zip(lines, ("Tesla-T4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", "Tesla-T4")):
        line["object"]["metadata"]["labels"][label] = product
    lines.append(node_line(180, "ADDED", "n3"))
    lines[-1]["object"]["metadata"]["labels"][label] = "NVIDIA-A100-SXM4-80GB"
    for line in alone[:2]:
        line["object"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "y"
        line["object"]["spec"]["nodeSelector"] = {label: "Tesla-T4"}
    day = day_of(*lines, *alone, *life("x-0", "a", 200, 210, 310))
    assert int(day.cluster.group_gpus.sum()) == 24
    assert day.jobs.allowed.tolist() == [""] and day.skipped == {"for GPUs of nodes that were gone": 1}


@pytest.mark.parametrize(("gpus", "workers", "each"), [(5, 5, 1), (6, 2, 3), (8, 2, 4), (3, 1, 3)])
def test_a_pod_has_as_many_gpus_as_it_asked_for(gpus, workers, each):
    """Before: of 5 it became 6, since groups have 4."""
    day = day_of(node_line(0, "ADDED", "n0"), *life("x-0", "a", 0, 10, 310, gpus))
    assert day.jobs.workers.tolist() == [workers] and day.jobs.gpus_per_worker.tolist() == [each]
