"""What plays runs: the contract of an engine, and what it tells of a run while it goes on."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.policies.policy import Policy
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.workload.jobs import JobList


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far one run is; of seeds that are run as one, summed over them."""

    policy: str
    seed: int  # position of the (first) job list
    finished: int  # jobs, rejected ones included
    arrived: int  # jobs
    total: int  # jobs
    simulated_s: float
    wall_s: float
    steps: int
    over: bool  # the run has ended
    compiling: str = ""  # what is compiled now, and for about how long; the run waits for it


Report = Callable[[Progress], None]


class Stopped(Exception):
    """The run was told to stop."""


class Player(Protocol):
    """One policy on one cluster, ready to play job lists; safe to share between threads."""

    def play(
        self,
        job_lists: Sequence[JobList],
        first_seed: int = 0,
        *,
        report: Report | None = None,
        stop: threading.Event | None = None,
    ) -> list[Outcome]:
        """One outcome per list. `first_seed`: position of the first one. Raises `Stopped` once `stop` is set."""
        ...


class Engine(Protocol):
    """Plays docs/semantics.md."""

    name: str

    def why_not(self, policy: Policy, config: EnvConfig, params: EnvParams) -> str | None:
        """What it lacks to play a policy in this environment; None if nothing."""
        ...

    def prepare(self, policy: Policy, world: PlayedWorld) -> Player:
        """A player for lists like those of the world. UserError if they cannot be played on its cluster."""
        ...


def explain_overdue(settings: Settings, wall_s: float) -> str | None:
    """Why a run ends that has taken so long, None if it may go on."""
    late = settings.wall_limit_s is not None and wall_s > settings.wall_limit_s
    return f"after {wall_s:,.0f} s on the wall" if late else None
