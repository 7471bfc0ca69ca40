"""Job lists played again and again under other tables, in the compiled event loop."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.level_table import LevelTable
from jaxsched.errors import UserError
from jaxsched.policies.base import Policy
from jaxsched.simulation.engines.compiled.engine import CompiledEngine
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList


class Plays:
    """One job list under a policy that plays by a table, or by anything else; safe to use from several threads."""

    def __init__(self, policy: Policy, cluster: Cluster, jobs: JobList, settings: Settings) -> None:
        """UserError if the compiled event loop lacks what is needed."""
        engine = CompiledEngine()
        player = engine.prepare(policy, cluster, [jobs], settings)
        missing = engine.why_not(policy, player.config, player.params)
        if missing is not None:
            raise UserError(f"levels are learned in the compiled event loop, but {missing}")
        self._run, self._submit_s = player.prepared(jobs, 0, in_python=False), jobs.submit_s

    def mean_jct_s(self, table: LevelTable | None = None) -> float:
        """Mean completion time of all jobs that fit the cluster, under these levels instead of the policy's own."""
        run = copy.copy(self._run)  # a run's tables are its own once it begins anew; what it reads stays as it is
        run.restart(table)
        run.go_on()
        return float((run.tables.records["finish_s"] - self._submit_s)[run.home >= 0].mean())


def costs(plays: Plays, tables: Sequence[LevelTable], threads: int) -> Float64[np.ndarray, "tables"]:
    """Mean completion time under each table, in seconds; the same with any number of threads."""
    with ThreadPoolExecutor(threads) as pool:
        return np.array(list(pool.map(plays.mean_jct_s, tables)))
