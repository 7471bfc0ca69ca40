"""Rules on a live cluster: the compiled event loop decides, in Python. Nothing is compiled."""

import jax
import numpy as np
from jaxtyping import Int32

from jaxsched.env.state import EnvConfig, make_params
from jaxsched.event_loop import DecisionRounds, RunningJob, why_not
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.decision import Decision
from jaxsched.kube.policy.encode import StateArrays
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy


class RulePolicy:
    """A hand-written policy that is ready at once."""

    def __init__(self, policy: Policy, settings: PlanSettings) -> None:
        self.policy, self.settings = policy, settings

    def covers(self, fleet: Fleet) -> bool:
        """Whether the compiled event loop has this policy."""
        params = make_params(fleet.split, interval_s=self.settings.interval_s)
        return why_not(self.policy, self._config(), params, compiled=False) is None

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> tuple[int, DecisionRounds]:
        """The state before the first round; before the rows that wait are so many of jobs that run."""
        running = int((arrays.running_row >= 0).sum())
        waiting = int(arrays.queue.max(initial=-1)) + 1
        rows = np.concatenate([np.arange(arrays.queue.size, arrays.queue.size + running), np.arange(waiting)])
        jobs = jax.tree.map(lambda column: column[rows], arrays.jobs)
        seated = [
            RunningJob(
                int(arrays.running_row[partition, slot]) - arrays.queue.size,
                int(partition),
                arrays.running_workers[partition, slot].reshape(-1),
                float(arrays.remaining_s[partition, slot]),
            )
            for partition, slot in np.argwhere(arrays.running_row >= 0)
        ]
        cluster, interval_s = fleet.merged if merged else fleet.split, self.settings.interval_s
        rounds = DecisionRounds(
            self._config(),
            make_params(cluster, interval_s=interval_s),
            jobs,
            self.policy,
            interval_s=interval_s,
            running=seated,
            queues=[running + queue[queue >= 0] for queue in arrays.queue],
            attained_s=arrays.attained_s.tolist(),
        )
        return running, rounds

    def decide(self, begun: tuple[int, DecisionRounds], free: Int32[np.ndarray, "P N K"]) -> Decision:
        """One round with `free` GPUs."""
        running, rounds = begun
        done = rounds.decide(free.reshape(len(free), -1))
        return Decision(
            placed=done.row >= 0,
            moved=done.moved,
            row=np.where(done.row >= 0, done.row - running, 0).astype(np.int32),
            workers=done.workers.reshape(free.shape).astype(np.int32),
            ps=done.ps.reshape(free.shape).astype(np.int32),
        )

    def _config(self) -> EnvConfig:
        return EnvConfig(
            running_slots=self.settings.running_slots,
            queue_slots=self.settings.queue_slots,
            tenants=self.settings.tenants,
        )
