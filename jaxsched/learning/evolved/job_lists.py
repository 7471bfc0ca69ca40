"""Job lists to learn from: a workload's past, drawn again, or new jobs; and played in the compiled event loop."""

import copy
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float64

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.policies.policy import Policy
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.settings import PlayedWorld, Settings
from jaxsched.workload.jobs import JobList, from_start, rescale_to_load
from jaxsched.workload.load import add_estimates

BLOCKS = 24  # of equal time, from which a list is drawn
LOADS = (0.9, 1.1)  # of a drawn list, over that which was asked for
ERRORS = (0.25, 1.5)  # of estimates: sigma of the logarithm of their ratio to run times
SHORTER = (0.125, 1.0)  # factors of all times of a list


def draw_list(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """As many stretches of time as there are, drawn with replacement, one after the other, at a load about `load`.

    So arrivals keep their rhythm within a stretch, and no list comes twice. None: at the pace that the jobs have. They
    must not all be submitted at once.
    """
    assert jobs.submit_s[-1] > jobs.submit_s[0]
    again = _shuffle(jobs, rng.integers(0, BLOCKS, BLOCKS))
    while len(again) == 0 or again.submit_s[-1] == again.submit_s[0]:  # few stretches have jobs
        again = _shuffle(jobs, rng.integers(0, BLOCKS, BLOCKS))
    return rescale_about(from_start(again), rng, gpus, load)


def rescale_about(jobs: JobList, rng: np.random.Generator, gpus: int, load: float | None) -> JobList:
    """The jobs at a load about that one; None: at their pace."""
    return jobs if load is None else rescale_to_load(jobs, gpus, load * rng.uniform(*LOADS))


def shorten(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with all their times a random factor shorter, so that intervals are longer beside them."""
    factor = float(np.exp(rng.uniform(*np.log(SHORTER))))
    return dataclasses.replace(jobs, submit_s=jobs.submit_s * factor, duration_s=jobs.duration_s * factor)


def misjudge(jobs: JobList, rng: np.random.Generator) -> JobList:
    """The jobs with wrong estimates of their run times."""
    return add_estimates(jobs, rng.uniform(*ERRORS), int(rng.integers(2**31)))


def _shuffle(jobs: JobList, stretches: np.ndarray) -> JobList:
    """The jobs of these stretches, one after the other."""
    span_s = float(jobs.submit_s[-1]) + 1.0
    stretch = np.floor(jobs.submit_s / span_s * BLOCKS).astype(np.int64)
    rows = [np.flatnonzero(stretch == chosen) for chosen in stretches]
    later_s = [np.full(len(here), (i - stretches[i]) * span_s / BLOCKS) for i, here in enumerate(rows)]
    index = np.concatenate(rows)
    columns = {field.name: getattr(jobs, field.name)[index] for field in dataclasses.fields(JobList)}
    return JobList(**columns | {"submit_s": columns["submit_s"] + np.concatenate(later_s)})


class Plays:
    """One job list under a policy, or under such as differ from it in what is learned; several threads may use it."""

    def __init__(self, policy: Policy, cluster: Cluster, jobs: JobList, settings: Settings) -> None:
        """UserError if the compiled event loop lacks what is needed."""
        engine = CompiledEngine()
        player = engine.prepare(policy, PlayedWorld(cluster, [jobs], settings))
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
