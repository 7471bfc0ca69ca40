"""Policies on job lists, a task for each run, by an executor."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxsched.cluster.hardware import Cluster
from jaxsched.executors.executor import Executor, Task, Tell
from jaxsched.policies.base import Policy
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.engine import Report
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import Settings, env_config
from jaxsched.simulation.simulate import check_world, simulate
from jaxsched.workload.jobs import JobList


class Common(NamedTuple):
    """What all runs share. Policies are named, as on the command line: workers make them anew."""

    policies: Sequence[str]
    cluster: Cluster
    job_lists: Sequence[JobList]
    settings: Settings


class Run(NamedTuple):
    """One policy on one list, by their positions."""

    policy: int
    job_list: int


def play(common: Common, run: Run, tell: Tell) -> Outcome:
    """The work of a task: the same outcome as `simulate` has."""
    policy = parse_all(common.policies)[run.policy]
    settings = dataclasses.replace(common.settings, batched=False)  # one list at a time
    found = simulate([policy], common.cluster, common.job_lists, settings, tell, only=[run.job_list])
    return found[policy.name][0]


class Elsewhere(NamedTuple):
    """`simulate` by an executor, for the policies of these names."""

    executor: Executor
    names: tuple[str, ...]

    def __call__(
        self,
        policies: Sequence[Policy],
        cluster: Cluster,
        job_lists: Sequence[JobList],
        settings: Settings,
        report: Report | None = None,
    ) -> dict[str, list[Outcome]]:
        """See `simulate`."""
        for policy in policies:
            check_world(policy, settings)
        env_config(cluster, job_lists, settings)  # refuses what no worker could play
        runs = [Run(policy, number) for number in range(len(job_lists)) for policy in range(len(policies))]
        tasks = [Task(f"{policies[run.policy].name} on job list {run.job_list}", play, run) for run in runs]
        common = Common(self.names, cluster, job_lists, settings)
        found: dict[Run, Outcome] = {}
        tell = None if report is None else lambda _, progress: report(progress)
        for number, outcome in self.executor.run(common, tasks, tell):
            found[runs[number]] = outcome
        lists = range(len(job_lists))
        return {policy.name: [found[Run(i, number)] for number in lists] for i, policy in enumerate(policies)}
