"""One compiled policy for all tests of plans."""

import pytest

from jaxsched.kube.planning.plan import Planner
from tests.kube.planning import snapshots


@pytest.fixture(scope="session")
def planner() -> Planner:
    return snapshots.compiled_planner()
