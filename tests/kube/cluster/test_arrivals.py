"""What came in a recording."""

from pathlib import Path

from jaxsched.kube.cluster.record import Recorder, read_recording
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.whatif.recorded import read_arrivals, read_snapshot
from tests.support.kube.objects import NOW, make_node, make_pod

SETTINGS = PlanSettings()


def line(at_s: float, what: str, name: str, gang: str, node: str = "", uid: str = "", **more) -> dict:
    pod = make_pod(name, 4, gang, 2, node=node, uid=uid or name, age_s=NOW - at_s, **more)
    return {"t": at_s, "kind": "pods", "type": what, "object": pod}


def test_gangs_are_as_they_were_submitted_and_names_may_come_again() -> None:
    begin_s = NOW - 1000.0
    lines = [
        {"t": begin_s, "kind": "nodes", "type": "ADDED"},
        line(begin_s + 10, "ADDED", "a-0", "a"),
        line(begin_s + 10, "ADDED", "a-1", "a"),
        line(begin_s + 20, "MODIFIED", "a-0", "a", node="n0"),
        line(begin_s + 90, "DELETED", "a-0", "a", node="n0"),
        line(begin_s + 90, "DELETED", "a-1", "a", node="n0"),
        line(begin_s + 200, "ADDED", "a-0", "a", uid="again-0"),
        line(begin_s + 200, "ADDED", "a-1", "a", uid="again-1"),
        line(begin_s + 300, "ADDED", "b-0", "b"),
        line(begin_s + 310, "ADDED", "foreign", "", scheduler="default-scheduler"),
        line(begin_s + 900, "ADDED", "b-1", "b"),
    ]
    found = read_arrivals(lines, SETTINGS)
    assert found is not None and (found.begin_s, found.end_s) == (begin_s, begin_s + 900)
    assert [(gang.submit_s - begin_s, len(gang.workers), len(gang.bound)) for gang in found.gangs] == [
        (10.0, 2, 0),
        (200.0, 2, 0),
        (300.0, 2, 0),
    ]
    before = read_arrivals(lines, SETTINGS, begin_s + 250)  # gangs that are not whole by then are left out
    assert before is not None and len(before.gangs) == 2 and before.end_s == begin_s + 250
    assert read_arrivals(lines, SETTINGS, begin_s) is None


def test_what_was_there_when_the_recording_began_did_not_come_in_it() -> None:
    old, new = line(NOW - 900, "ADDED", "old-0", ""), line(NOW - 400, "ADDED", "new-0", "")
    for one in (old, new):
        one["object"]["metadata"]["annotations"].clear()
    found = read_arrivals([old | {"t": NOW - 500}, new, {"t": NOW, "kind": "plan"}], SETTINGS)
    assert found is not None and [gang.key for gang in found.gangs] == ["default/pod/new-0"]


def test_what_went_while_nothing_was_recorded_is_gone(tmp_path: Path) -> None:
    """A process that starts again appends to its recording. Before: pods that ended meanwhile stayed for ever."""
    path = tmp_path / "day.jsonl"
    node = make_node("n0")
    for number, uids in enumerate((["old-0", "old-1", "stays"], ["stays", "new-0", "new-1"])):
        recorder = Recorder(path, lambda now_s=NOW + 100 * number: now_s)
        recorder.change("nodes", "ADDED", node)
        for uid in uids:
            name, gang = ("s", "s") if uid == "stays" else (f"a-{uid[-1]}", "a")
            pod = make_pod(name, 1, gang, 2 - (gang == "s"), uid=uid, node="n0", age_s=-90 * number)
            recorder.change("pods", "ADDED", pod)
        recorder.close()
    assert {pod.uid for pod in read_snapshot(read_recording(path), 50.0).pods} == {"old-0", "old-1", "stays"}
    assert {pod.uid for pod in read_snapshot(read_recording(path)).pods} == {"stays", "new-0", "new-1"}
    found = read_arrivals(read_recording(path), SETTINGS, NOW + 200)
    assert found is not None and [len(gang.workers) for gang in found.gangs] == [2, 1, 2]
