import hashlib
import importlib
import re

import pytest

from jaxsched.errors import UserError
from jaxsched.workload import datasets
from jaxsched.workload.datasets import DATASETS, cache_dir, data_dirs, fetch, find
from tests.support.data import data_dir


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No data folder but those a test makes under tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAXSCHED_DATA", raising=False)
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "project/jaxsched/workload/datasets.py"))
    return tmp_path


def put(folder, name="muri1"):
    path = folder / DATASETS[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def test_registry_is_pinned():
    for dataset in DATASETS.values():
        assert re.fullmatch(r"[0-9a-f]{64}", dataset.sha256), dataset.name
        assert re.search(r"/[0-9a-f]{40}/", dataset.url), dataset.name
        assert dataset.licence in ("MIT", "Apache-2.0", "CC-BY-4.0")
    assert len({d.sha256 for d in DATASETS.values()}) == len({d.file for d in DATASETS.values()}) == len(DATASETS)


@pytest.mark.parametrize("name", ["muri1", "muri2", "muri3", "openb", "openb-nodes", "lingjun-hosts"])
def test_local_files_are_the_registered_ones(real, name):
    assert hashlib.sha256(real(name).read_bytes()).hexdigest() == DATASETS[name].sha256


def test_find_looks_in_order(alone, monkeypatch):
    with pytest.raises(
        UserError, match=r"'muri1' is at none of .*set JAXSCHED_DATA to the folder that holds traces/muri_"
    ):
        find("muri1")
    assert data_dir() is None
    in_cache = put(cache_dir())
    assert find("muri1") == in_cache
    in_data = put(alone / "data")
    assert find("muri1").resolve() == in_data
    monkeypatch.setenv("JAXSCHED_DATA", str(alone / "mine"))
    assert find("muri1").resolve() == in_data  # a folder without the file is passed over
    in_mine = put(alone / "mine")
    assert find("muri1") == in_mine and data_dir() == alone / "mine" == data_dirs()[0]


def test_shared_folder_beside_the_project(alone, monkeypatch):
    beside = put(alone / "shared/data")
    (alone / "project").mkdir()
    assert find("muri1").resolve() == beside  # from the project's root
    monkeypatch.chdir(alone / "project")
    assert find("muri1").resolve() == beside  # from the working directory


def test_unknown_name():
    with pytest.raises(UserError, match=r"unknown name 'helios'; known are philly, muri1"):
        find("helios")


def test_fetch_without_pooch_says_what_to_do(alone, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'jaxsched\[data\]'.*raw.githubusercontent.com"):
        fetch("muri1")


def test_fetch_hands_the_pinned_address_and_hash_to_pooch(alone, monkeypatch):
    calls = []

    class Pooch:
        @staticmethod
        def retrieve(url, known_hash, fname, path):
            calls.append((url, known_hash, path / fname))

    monkeypatch.setattr(importlib, "import_module", lambda name: Pooch)
    path = fetch("openb")
    assert calls == [(DATASETS["openb"].url, f"sha256:{DATASETS['openb'].sha256}", path)]
    assert path == cache_dir() / "traces/openb_pods.csv"


def test_fetch_reports_a_failed_download(alone, monkeypatch):
    class Pooch:
        @staticmethod
        def retrieve(*_, **__):
            raise ValueError("bad hash")

    monkeypatch.setattr(importlib, "import_module", lambda name: Pooch)
    with pytest.raises(UserError, match="could not be downloaded: bad hash"):
        fetch("openb")


def test_fetch_refuses_files_in_another_format():
    with pytest.raises(UserError, match="in another format"):
        fetch("gavel-gpu-sharing")
