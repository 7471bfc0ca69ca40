"""The folder of measured data beside the project, and a writer of small files."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def cluster_data() -> Path:
    """Real inventories: $JAXSCHED_DATA/clusters or ../shared/data/clusters; skips where the folder is absent."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("JAXSCHED_DATA", beside)) / "clusters"
    if not folder.is_dir():
        pytest.skip(f"no measured data at {folder} (set JAXSCHED_DATA)")
    return folder


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path as str."""

    def _write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return _write
