"""Disks that are full or read-only, in the real commands: one line, the old file whole, the result kept."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.io.files import check_folder, check_outputs, locked, save_result, write_text
from jaxsched.io.json_file import append, read_rows
from tests.support.disks import disk, remounted


@pytest.fixture
def small(tmp_path):
    with disk(tmp_path / "small") as place:
        yield place


def fill(place: Path) -> None:
    """Leave no byte."""
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def test_a_full_disk_leaves_the_old_file_and_the_result_elsewhere(small, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = small / "result.json"
    path.write_text("old")
    fill(small)
    with pytest.raises(UserError, match=r"No space left on device; the result is in ") as error:
        save_result(path, lambda place: place.write_text("new" * 10_000))
    kept = re.search(r"the result is in (.*)$", str(error.value))
    assert kept is not None and Path(kept[1]).read_text() == "new" * 10_000
    assert path.read_text() == "old" and sorted(one.name for one in small.iterdir()) == ["filler", "result.json"]


def test_a_text_is_replaced_whole_or_not_at_all(small):
    path = small / "card.json"
    write_text(path, "old")
    fill(small)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new" * 10_000)
    assert path.read_text() == "old" and sorted(one.name for one in small.iterdir()) == ["card.json", "filler"]


def test_a_log_on_a_full_disk_keeps_its_rows(small):
    path = small / "metrics.jsonl"
    append(path, {"chunk": 1})
    fill(small)
    with pytest.raises(OSError, match="No space left"):
        for number in range(2, 10_000):
            append(path, {"chunk": number})
    rows = read_rows(path)
    assert [row["chunk"] for row in rows] == list(range(1, len(rows) + 1))


def test_read_only_disks_are_refused_before_any_work(small):
    (small / "old").mkdir()
    remounted(small, "ro")
    for check in (
        lambda: check_outputs({"--json": small / "result.json"}),
        lambda: check_folder(small / "run", "--out"),
        lambda: check_folder(small / "old", "--out"),
    ):
        with pytest.raises(UserError, match=r"Read-only file system|is not writable"):
            check()
    with pytest.raises((UserError, OSError), match="Read-only file system"), locked(small / "old"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_of_others_are_refused_before_any_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        check_outputs({"--json": tmp_path / "result.json"})
    with pytest.raises(UserError, match="Permission denied"):
        check_folder(tmp_path / "run", "--out")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "ro"])
def test_a_command_says_it_in_one_line(small, fault):
    if fault == "full":
        fill(small)
    else:
        remounted(small, "ro")
    arguments = ("simulate", "--cluster", "leaf-spine-2", "--num-jobs", "5", "--policy", "pack")
    command = [sys.executable, "-m", "jaxsched.cli", *arguments, "--json", str(small / "result.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    errors = [line for line in done.stderr.splitlines() if line.startswith("jaxsched: error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr
    assert str(small) in errors[0] and (
        "No space left" in errors[0] if fault == "full" else "not writable" in errors[0]
    )
    if kept := re.search(r"the result is in (.*)$", errors[0]):  # an empty file could be made, so it ran
        assert Path(kept[1]).stat().st_size > 100
        Path(kept[1]).unlink()
