"""One process at a time, and a lock that does not outlive its holder."""

import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.io import files
from jaxsched.io.files import LOCK_FILE, locked

HOLD = """
import sys, time
from pathlib import Path
from jaxsched.io.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a folder."""
    running = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stdout.readline() == "held\n"
    yield running
    running.kill()
    running.wait()
    running.stdout.close()


def test_the_second_one_is_refused_and_told_who_is_first(tmp_path, holder):
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on {platform.node()}"), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK_FILE).exists()  # left behind
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text()) == {"host": platform.node(), "pid": os.getpid()}
    assert not (tmp_path / LOCK_FILE).exists()


def test_it_is_free_again_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "new" / "folder"):
        raise KeyboardInterrupt
    with locked(tmp_path / "new" / "folder"):
        pass


@pytest.mark.parametrize(
    ("content", "free"),
    [
        ({"host": platform.node(), "pid": 2**22 + 1}, True),  # above the largest process id
        ({"host": platform.node(), "pid": os.getpid()}, False),
        ({"host": "another", "pid": 1}, False),
        ({"host": platform.node(), "pid": "x"}, False),
        ("torn", True),
    ],
)
def test_without_locks_of_the_system_the_file_tells(tmp_path, monkeypatch, content, free):
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", unsupported)
    (tmp_path / LOCK_FILE).write_text(content if isinstance(content, str) else json.dumps(content))
    if free:
        with locked(tmp_path):
            pass
    else:
        with pytest.raises(UserError, match="is in use by process"), locked(tmp_path):
            pass


def _count(folder: str) -> None:
    """Reads a number and writes the next one, under the lock, for which it waits."""
    for _ in range(50):
        with locked(Path(folder), wait_s=60):
            number = int((Path(folder) / "number").read_text())
            (Path(folder) / "number").write_text(str(number + 1))


def test_many_at_once_lose_nothing(tmp_path):
    (tmp_path / "number").write_text("0")
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=_count, args=(str(tmp_path),)) for _ in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert (tmp_path / "number").read_text() == "200"
