"""Headers and files that several tests need."""

from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.interference.measurements import GPU_COLUMNS, NETWORK_COLUMNS
from jaxsched.workload import datasets

GPU_HEADER, NETWORK_HEADER = ",".join(GPU_COLUMNS) + "\n", ",".join(NETWORK_COLUMNS) + "\n"


def data_file(name: str) -> Path:
    """The local file of a data set; skips the test where it is absent."""
    try:
        return datasets.find(name)
    except UserError:
        pytest.skip(f"needs the data set {name!r} (set JAXSCHED_DATA)")
