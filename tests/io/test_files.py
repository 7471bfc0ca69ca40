"""Inputs that never come, outputs that cannot be written, and results that are kept all the same."""

import os
import re
import threading
import time
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.io.files import (
    check_folder,
    check_outputs,
    check_writable,
    read_bytes,
    read_text,
    save_result,
    write_text,
)


def test_a_pipe_without_a_writer_is_refused_in_time(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    begin = time.monotonic()
    with pytest.raises(UserError, match="is a pipe that nobody writes to, should be a CSV file"):
        read_bytes(tmp_path / "pipe", 100, "a CSV file")
    assert time.monotonic() - begin < 2


def test_a_pipe_with_a_slow_writer_is_read_whole(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def write():
        with (tmp_path / "pipe").open("w") as file:
            for _ in range(3):
                time.sleep(0.1)
                file.write("x" * 1000)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text(tmp_path / "pipe", 10_000) == "x" * 3000
    writer.join()


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/dev/null", "/dev/null: is a device, should be a file"),
        ("/dev/zero", "is a device"),
        ("no/such", "no/such: no such file"),
        ("a\0b", r"cannot be read: embedded null byte"),
        ("x" * 300, "cannot be read: File name too long"),
        (".", "is a directory"),
    ],
)
def test_what_is_no_file(path, wanted):
    with pytest.raises(UserError, match=wanted):
        read_bytes(path, 100)


def test_a_large_file_is_refused_unread(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than 100 bytes"):
        read_bytes(tmp_path / "large", 100)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("x" * 300 + ".json", "--json .*: cannot be written: File name too long"),
        ("no/such/o.json", "the folder .*no/such does not exist"),
        (".", "is a folder"),
        ("file/o.json", "the folder .*file does not exist"),
        ("a\0.json", "cannot be written: embedded null byte"),
    ],
)
def test_outputs_that_cannot_be_written(tmp_path, path, wanted):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=wanted):
        check_writable(tmp_path / path, "--json")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_name_of_the_longest_length_is_written(tmp_path):
    path = tmp_path / ("x" * 250 + ".json")
    check_writable(path, "--json")
    save_result(path, lambda place: place.write_text("result"))
    assert path.read_text() == "result" and len(list(tmp_path.iterdir())) == 1


def test_an_output_is_not_an_input_nor_another_output(tmp_path):
    trace, link, folder = tmp_path / "trace.csv", tmp_path / "link", tmp_path / "checkpoint"
    trace.write_text("x")
    link.symlink_to(trace)
    folder.mkdir()
    (folder / "card.json").write_text("{}")
    for path in (trace, link, Path(os.path.relpath(trace)), folder / "card.json"):
        with pytest.raises(UserError, match=r"--json .*: would replace a file that the command reads"):
            check_outputs({"--json": path}, [str(trace), "pack", str(folder), None, "x" * 5000, "a\0"])
    with pytest.raises(UserError, match=r"--jobs-out .*: is the file of --json, too"):
        check_outputs({"--json": tmp_path / "a", "--jobs-out": tmp_path / "." / "a"})
    check_outputs({"--json": tmp_path / "a", "--jobs-out": None, "--figure": tmp_path / "b"}, [str(trace)])
    check_outputs({"--json": Path("/dev/null"), "--jobs-out": Path("/dev/null")})
    assert trace.read_text() == "x"


def test_links_stay_links_and_devices_devices(tmp_path):
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    link.symlink_to(target)
    for content in ("first", "second"):
        check_writable(link, "--json")
        save_result(link, lambda place, content=content: place.write_text(content))
        assert link.is_symlink() and target.read_text() == content
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    for path in (null, Path("/dev/null")):
        check_writable(path, "--json")
        save_result(path, lambda place: place.write_text("x"))
        assert not path.is_file() and path.exists()
    write_text(link, "third")
    assert link.is_symlink() and target.read_text() == "third"


def test_a_result_goes_through_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    time.sleep(0.2)
    check_writable(tmp_path / "pipe", "--json")
    save_result(tmp_path / "pipe", lambda place: place.write_text("result"))
    reader.join()
    assert found == ["result"]


@pytest.mark.parametrize("place", ["/dev/full", "pipe", "gone/o.json"])
def test_a_result_that_cannot_be_written_is_kept(tmp_path, monkeypatch, place):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"could not be written: .*; the result is in ") as error:
        save_result(tmp_path / place, lambda path: path.write_text("result"))
    kept = re.search(r"the result is in (.*)$", str(error.value))
    assert kept is not None and Path(kept[1]).read_text() == "result"


def test_folders(tmp_path):
    (tmp_path / "file").write_text("x")
    check_folder(tmp_path / "a" / "b", "--out")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    for path, wanted in (("file", "is a file"), ("file/a", "is a file"), ("x" * 300, "File name too long")):
        with pytest.raises(UserError, match=wanted):
            check_folder(tmp_path / path, "--out")
    with pytest.raises(UserError, match="does not exist"):
        check_folder(tmp_path / "a" / "b", "--out", parents=False)


def test_nothing_is_left_where_every_place_failed(tmp_path, monkeypatch):
    """Before: half a result in a folder of every place; and so after an error that no place is to blame for."""
    for name in ("elsewhere", "home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("jaxsched.io.files.home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path / "here")

    def write(error: Exception):
        def half(path: Path) -> None:
            path.write_text("half")
            raise error

        return half

    with pytest.raises(UserError, match="there was no other place for the result either"):
        save_result(tmp_path / "none" / "out.json", write(OSError(28, "No space left")))
    monkeypatch.setattr("jaxsched.io.files._write_through", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(ZeroDivisionError):
        save_result(tmp_path / "out.json", write(ZeroDivisionError()))
    assert not [one for name in ("elsewhere", "home", "here") for one in (tmp_path / name).iterdir()]
