"""One compiled policy for all tests of plans."""

import pytest

from jaxsched.kube.plan.planner import Planner
from tests.kube import snapshots


@pytest.fixture(scope="session")
def planner() -> Planner:
    return snapshots.compiled_planner()
