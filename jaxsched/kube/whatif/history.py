"""Gangs that may come later, drawn from those that came before: a Bayesian bootstrap of the history, in blocks of time.

The history is cut into blocks of an hour. A future is a row of blocks drawn with replacement; each brings the gangs
that came in it, in the same order and with the same gaps, so bursts stay bursts. How likely each block is, is drawn
anew for every future, from a flat Dirichlet distribution (Rubin, The Bayesian Bootstrap, 1981): a short history says
little about the rate, and the futures differ accordingly. If the history has two days or more, a block stands only for
the same hour of the day, or the one before or after it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from jaxsched.errors import UserError
from jaxsched.kube.read.gangs import Gang, form_gangs, gang_key
from jaxsched.kube.read.groups import PodGroup, read_pod_group
from jaxsched.kube.read.objects import DONE_PHASES, Pod, mapping, read_pod
from jaxsched.kube.read.settings import PlanSettings

BLOCK_S = 3600.0
FEWEST_BLOCKS = 4  # a shorter history is cut finer
DAY_S = 86400.0
NEAR_S = 5400.0  # of a block's beginning from the time of day it stands for


@dataclasses.dataclass(frozen=True)
class RecordedSpan:
    """Everything that came between two instants, in seconds since the epoch; `gangs` by time."""

    begin_s: float
    end_s: float
    gangs: tuple[Gang, ...]


@dataclasses.dataclass(frozen=True)
class History:
    """Gangs that came, in blocks of time. UserError if it is empty."""

    gangs: tuple[Gang, ...]
    offset_s: Float64[np.ndarray, "gangs"]  # since the block began
    first: Int64[np.ndarray, "blocks+1"]  # where the gangs of each block begin
    begin_s: Float64[np.ndarray, "blocks"]  # since the epoch
    length_s: float  # of all blocks

    def __post_init__(self) -> None:
        if not self.gangs:
            raise UserError("--history: no gang came; give recordings in which some did, before the time asked about")

    def draw(self, now_s: float, until_s: float, seed: Sequence[int]) -> tuple[list[int], list[float]]:
        """One future: which gangs come, and how many seconds from now, up to `until_s`.

        A later `until_s` only adds to it.
        """
        draw = np.random.default_rng(list(seed))
        weight = draw.standard_exponential(len(self.begin_s))
        come: list[int] = []
        at_s: list[float] = []
        for number in range(int(np.ceil(until_s / self.length_s))):
            start_s = number * self.length_s
            share = np.where(self._alike(now_s + start_s), weight, 0.0)
            block = int(np.searchsorted(np.cumsum(share), draw.uniform(0.0, share.sum()), side="right"))
            block = min(block, len(weight) - 1)
            for gang in range(self.first[block], self.first[block + 1]):
                if start_s + self.offset_s[gang] <= until_s:
                    come.append(gang)
                    at_s.append(start_s + float(self.offset_s[gang]))
        return come, at_s

    @property
    def span_s(self) -> float:
        """Seconds that it covers."""
        return self.length_s * len(self.begin_s)

    def only(self, which: Bool[np.ndarray, "gangs"]) -> "History | None":
        """Without some of its gangs, in as many blocks; None if none is left."""
        if not which.any():
            return None
        before = np.concatenate([[0], np.cumsum(which)])
        return dataclasses.replace(
            self,
            gangs=tuple(gang for gang, kept in zip(self.gangs, which) if kept),
            offset_s=self.offset_s[which],
            first=before[self.first],
        )

    def _alike(self, at_s: float) -> Bool[np.ndarray, "blocks"]:
        """Blocks that may stand for one that begins then."""
        if self.span_s < 2 * DAY_S:
            return np.ones(len(self.begin_s), bool)
        apart_s = (self.begin_s - at_s + DAY_S / 2) % DAY_S - DAY_S / 2
        near = np.abs(apart_s) <= NEAR_S
        return near if near.any() else np.ones(len(near), bool)


def cut_into_blocks(stretches: Sequence[RecordedSpan]) -> History:
    """The history of some recorded stretches of time. What does not fill a block is left out, the oldest first."""
    spans = [one.end_s - one.begin_s for one in stretches]
    length_s = min(BLOCK_S, max(sum(spans) / FEWEST_BLOCKS, 1.0))
    gangs: list[Gang] = []
    offset_s: list[float] = []
    first, begin_s = [0], []
    for stretch, span_s in zip(stretches, spans):
        count = int(span_s / length_s * (1.0 + 1e-9))
        starts_s = [stretch.end_s - number * length_s for number in range(count, 0, -1)]
        cuts = np.searchsorted([gang.submit_s for gang in stretch.gangs], [*starts_s, stretch.end_s])
        for start_s, before, after in zip(starts_s, cuts, cuts[1:]):
            own = stretch.gangs[before:after]
            gangs += own
            offset_s += [gang.submit_s - start_s for gang in own]
            first.append(len(gangs))
            begin_s.append(start_s)
    return History(tuple(gangs), np.array(offset_s), np.array(first), np.array(begin_s), length_s)


def read_arrivals(
    lines: Iterable[dict[str, Any]], settings: PlanSettings, until_s: float = float("inf")
) -> RecordedSpan | None:
    """The gangs that were submitted while it was recorded, before `until_s` (since the epoch); None if it began later.

    A gang that cannot be read, or is not whole by then, is left out.
    """
    seen, groups, begin_s, end_s = _FirstSeenPods(settings), {}, None, 0.0
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
    return RecordedSpan(begin_s, end_s, tuple(sorted(gangs, key=lambda gang: (gang.submit_s, gang.key))))


class _FirstSeenPods:
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
