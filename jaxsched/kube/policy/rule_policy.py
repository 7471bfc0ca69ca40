"""Rules on a live cluster: the compiled event loop decides, in Python. Nothing is compiled."""

import jax
import numpy as np
from jaxtyping import Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import EnvConfig, make_params
from jaxsched.event_loop.covered import not_covered
from jaxsched.event_loop.moment import Moment, Round
from jaxsched.event_loop.run import Run
from jaxsched.event_loop.seated import Seat
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.policy.decision import Decision
from jaxsched.kube.policy.encode import StateArrays
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.base import Policy
from jaxsched.workload.jobs import JobTable


class RulePolicy:
    """A hand-written policy that is ready at once."""

    def __init__(self, policy: Policy, settings: PlanSettings) -> None:
        self.policy, self.settings = policy, settings

    def covers(self, fleet: Fleet) -> bool:
        """Whether the compiled event loop has this policy."""
        params = make_params(fleet.split, interval_s=self.settings.interval_s)
        return not_covered(self.policy, self._config(), params) is None

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> Moment:
        """The moment before the first round."""
        running = int((arrays.running_row >= 0).sum())
        waiting = int(arrays.queue.max(initial=-1)) + 1
        rows = np.concatenate([np.arange(arrays.queue.size, arrays.queue.size + running), np.arange(waiting)])
        jobs = jax.tree.map(lambda column: column[rows], arrays.jobs)
        seats = [
            Seat(
                int(arrays.running_row[partition, slot]) - arrays.queue.size,
                int(partition),
                arrays.running_workers[partition, slot].reshape(-1),
                float(arrays.remaining_s[partition, slot]),
            )
            for partition, slot in np.argwhere(arrays.running_row >= 0)
        ]
        run = self._run(fleet.merged if merged else fleet.split, jobs)
        queues = [running + queue[queue >= 0] for queue in arrays.queue]
        return Moment(run, seats, queues, arrays.attained_s.tolist())

    def decide(self, moment: Moment, free: Int32[np.ndarray, "P N K"]) -> Decision:
        """One round with `free` GPUs."""
        done: Round = moment.decide(free.reshape(len(free), -1))
        return Decision(
            placed=done.job >= 0,
            moved=done.moved,
            row=np.where(done.job >= 0, done.job - moment.seated, 0).astype(np.int32),
            workers=done.workers.reshape(free.shape).astype(np.int32),
            ps=done.ps.reshape(free.shape).astype(np.int32),
        )

    def _run(self, cluster: Cluster, jobs: JobTable) -> Run:
        params = make_params(cluster, interval_s=self.settings.interval_s)
        return Run(self._config(), params, jobs, self.policy, self.settings.interval_s, in_python=True)

    def _config(self) -> EnvConfig:
        return EnvConfig(
            running_slots=self.settings.running_slots,
            queue_slots=self.settings.queue_slots,
            tenants=self.settings.tenants,
        )
