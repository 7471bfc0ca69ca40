"""Rules on a live cluster: the event loop decides, in Python. Nothing is compiled."""

import numpy as np
from jaxtyping import Int32

from jaxsched.env.state import EnvConfig, EnvParams, make_params
from jaxsched.event_loop import DecisionRounds, RunningJob, why_not
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.base import Decision
from jaxsched.kube.policy.encode import StateArrays, take_rows
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy


class EventLoopPolicy:
    """A hand-written policy that is ready at once."""

    def __init__(self, policy: Policy, settings: PlanSettings) -> None:
        self.policy, self.settings = policy, settings
        self._config = EnvConfig(
            running_slots=settings.running_slots, queue_slots=settings.queue_slots, tenants=settings.tenants
        )
        self._params: dict[bool, EnvParams] = {}  # of the last fleet, by view

    def covers(self, fleet: Fleet) -> bool:
        """Whether the event loop has this policy."""
        return why_not(self.policy, self._config, self._params_of(fleet, merged=False), compiled=False) is None

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> "EventLoopRounds":
        """As `PlanningPolicy.begin`; the loop's job table has what runs first, then what waits."""
        first_running = arrays.queue.size
        running, waiting = int((arrays.running_row >= 0).sum()), int(arrays.queue.max(initial=-1)) + 1
        rows = np.concatenate([np.arange(first_running, first_running + running), np.arange(waiting)])
        jobs = take_rows(arrays.jobs, rows)
        running_jobs = [
            RunningJob(
                int(arrays.running_row[partition, slot]) - first_running,
                int(partition),
                arrays.running_workers[partition, slot].reshape(-1),
                float(arrays.remaining_s[partition, slot]),
            )
            for partition, slot in np.argwhere(arrays.running_row >= 0)
        ]
        interval_s = self.settings.interval_s
        rounds = DecisionRounds(
            self._config,
            self._params_of(fleet, merged),
            jobs,
            self.policy,
            interval_s=interval_s,
            running=running_jobs,
            queues=[running + queue[queue >= 0] for queue in arrays.queue],
            attained_s=arrays.attained_s.tolist(),
        )
        return EventLoopRounds(rounds, running)

    def _params_of(self, fleet: Fleet, merged: bool) -> EnvParams:
        cluster, known = fleet.merged if merged else fleet.split, self._params.get(merged)
        if known is None or known.cluster is not cluster:
            known = self._params[merged] = make_params(cluster, interval_s=self.settings.interval_s)
        return known


class EventLoopRounds:
    """Rounds of one state; the first `running` rows of the loop's job table are not among those of `Decision`."""

    def __init__(self, rounds: DecisionRounds, running: int) -> None:
        self._rounds, self._running = rounds, running

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`; nothing in rules is random."""
        done = self._rounds.decide(free.reshape(len(free), -1))
        return Decision(
            placed=done.row >= 0,
            moved=done.moved,
            row=np.where(done.row >= 0, done.row - self._running, 0).astype(np.int32),
            workers=done.workers.reshape(free.shape).astype(np.int32),
            ps=done.ps.reshape(free.shape).astype(np.int32),
        )
