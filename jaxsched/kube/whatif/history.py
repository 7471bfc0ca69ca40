"""Gangs that may come later, drawn from those that came before: a Bayesian bootstrap of the history, in blocks of time.

The history is cut into blocks of an hour. A future is a row of blocks drawn with replacement; each brings the gangs
that came in it, in the same order and with the same gaps, so bursts stay bursts. How likely each block is, is drawn
anew for every future, from a flat Dirichlet distribution (Rubin, The Bayesian Bootstrap, 1981): a short history says
little about the rate, and the futures differ accordingly. If the history has two days or more, a block stands only for
the same hour of the day, or the one before or after it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64

from jaxsched.errors import UserError
from jaxsched.kube.read.gangs import Gang

BLOCK_S = 3600.0
FEWEST_BLOCKS = 4  # a shorter history is cut finer
DAY_S = 86400.0
NEAR_S = 5400.0  # of a block's beginning from the time of day it stands for


@dataclasses.dataclass(frozen=True)
class Stretch:
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

    def drawn(self, now_s: float, until_s: float, seed: Sequence[int]) -> tuple[list[int], list[float]]:
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


def in_blocks(stretches: Sequence[Stretch]) -> History:
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
