"""Where measurements are that the project does not ship."""

from pathlib import Path

from jaxsched.workload.datasets import data_dirs


def data_dir() -> Path | None:
    """The first folder of `data_dirs` that exists and has a `traces` folder, or None."""
    return next((folder for folder in data_dirs() if (folder / "traces").is_dir()), None)
