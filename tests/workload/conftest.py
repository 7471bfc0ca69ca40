from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.workload import datasets
from jaxsched.workload.jobs import JobList
from jaxsched.workload.traces import read_trace


def real_file(name: str) -> Path:
    """The local file of a public data set; skips the test where it is absent."""
    try:
        return datasets.find(name)
    except UserError:
        pytest.skip(f"needs the data set {name!r} (set JAXSCHED_DATA)")


@pytest.fixture(scope="session")
def philly() -> JobList:
    return read_trace(real_file("philly"))[0]


@pytest.fixture
def real():
    return real_file
