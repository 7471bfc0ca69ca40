"""One small comparison that several test files look at."""

import pytest

from jaxsched.cluster.hardware import Cluster
from jaxsched.cluster.presets import get_cluster
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.tables import Comparison
from jaxsched.simulation.engine import Progress
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import JobList
from tests.support.evaluation_jobs import some_jobs


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return get_cluster("leaf-spine-2", 2)  # two partitions of 8 GPUs


@pytest.fixture(scope="session")
def job_lists() -> list[JobList]:
    return [some_jobs(0), some_jobs(1, 35)]


@pytest.fixture(scope="session")
def progress() -> list[Progress]:
    return []


@pytest.fixture(scope="session")
def comparison(cluster: Cluster, job_lists: list[JobList], progress: list[Progress]) -> Comparison:
    settings = Settings(record_placements=True)
    more = {"cluster": "leaf-spine-2"}
    return compare(cluster, job_lists, ["pack", "random"], settings, config=more, report=progress.append)
