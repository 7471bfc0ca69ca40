"""Job lists played again and again under other numbers, in the compiled event loop."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.policies.policy import Policy
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList


class Plays:
    """One job list under a policy, or under such as differ from it in what is learned; several threads may use it."""

    def __init__(self, policy: Policy, cluster: Cluster, jobs: JobList, settings: Settings) -> None:
        """UserError if the compiled event loop lacks what is needed."""
        engine = CompiledEngine()
        player = engine.prepare(policy, cluster, [jobs], settings)
        missing = engine.why_not(policy, player.config, player.params)
        if missing is not None:
            raise UserError(f"it is learned in the compiled event loop, but {missing}")
        self._run, self._submit_s = player.prepared(jobs, 0, in_python=False), jobs.submit_s

    def mean_jct_s(self, policy: Policy | None = None) -> float:
        """Mean completion time of all jobs that fit the cluster, under this policy instead of the first one."""
        run = copy.copy(self._run)  # a run's tables are its own once it begins anew; what it reads stays as it is
        run.restart(policy)
        run.go_on()
        return float((run.tables.records["finish_s"] - self._submit_s)[run.home >= 0].mean())


def costs(plays: Sequence[Plays], policies: Sequence[Policy], threads: int) -> Float64[np.ndarray, "lists policies"]:
    """Mean completion times of each list under each policy, in seconds; the same with any number of threads."""
    pairs = [(one, policy) for one in plays for policy in policies]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda pair: pair[0].mean_jct_s(pair[1]), pairs))
    return np.array(found).reshape(len(plays), len(policies))
