"""Headers, files and settings that several tests need."""

import dataclasses
from pathlib import Path

import pytest

from jaxsched.calibration.interference.measurements import GPU_COLUMNS, NETWORK_COLUMNS
from jaxsched.calibration.interference.model import FitSettings
from jaxsched.errors import UserError
from jaxsched.workload import datasets

QUICK = dataclasses.replace(FitSettings(), channels=2, hidden=4, members=2, steps=300)

GPU_HEADER, NETWORK_HEADER = ",".join(GPU_COLUMNS) + "\n", ",".join(NETWORK_COLUMNS) + "\n"


def data_file(name: str) -> Path:
    """The local file of a data set; skips the test where it is absent."""
    try:
        return datasets.find(name)
    except UserError:
        pytest.skip(f"needs the data set {name!r} (set JAXSCHED_DATA)")
