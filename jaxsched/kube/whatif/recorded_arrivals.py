"""What came in a recording: the gangs as they were submitted, whatever became of them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxsched.kube.read.gangs import Gang, form_gangs, gang_key
from jaxsched.kube.read.objects import DONE_PHASES, Pod, mapping, read_pod
from jaxsched.kube.read.pod_groups import PodGroup, read_pod_group
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.kube.whatif.history import Stretch


def recorded_arrivals(
    lines: Iterable[dict[str, Any]], settings: PlanSettings, until_s: float = float("inf")
) -> Stretch | None:
    """The gangs that were submitted while it was recorded, before `until_s` (since the epoch); None if it began later.

    A gang that cannot be read, or is not whole by then, is left out.
    """
    seen, groups, begin_s, end_s = _Seen(settings), {}, None, 0.0
    for line in lines:
        if line["t"] >= until_s:
            end_s = until_s
            break
        begin_s = line["t"] if begin_s is None else begin_s
        end_s = max(end_s, line["t"])
        if line["kind"] == "start":
            seen.start()
        if line["kind"] == "pods":
            seen.change(line)
        if line["kind"] == "podgroups" and line["type"] != "DELETED":
            group = read_pod_group(line["object"])
            groups[group.key] = group
    if begin_s is None:
        return None
    gangs = [gang for gang in seen.gangs(tuple(groups.values()), end_s) if begin_s <= gang.submit_s < end_s]
    return Stretch(begin_s, end_s, tuple(sorted(gangs, key=lambda gang: (gang.submit_s, gang.key))))


class _Seen:
    """Pods as they first were, in layers: in each, a gang's name stands for one gang only."""

    def __init__(self, settings: PlanSettings) -> None:
        self.settings = dataclasses.replace(settings, settle_s=0.0)
        self.layers: list[list[Pod]] = []
        self._layer: dict[str, int] = {}  # by gang key, of the present gang of that name
        self._alive: dict[str, set[str]] = {}  # its pods that have not ended
        self._key: dict[str, str] = {}  # by uid

    def start(self) -> None:
        """The recording began, perhaps anew: of pods that do not come again nothing is left."""
        self._alive = {key: set() for key in self._alive}

    def change(self, line: dict[str, Any]) -> None:
        """A pod came, changed or went."""
        uid = str(mapping(line["object"], "metadata").get("uid", ""))
        if line["type"] != "DELETED" and uid not in self._key:
            pod = read_pod(line["object"])
            if pod.scheduler == self.settings.scheduler_name:
                self._add(dataclasses.replace(pod, node="", phase="Pending", terminating=False))
        phase = mapping(line["object"], "status").get("phase")
        if uid in self._key:
            ended = line["type"] == "DELETED" or phase in DONE_PHASES
            alive = self._alive[self._key[uid]]
            alive.discard(uid) if ended else alive.add(uid)

    def _add(self, pod: Pod) -> None:
        key = gang_key(pod)
        if not self._alive.get(key):  # nobody of that name is left, so this is another gang
            self._layer[key] = self._layer.get(key, -1) + 1
            self._alive[key] = set()
        if self._layer[key] == len(self.layers):
            self.layers.append([])
        self.layers[self._layer[key]].append(pod)
        self._alive[key].add(pod.uid)
        self._key[pod.uid] = key

    def gangs(self, groups: tuple[PodGroup, ...], now_s: float) -> list[Gang]:
        """All that can be read and are whole."""
        found = []
        for pods in self.layers:
            found += form_gangs(pods, groups, frozenset(), self.settings, now_s)
        return [gang for gang in found if gang.workers and gang.refusal is None and gang.waiting is None]
