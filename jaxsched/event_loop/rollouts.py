"""The same beginning again and again, with other run times: what may happen from here on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxsched.event_loop.events import play
from jaxsched.event_loop.occupancy import refresh
from jaxsched.event_loop.rows import with_rows, write
from jaxsched.event_loop.run import Run
from jaxsched.event_loop.seated import Seat, seat
from jaxsched.event_loop.world import NEXT_JOB, Records, Tables, World
from jaxsched.semantics import WORK_TOLERANCE

WHOLE = 2**30  # rounds: to the end


class Rollouts:
    """Plays one run from its beginning as often as it is asked to."""

    def __init__(self, run: Run, seats: Sequence[Seat], attained_s: Sequence[float], *, in_python: bool) -> None:
        """Args: `run`: at boundary 0, of which nothing is played; `seats`: the first jobs of its table, which run.

        `attained_s`: GPU seconds of each tenant. `in_python`: not as machine code, for short runs.
        """
        run.tables.tenants["attained_s"] = attained_s
        run.tables.numbers[NEXT_JOB] = len(seats)
        seat(run, seats)
        with run.in_rows() as (w, t):
            refresh(w, t)  # else the loop, which does so after a start, would not know when they end
        self._world, self._begin, self._in_python = run.world, run.tables, in_python

    def slowdowns(self) -> Float64[np.ndarray, "J"]:
        """Of the jobs that run at the beginning; 1 for the others."""
        found = np.ones(len(self._world.jobs))
        for p, partition in enumerate(self._begin.partitions):
            runs = self._begin.running[p, : partition["running"]]
            found[runs["job"]] = runs["slowdown"]
        return found

    def play(
        self, duration_s: Float64[np.ndarray, "J"], left_s: Float64[np.ndarray, "J"], last: Records | None = None
    ) -> Tables:
        """To the end, with jobs of these ideal seconds, of which so many are left. Policies know the estimates.

        `last`: takes the place of the last jobs of the table; none is larger than the largest that was there.
        """
        tables = copied(self._begin)
        if last is not None:
            self._world.jobs[len(self._world.jobs) - len(last) :] = last
        self._world.jobs["duration_s"], tables.service["left_s"] = duration_s, left_s
        for p, partition in enumerate(tables.partitions):
            runs = tables.running[p, : partition["running"]]
            job, slowdown = runs["job"], runs["slowdown"]
            runs["finish_s"] = left_s[job] * slowdown
            runs["early_s"] = runs["finish_s"] - WORK_TOLERANCE * duration_s[job] * slowdown
            partition["next_finish_s"] = runs["finish_s"].min(initial=np.inf)
            partition["next_early_s"] = runs["early_s"].min(initial=np.inf)
        if self._in_python:
            w, t = with_rows(self._world), with_rows(tables)
            with np.errstate(all="ignore"):
                play(w, t, WHOLE)
            write(t)
        else:
            to_the_end(self._world, tables)
        return tables


def to_the_end(world: World, tables: Tables) -> None:
    """Play a run on, as machine code, until every job has finished."""
    from jaxsched.event_loop.machine_code import machine_code  # needs Numba

    machine_code(play)(world, tables, WHOLE)


def copied(tables: Tables) -> Tables:
    """The same state, to be played on by itself."""
    known = tables.known
    copied: dict[str, Any] = {name: np.copy(value) for name, value in tables._asdict().items() if name != "known"}
    return Tables(known=type(known)(*map(np.copy, known)), **copied)
